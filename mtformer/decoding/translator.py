"""Text in, text out: as many lines as came in, in their order."""

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from mtformer.config.loading import load_config
from mtformer.config.schema import DecodingConfig
from mtformer.decoding.alignment import best_source_words
from mtformer.decoding.batching import plan_batches
from mtformer.decoding.engine import Engine, OwnEngine, Request
from mtformer.decoding.flags import flags
from mtformer.decoding.long_lines import split_line
from mtformer.decoding.mbr import expected_utilities
from mtformer.decoding.phrases import automaton, over_vocabulary, piece_bytes
from mtformer.decoding.protocol import Hypothesis
from mtformer.decoding.required import Phrase
from mtformer.decoding.scorer import coverage
from mtformer.decoding.translation import Attention, Scored, Translation, join
from mtformer.decoding.weights import find_weights
from mtformer.errors import CheckpointError, ConfigError, DataError
from mtformer.model.hardware import DTYPES, keep_freed_memory, pick_device, pick_precision
from mtformer.model.transformer import Transformer
from mtformer.rundir import RunDir
from mtformer.text.tokenizer import CONTROL_IDS, EOS, UNK, TokenizerPair
from mtformer.weights import load_weights

# Whatever some program takes for the end of a line, and NUL: inside a line each is a space.
LINE_BREAKS = re.compile("[\x00\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]+")


@dataclass(frozen=True)
class _Part:
    """A line, or a part of one that was too long; `line` is its number in the call."""

    line: int
    text: str
    request: Request


