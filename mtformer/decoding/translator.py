"""Text in, text out: as many lines as came in, in their order."""

import contextlib
import copy
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from mtformer.config.data import DataConfig
from mtformer.config.loading import load_config
from mtformer.config.schema import DecodingConfig
from mtformer.decoding.alignment import best_source_words
from mtformer.decoding.batching import plan_batches
from mtformer.decoding.constraints import automaton, over_vocabulary
from mtformer.decoding.engine import Engine, OwnEngine, search_batches
from mtformer.decoding.inference import InferenceModel
from mtformer.decoding.parts import (
    Part,
    as_written,
    check_lines,
    check_prefixes,
    encode_required,
    forbidden_phrases,
    make_parts,
    one_line,
    watched,
)
from mtformer.decoding.quality import FORBIDDEN, MISSING, coverage, expected_utilities, flags
from mtformer.decoding.search import Hypothesis
from mtformer.decoding.translation import Attention, Scored, Translation, join
from mtformer.decoding.weights import find_weights
from mtformer.device import pick_device, pick_precision, set_up_memory
from mtformer.errors import CheckpointError, ConfigError, DataError, MtformerError
from mtformer.model.transformer import Transformer
from mtformer.rundir import RunDir
from mtformer.text.tags import target
from mtformer.text.tokenizer import CONTROL_IDS, EOS, SPACE, UNK, TokenizerPair, piece_bytes
from mtformer.weights import load_weights

END = "</s>"
UNKNOWN = f"{SPACE}⁇{SPACE}"
"""What the tokenizer writes for an unknown piece, as a piece."""