class Translator:
    """A model with its tokenizers, for use from Python, from the command line, and in validation.

    Args:
        models: on their device, in their precision; several act as one. They may be in training: they are put back as
            they were. Or an engine of another kind.
        tokenizers: those that they were trained with.
        decoding: what holds when `translate` is not told otherwise.
        trained_tokens: longest source that training saw; None: as long as the models can take.
        weights: the files that the weights are from, for reports.
    """

    def __init__(
        self,
        models: Sequence[Transformer] | Engine,
        tokenizers: TokenizerPair,
        decoding: DecodingConfig,
        trained_tokens: int | None = None,
        weights: Sequence[Path] = (),
    ) -> None:
        self.models = models if isinstance(models, Sequence) else ()
        self.engine: Engine = OwnEngine(models) if isinstance(models, Sequence) else models
        self.tokenizers = tokenizers
        self.decoding = decoding
        self.most_tokens = self.engine.max_positions - 1
        self.wanted_tokens = min(trained_tokens or self.most_tokens, self.most_tokens)
        self.weights = weights

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
            precision: `fp32`, in which a translation does not depend on the batch it is in; `bf16`, `fp16`, or `auto`
                (what the device multiplies fastest).

        Raises:
            CheckpointError, ConfigError, DeviceError: when a run, its weights or the device are not as they should.
        """
        paths = [run_path] if isinstance(run_path, (str, Path)) else list(run_path)
        names = [checkpoint] if checkpoint is None or isinstance(checkpoint, str) else list(checkpoint)
        where = pick_device(device)
        if where.type == "cpu":
            keep_freed_memory()
        dtype = DTYPES[pick_precision(precision, where)]
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
                models.append(model.to(device=where, dtype=dtype).eval())
        return cls(models, tokenizers, configs[0].decoding, configs[0].data.filters.max_tokens, weights)

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
            **settings: keys of the `decoding` section that differ.

        Raises:
            ConfigError: a setting that cannot be.
            DataError: prefixes or phrases that are not one a line, are blank, or are longer than the model can take.
        """
        decoding = override(self.decoding, **settings)
        lines = [_one_line(line.encode("utf-8", "replace").decode("utf-8")) for line in lines]
        parts = self._parts(lines, prefixes, required, first_line, decoding)
        next_SV = self._automaton(forbidden)
        found: list[list[Translation]] = [[] for _ in parts]
        num_left = Counter(part.line for part in parts)
        report = progress or (lambda count: None)
        report(len(lines) - len(num_left))
        with _evaluating(self.models):
            lengths = [len(part.request.source) for part in parts]
            for batch in plan_batches(lengths, decoding.batch_tokens, decoding.num_rows):
                some = [parts[number] for number in batch]
                for number, n_best in zip(batch, self._search(some, decoding, next_SV, attention), strict=True):
                    found[number] = n_best
                num_left.subtract(part.line for part in some)
                report(sum(num_left[line] == 0 for line in {part.line for part in some}))
        n_bests: list[list[list[Translation]]] = [[] for _ in lines]
        for part, n_best in zip(parts, found, strict=True):
            n_bests[part.line].append(n_best)
        translations = [_join(of_line, decoding.length_penalty) for of_line in n_bests]
        if required is None and not forbidden:
            return translations
        must_not = self._as_written(forbidden)
        musts = [self._as_written(of_line) for of_line in required] if required is not None else [[]] * len(lines)
        return [_check(one, must, must_not) for one, must in zip(translations, musts, strict=True)]

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
        """
        src = [[*ids, EOS] for ids in self.tokenizers.src.encode([_one_line(line) for line in sources])]
        tgt = self.tokenizers.tgt.encode([_one_line(line) for line in targets])
        found: list[Scored | None] = [None] * len(src)
        lengths = [max(len(s), len(t) + 1) for s, t in zip(src, tgt, strict=True)]
        fits = [i for i, length in enumerate(lengths) if length <= self.engine.max_positions]
        with _evaluating(self.models):
            for batch in plan_batches([lengths[i] for i in fits], self.decoding.batch_tokens, 1):
                numbers = [fits[i] for i in batch]
                scores = self.engine.score([src[i] for i in numbers], [tgt[i] for i in numbers])
                for i, log_probs in zip(numbers, scores, strict=True):
                    found[i] = Scored([*self.tokenizers.tgt.id_pieces(tgt[i]), "</s>"], log_probs)
                if progress is not None:
                    progress(len(numbers))
        return found

    def _parts(
        self,
        lines: Sequence[str],
        prefixes: Sequence[str] | None,
        required: Sequence[Sequence[str]] | None,
        first_line: int,
        decoding: DecodingConfig,
    ) -> list[_Part]:
        """What is to be searched for: nothing for a blank line, several parts for one that is too long."""
        forced_prefixes = self._prefixes(prefixes, len(lines))
        phrases = self._phrases(required, len(lines), decoding)
        parts = []
        for number, (line, ids) in enumerate(zip(lines, self.tokenizers.src.encode(lines), strict=True)):
            texts = [line] if ids else []
            if len(ids) > self.wanted_tokens:
                texts = split_line(line, self._num_tokens, self.wanted_tokens, self.most_tokens)
            for place, text in enumerate(texts):
                source = ids if len(texts) == 1 else self.tokenizers.src.encode([text])[0]
                prefix = forced_prefixes[number] if place == 0 else ()
                # Nothing tells in which part a phrase belongs; of a line that is split they are only checked.
                must = phrases[number] if len(texts) == 1 else ()
                parts.append(_Part(number, text, Request([*source, EOS], first_line + number, prefix, must)))
        return [part for part in parts if len(part.request.source) > 1]

    def _num_tokens(self, texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in self.tokenizers.src.encode(texts)]

    def _prefixes(self, prefixes: Sequence[str] | None, num_lines: int) -> list[Sequence[int]]:
        if prefixes is None:
            return [()] * num_lines
        if len(prefixes) != num_lines:
            raise DataError(f"{len(prefixes)} prefixes for {num_lines} lines; give one a line, a blank one for none")
        encoded = self.tokenizers.tgt.encode([_one_line(prefix) for prefix in prefixes])
        for number, ids in enumerate(encoded, start=1):
            if len(ids) > self.most_tokens:
                raise DataError(
                    f"the prefix of line {number} has {len(ids)} tokens; the model has positions for {self.most_tokens}"
                )
        return [*encoded]

    def _phrases(
        self, required: Sequence[Sequence[str]] | None, num_lines: int, decoding: DecodingConfig
    ) -> list[list[Phrase]]:
        if required is None:
            return [[] for _ in range(num_lines)]
        if len(required) != num_lines:
            raise DataError(f"{len(required)} lists of required phrases for {num_lines} lines; give one a line")
        if decoding.draws or decoding.beam_groups > 1:
            raise ConfigError("required phrases need plain beam search; leave sampling and beam_groups out")
        phrases = [[tuple(ids) for ids in self.tokenizers.tgt.encode(list(of_line))] for of_line in required]
        for number, of_line in enumerate(phrases, start=1):
            if not all(of_line):
                raise DataError(f"a required phrase of line {number} is blank; leave it out")
            if sum(map(len, of_line)) > self.most_tokens:
                raise DataError(f"the phrases of line {number} have more tokens than the model has positions for")
        return phrases

    def _automaton(self, forbidden: Sequence[str]) -> Tensor | None:
        if not forbidden:
            return None
        phrases = self._as_written(forbidden)
        if not all(phrases):
            raise DataError("a forbidden phrase is blank; leave it out")
        return torch.from_numpy(over_vocabulary(automaton([p.encode() for p in phrases]), self._piece_bytes))

    def _as_written(self, phrases: Sequence[str]) -> list[str]:
        """Phrases as the tokenizer writes them: Unicode normalised, spaces single. Unknown letters stay as they are."""
        encoded = self.tokenizers.tgt.encode(list(phrases))
        texts = zip(phrases, encoded, self.tokenizers.tgt.decode(encoded), strict=True)
        return [(_one_line(phrase) if UNK in ids else text).strip() for phrase, ids, text in texts]

    @cached_property
    def _piece_bytes(self) -> list[bytes]:
        pieces = self.tokenizers.tgt.vocabulary()
        return [piece_bytes(piece, number in CONTROL_IDS) for number, piece in enumerate(pieces)]

    def _search(
        self, parts: Sequence[_Part], decoding: DecodingConfig, next_SV: Tensor | None, attention: bool
    ) -> list[list[Translation]]:
        """The n best of each part, best first."""
        hypotheses = self.engine.search([part.request for part in parts], decoding, next_SV)
        counts = [len(of_part) for of_part in hypotheses]
        flat = [hypothesis for of_part in hypotheses for hypothesis in of_part]
        owners = [part for part, count in zip(parts, counts, strict=True) for _ in range(count)]
        weights = self._attention(owners, flat, decoding, attention)
        texts = self._texts(owners, flat, weights, decoding)
        found = []
        for part, one, weights_TS, text in zip(owners, flat, weights, texts, strict=True):
            shown = self._shown(part, one, weights_TS) if attention and weights_TS is not None else None
            doubts = flags(part.text, text, part.request.source[:-1], one.tokens, one.log_probability, one.at_limit)
            score = one.score
            if decoding.coverage_penalty and weights_TS is not None:
                score += decoding.coverage_penalty * coverage(weights_TS)
            found.append(
                Translation(text, score, one.tokens, one.log_probability, one.token_log_probabilities, doubts, shown)
            )
        rest = iter(found)
        return [_ranked([next(rest) for _ in range(count)], decoding) for count in counts]

    def _attention(
        self, owners: Sequence[_Part], hypotheses: Sequence[Hypothesis], decoding: DecodingConfig, wanted: bool
    ) -> list[Tensor | None]:
        """(T, S) of the hypotheses that need it: of all, or of those with an unknown piece that is to be replaced."""
        is_for_all = wanted or decoding.coverage_penalty > 0
        chosen = [
            number
            for number, one in enumerate(hypotheses)
            if is_for_all or (decoding.replace_unknowns and UNK in one.tokens)
        ]
        weights: list[Tensor | None] = [None] * len(hypotheses)
        if chosen:
            sources = [owners[number].request.source for number in chosen]
            found = self.engine.attention(sources, [hypotheses[number].tokens for number in chosen])
            for number, weights_TS in zip(chosen, found, strict=True):
                weights[number] = weights_TS
        return weights

    def _texts(
        self,
        owners: Sequence[_Part],
        hypotheses: Sequence[Hypothesis],
        weights: Sequence[Tensor | None],
        decoding: DecodingConfig,
    ) -> list[str]:
        texts = self.tokenizers.tgt.decode([one.tokens for one in hypotheses])
        if decoding.replace_unknowns:
            for number, (part, one, weights_TS) in enumerate(zip(owners, hypotheses, weights, strict=True)):
                if weights_TS is not None and UNK in one.tokens:
                    texts[number] = self._with_source_words(part, one, weights_TS)
        return [_one_line(text) for text in texts]

    def _with_source_words(self, part: _Part, hypothesis: Hypothesis, weights_TS: Tensor) -> str:
        """The text with the source word that it looked at in the place of each unknown piece."""
        words = best_source_words(weights_TS, self.tokenizers.src.pieces(part.text))
        pieces = self.tokenizers.tgt.id_pieces(hypothesis.tokens)
        for place, token in enumerate(hypothesis.tokens):
            if token == UNK:
                pieces[place] = words[place]
        return self.tokenizers.tgt.decode_pieces(pieces)

    def _shown(self, part: _Part, hypothesis: Hypothesis, weights_TS: Tensor) -> Attention:
        src_pieces = self.tokenizers.src.pieces(part.text)
        weights = weights_TS[: len(hypothesis.tokens), : len(src_pieces)].tolist()
        return Attention(src_pieces, self.tokenizers.tgt.id_pieces(hypothesis.tokens), weights)


def _ranked(found: list[Translation], decoding: DecodingConfig) -> list[Translation]:
    """The n best, best first: by expected utility with MBR, as drawn when sampling, else by score."""
    if decoding.mbr_samples:
        utilities = expected_utilities([one.text for one in found], decoding.mbr_metric)
        distinct: dict[str, Translation] = {}
        for number in sorted(range(len(found)), key=lambda number: -utilities[number]):
            distinct.setdefault(found[number].text, found[number])
        return list(distinct.values())[: decoding.n_best]
    if decoding.sampling:
        return found
    return sorted(found, key=lambda one: -one.score)[: decoding.n_best]


def _join(parts: Sequence[Sequence[Translation]], alpha: float) -> Translation:
    """The n best of a line's parts as those of the line: the best of each, the second best of each ..."""
    if not parts:
        return Translation("", 0.0, [])
    first, *others = [join(of_rank, alpha) for of_rank in zip(*parts, strict=False)]
    return replace(first, alternatives=tuple(others))


def _check(translation: Translation, required: Sequence[str], forbidden: Sequence[str]) -> Translation:
    """The translation with a flag for each phrase that it should hold and does not, or should not and does."""
    wrong = [f"missing: {phrase}" for phrase in required if phrase not in translation.text]
    wrong += [f"forbidden: {phrase}" for phrase in forbidden if phrase in translation.text]
    others = tuple(_check(other, required, forbidden) for other in translation.alternatives)
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


def _one_line(text: str) -> str:
    return LINE_BREAKS.sub(" ", text)