class Translator:
    """A model with its tokenizers, for use from Python, from the command line, and in validation.

    Args:
        models: on their device, in their precision; several act as one. They may be in training: they are put back as
            they were. Or an engine of another kind.
        tokenizers: those that they were trained with.
        decoding: what holds when `translate` is not told otherwise.
        trained_tokens: longest source that training saw; None: as long as the models can take.
        weights: the files that the weights are from, for reports.
        data: what the models were trained on, which tells their languages; None: they have one direction.
    """

    def __init__(
        self,
        models: Sequence[Transformer] | Engine,
        tokenizers: TokenizerPair,
        decoding: DecodingConfig,
        trained_tokens: int | None = None,
        weights: Sequence[Path] = (),
        data: DataConfig | None = None,
    ) -> None:
        if isinstance(models, Sequence):
            models = OwnEngine([InferenceModel(model) for model in models])
        self.engine: Engine = models
        self.models = [one.transformer for one in self.engine.models] if isinstance(self.engine, OwnEngine) else []
        self.tokenizers = tokenizers
        self.decoding = decoding
        self.most_tokens = self.engine.max_positions - 1
        self.wanted_tokens = min(trained_tokens or self.most_tokens, self.most_tokens)
        self.weights = weights
        self.data = data
        if data is not None:
            self.engine = self.engine.asking(target(data, tokenizers))

    @classmethod
    def load(
        cls,
        run_path: str | Path | Sequence[str | Path],
        checkpoint: str | Sequence[str] | None = None,
        device: str = "auto",
        precision: str = "fp32",
    ) -> "Translator":
        """Loads a run directory or a bundle; several runs, or several checkpoints of one, make an ensemble.

        Args:
            run_path: the folder, or several with the same tokenizers; settings for decoding are those of the first.
            checkpoint: see `find_weights`; several: each of them, of each run.
            device: `auto` (CUDA when there is one), `cpu` or `cuda`.
            precision: `fp32`, in which a translation does not depend on the batch it is in; `bf16`, `fp16` (CUDA),
                or `auto`: bf16 where the device multiplies it fastest.

        Raises:
            CheckpointError, ConfigError, DeviceError: when a run, its weights or the device are not as they should.
        """
        paths = [run_path] if isinstance(run_path, (str, Path)) else list(run_path)
        names = [checkpoint] if checkpoint is None or isinstance(checkpoint, str) else list(checkpoint)
        where = pick_device(device)
        if where.type == "cpu":
            set_up_memory()
        precision = pick_precision(precision, where)
        runs = [RunDir.open(path) for path in paths]
        configs = [load_config(run.config).config for run in runs]
        tokenizers = TokenizerPair.load(runs[0].tokenizer)
        models, weights = [], []
        for run, config in zip(runs, configs, strict=True):
            _check_same_tokenizers(tokenizers, runs[0], run)
            for name in names:
                weights.append(find_weights(run, name, config.training.best_metric))
                model = Transformer(config.model, tokenizers.src.vocab_size, tokenizers.tgt.vocab_size)
                load_weights(model, weights[-1])
                models.append(InferenceModel.prepare(model, where, precision))
        trained_tokens = min(config.data.filters.max_tokens for config in configs)
        return cls(
            OwnEngine(models, precision), tokenizers, configs[0].decoding, trained_tokens, weights, configs[0].data
        )

    def into(self, language: str | None) -> "Translator":
        """The same for another of its target languages; None: as it is.

        Raises:
            ConfigError: when it was not trained on that language.
        """
        if language is None:
            return self
        if self.data is None:
            raise ConfigError(f"to '{language}': this model has one direction")
        other = copy.copy(self)
        other.engine = self.engine.asking(target(self.data, self.tokenizers, language))
        return other

    def translate(
        self,
        lines: Sequence[str],
        *,
        prefixes: Sequence[str] | None = None,
        required: Sequence[Sequence[str]] | None = None,
        forbidden: Sequence[str] = (),
        attention: bool = False,
        first_line: int = 0,
        progress: Callable[[int], object] | None = None,
        watch: Sequence[Callable[[str], object] | None] | None = None,
        **settings: Any,
    ) -> list[Translation]:
        """Translates lines; a blank one stays blank.

        A line of more tokens than training saw is split at sentence ends, and the translations of its parts are joined.

        Args:
            lines: the text.
            prefixes: what each translation begins with, one a line.
            required: phrases that each translation must hold, a list a line; one that is missing all the same is told
                in `Translation.flags`.
            forbidden: phrases that no translation holds, letter by letter, inside words too.
            attention: whether to give `Translation.attention`.
            first_line: the number of the first line in the user's input, for samples.
            progress: called with the number of lines that were done since its last call.
            watch: one a line, or None for a line: called at each step with the best translation so far, which may
                change its mind; from the threads that search, of which there may be several.
            **settings: keys of the `decoding` section that differ.

        Raises:
            ConfigError: a setting that cannot be.
            DataError: prefixes or phrases that are not one a line, phrases that are blank, or what is longer than the
                model can take.
        """
        decoding = override(self.decoding, **settings)
        if required is not None and (decoding.draws or decoding.beam_groups > 1):
            raise ConfigError("required phrases need plain beam search; leave sampling and beam_groups out")
        lines, tgt = check_lines(lines), self.tokenizers.tgt
        begins = check_prefixes(prefixes, len(lines), tgt, self.most_tokens, first_line)
        phrases = encode_required(required, len(lines), tgt, self.most_tokens, first_line)
        must_not = forbidden_phrases(forbidden, tgt)
        wanted, most = (tokens - len(self.engine.asked.tags) for tokens in (self.wanted_tokens, self.most_tokens))
        parts = make_parts(lines, begins, phrases, self.tokenizers, wanted, most, first_line)
        if watch is not None:
            parts = watched(parts, watch, tgt)
        with _evaluating(self.models):
            found = self._search_all(parts, len(lines), decoding, must_not, attention, progress)
        n_bests: list[list[list[Translation]]] = [[] for _ in lines]
        for part, n_best in zip(parts, found, strict=True):
            n_bests[part.line].append(n_best)
        translations = [_join(of_line, decoding.length_penalty) for of_line in n_bests]
        if prefixes is None and required is None and not forbidden:
            return translations
        expected = zip(translations, as_written(begins, tgt), required or [()] * len(lines), strict=True)
        return [_check(one, prefix, as_written(of_line, tgt), must_not) for one, prefix, of_line in expected]

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        progress: Callable[[int], object] | None = None,
    ) -> list[Scored | None]:
        """Log-probabilities of given translations, under the mean of the models' probabilities.

        Args:
            sources, targets: lines that belong together; a blank target is scored as such: its eos.
            progress: called with the number of lines that were done since its last call.

        Returns:
            One a line; None where source or target has more tokens than the models have positions for.

        Raises:
            DataError: when there are not as many targets as sources.
        """
        if len(sources) != len(targets):
            raise DataError(f"{len(sources)} sources and {len(targets)} targets; give lines that belong together")
        src = [[*ids, EOS] for ids in self.tokenizers.src.encode(check_lines(sources))]
        tgt = self.tokenizers.tgt.encode(check_lines(targets))
        found: list[Scored | None] = [None] * len(src)
        lengths = [max(len(self.engine.asked.tags) + len(s), len(t) + 1) for s, t in zip(src, tgt, strict=True)]
        fits = [i for i, length in enumerate(lengths) if length <= self.engine.max_positions]
        report = progress or (lambda count: None)
        report(len(src) - len(fits))
        with _evaluating(self.models):
            for batch in plan_batches([lengths[i] for i in fits], self.decoding.batch_tokens, 1):
                numbers = [fits[i] for i in batch]
                scores = self.engine.score([src[i] for i in numbers], [tgt[i] for i in numbers])
                self._require_scores(scores)
                for i, log_probs in zip(numbers, scores, strict=True):
                    found[i] = Scored([*(self._vocabulary[token] for token in tgt[i]), END], log_probs)
                report(len(numbers))
        return found

    def _require_scores(self, scores: Sequence[Sequence[float]]) -> None:
        """Raise MtformerError if a sentence has no score or NaN, which only logits that are not finite give."""
        if not all(of_sentence and not any(map(math.isnan, of_sentence)) for of_sentence in scores):
            where = "".join(f"{path}: " for path in self.weights)
            remedy = "" if "32" in self.engine.dtype else " or precision fp32"
            raise MtformerError(
                f"{where}the model's scores are not finite; its training diverged, or its weights are too large for "
                f"{self.engine.dtype}; use another checkpoint{remedy}"
            )

    @cached_property
    def _vocabulary(self) -> list[str]:
        return self.tokenizers.tgt.vocabulary()

    def _automaton(self, phrases: Sequence[str]) -> Tensor | None:
        """For `mtformer.decoding.constraints.ForbiddenPhrases`."""
        if not phrases:
            return None
        pieces = [piece_bytes(piece, number in CONTROL_IDS) for number, piece in enumerate(self._vocabulary)]
        return torch.from_numpy(over_vocabulary(automaton([phrase.encode() for phrase in phrases]), pieces))

    def _search_all(
        self,
        parts: Sequence[Part],
        num_lines: int,
        decoding: DecodingConfig,
        forbidden: Sequence[str],
        attention: bool,
        progress: Callable[[int], object] | None,
    ) -> list[list[Translation]]:
        """The n best of each part, batch by batch."""
        next_SV = self._automaton(forbidden)
        found: list[list[Translation]] = [[] for _ in parts]
        num_left = Counter(part.line for part in parts)
        report = progress or (lambda count: None)
        report(num_lines - len(num_left))
        lengths = [len(part.request.source) for part in parts]
        batches = plan_batches(lengths, decoding.batch_tokens, decoding.num_rows)
        requests = [[parts[number].request for number in batch] for batch in batches]
        # Closed at once when something goes wrong here, for it has set the number of threads.
        with contextlib.closing(search_batches(self.engine, requests, decoding, next_SV)) as searched:
            for batch, hypotheses in zip(batches, searched, strict=True):
                self._require_scores([[one.score for one in of_part] for of_part in hypotheses])
                some = [parts[number] for number in batch]
                n_bests = self._best(some, hypotheses, decoding)
                for number, n_best in zip(batch, self._translations(some, n_bests, decoding, attention), strict=True):
                    found[number] = n_best
                num_left.subtract(part.line for part in some)
                report(sum(num_left[line] == 0 for line in {part.line for part in some}))
        return found

    def _best(
        self, parts: Sequence[Part], found: Sequence[list[Hypothesis]], decoding: DecodingConfig
    ) -> list[list[Hypothesis]]:
        """The n best of each part, best first: by expected utility with MBR, as drawn when sampling, else as found."""
        if decoding.coverage_penalty:
            found = self._with_coverage(parts, found, decoding.coverage_penalty)
            if not decoding.draws:
                found = [sorted(of_part, key=lambda one: -one.score) for of_part in found]
        if decoding.mbr_samples:
            return [self._most_agreed(of_part, decoding) for of_part in found]
        if decoding.sampling:
            return list(found)
        return [of_part[: decoding.n_best] for of_part in found]

    def _with_coverage(
        self, parts: Sequence[Part], found: Sequence[list[Hypothesis]], beta: float
    ) -> list[list[Hypothesis]]:
        sources = [part.request.source for part, of_part in zip(parts, found, strict=True) for _ in of_part]
        weights = iter(self.engine.attention(sources, [one.tokens for of_part in found for one in of_part]))
        return [
            [replace(one, score=one.score + beta * coverage(next(weights))) for one in of_part] for of_part in found
        ]

    def _most_agreed(self, samples: Sequence[Hypothesis], decoding: DecodingConfig) -> list[Hypothesis]:
        texts = self.tokenizers.tgt.decode([one.tokens for one in samples])
        utilities = expected_utilities(texts, decoding.mbr_metric)
        distinct: dict[str, Hypothesis] = {}
        for number in sorted(range(len(samples)), key=lambda number: -utilities[number]):
            distinct.setdefault(texts[number], samples[number])
        return list(distinct.values())[: decoding.n_best]

    def _translations(
        self, parts: Sequence[Part], n_bests: Sequence[list[Hypothesis]], decoding: DecodingConfig, attention: bool
    ) -> list[list[Translation]]:
        """The hypotheses of each part as a user sees them."""
        owners = [part for part, n_best in zip(parts, n_bests, strict=True) for _ in n_best]
        flat = [one for n_best in n_bests for one in n_best]
        weights = self._attention(owners, flat, decoding.replace_unknowns, attention)
        sources = self.tokenizers.src.decode([part.request.source for part in owners])
        texts = self.tokenizers.tgt.decode([one.tokens for one in flat])
        found = []
        for part, one, weights_TS, source, text in zip(owners, flat, weights, sources, texts, strict=True):
            pieces = [self._vocabulary[token] for token in one.tokens]
            if UNK in one.tokens:
                pieces = self._with_unknowns(part, one, weights_TS if decoding.replace_unknowns else None)
                text = self.tokenizers.tgt.decode_pieces(pieces)
                pieces = [UNKNOWN if piece == self._vocabulary[UNK] else piece for piece in pieces]
            found.append(
                Translation(
                    text=one_line(text).strip(),
                    score=one.score,
                    tokens=one.tokens,
                    log_probability=one.log_probability,
                    token_log_probabilities=one.token_log_probabilities,
                    pieces=[*pieces, END],
                    flags=flags(source, text, part.request.source[:-1], one.tokens, one.log_probability, one.at_limit),
                    attention=self._shown(part, pieces, weights_TS) if attention and weights_TS is not None else None,
                )
            )
        rest = iter(found)
        return [[next(rest) for _ in n_best] for n_best in n_bests]

    def _attention(
        self, owners: Sequence[Part], hypotheses: Sequence[Hypothesis], replaces: bool, is_wanted: bool
    ) -> list[Tensor | None]:
        """(T, S) of the hypotheses that need it: of all, or of those with an unknown piece that is to be replaced."""
        chosen = [i for i, one in enumerate(hypotheses) if is_wanted or (replaces and UNK in one.tokens)]
        weights: list[Tensor | None] = [None] * len(hypotheses)
        if chosen:
            sources = [owners[number].request.source for number in chosen]
            found = self.engine.attention(sources, [hypotheses[number].tokens for number in chosen])
            for number, weights_TS in zip(chosen, found, strict=True):
                weights[number] = weights_TS
        return weights

    def _with_unknowns(self, part: Part, hypothesis: Hypothesis, weights_TS: Tensor | None) -> list[str]:
        """The pieces; an unknown one is what the prefix has there, or (with weights) the source word it looked at."""
        pieces = [self._vocabulary[token] for token in hypothesis.tokens]
        pieces[: len(part.prefix)] = part.prefix
        unknown = [place for place, token in enumerate(hypothesis.tokens) if token == UNK and place >= len(part.prefix)]
        if weights_TS is not None and unknown:
            source = part.request.source[:-1]
            src_pieces = self.tokenizers.src.pieces(part.text)
            words = best_source_words(weights_TS[unknown], src_pieces, [token == UNK for token in source])
            for place, word in zip(unknown, words, strict=True):
                pieces[place] = word
        return pieces

    def _shown(self, part: Part, pieces: list[str], weights_TS: Tensor) -> Attention:
        src_pieces = self.tokenizers.src.pieces(part.text)
        weights = weights_TS[: len(pieces), : len(src_pieces)].tolist()
        if part.goes_on:
            src_pieces[0] = src_pieces[0].removeprefix(SPACE)
        return Attention(src_pieces, pieces, weights, [0] * len(pieces))


def _join(parts: Sequence[Sequence[Translation]], alpha: float) -> Translation:
    """The n best of a line's parts as those of the line: the best of each, the second best of each ..."""
    if not parts:
        return Translation("", 0.0, [])
    first, *others = [join(of_rank, alpha) for of_rank in zip(*parts, strict=False)]
    return replace(first, alternatives=tuple(others))


def _check(translation: Translation, prefix: str, required: Sequence[str], forbidden: Sequence[str]) -> Translation:
    """The translation with a flag for each phrase that it should hold and does not, or should not and does."""
    text = translation.text
    wrong = [] if text.startswith(prefix) else [f"{MISSING}: {prefix}"]
    wrong += [f"{MISSING}: {phrase}" for phrase in required if phrase not in text]
    wrong += [f"{FORBIDDEN}: {phrase}" for phrase in forbidden if phrase in text]
    others = tuple(_check(other, prefix, required, forbidden) for other in translation.alternatives)
    return replace(translation, flags=(*translation.flags, *wrong), alternatives=others)


@contextlib.contextmanager
def _evaluating(models: Sequence[Transformer]) -> Iterator[None]:
    """The models in evaluation mode, and afterwards as they were."""
    modes = [model.training for model in models]
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for model, mode in zip(models, modes, strict=True):
            model.train(mode)


def _check_same_tokenizers(tokenizers: TokenizerPair, first: RunDir, other: RunDir) -> None:
    theirs = TokenizerPair.load(other.tokenizer)
    if (theirs.src.sha256, theirs.tgt.sha256) != (tokenizers.src.sha256, tokenizers.tgt.sha256):
        raise CheckpointError(
            f"{other.path}: its tokenizer is not that of {first.path}; only runs with one tokenizer go together"
        )


def override(decoding: DecodingConfig, **values: Any) -> DecodingConfig:
    """The section with other values, checked; None leaves one as it is. Raises ConfigError, one line."""
    given = {name: value for name, value in values.items() if value is not None}
    try:
        return DecodingConfig.model_validate({**decoding.model_dump(), **given})
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "value_error":  # of two values that do not go together
            raise ConfigError(f"decoding: {first['ctx']['error']}") from error
        raise ConfigError(f"decoding.{first['loc'][0]}: {first['msg']}, not {first['input']!r}") from error
