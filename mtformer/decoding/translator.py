"""The `Translator`, which translates lines of text and returns one result per line, in order."""

import contextlib
import copy
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, combinations
from pathlib import Path
from typing import Any
from unicodedata import normalize

from pydantic import ValidationError

from mtformer.config.data import DataConfig
from mtformer.config.languages import WITHOUT_SPACES, base_code
from mtformer.config.loading import load_config
from mtformer.config.schema import Config, DecodingConfig
from mtformer.config.validation import describe_errors
from mtformer.config.yaml_text import Origin
from mtformer.data.filters.numbers import writes_digits
from mtformer.decoding.ctranslate2.conversion import cached_model
from mtformer.decoding.ctranslate2.engine import open_model, unsupported
from mtformer.decoding.lines.confidence import Calibration, load_calibration
from mtformer.decoding.lines.inputs import check_inputs, check_lines, make_segments, without_case
from mtformer.decoding.lines.placement import has_unlikely_token, is_appended
from mtformer.decoding.lines.postprocessing import END, Postprocessor
from mtformer.decoding.lines.sentences import split_sentences, with_capitals
from mtformer.decoding.lines.translation import REPETITION, Scored, Translation, flag_phrases, in_case, join_n_best
from mtformer.decoding.search.constraints import missing
from mtformer.decoding.search.engine import Engine, plan_batches
from mtformer.decoding.search.inference import InferenceModel
from mtformer.decoding.search.segments import Segment
from mtformer.decoding.weights import find_weights, is_default, verified_weights
from mtformer.device import pick_device, pick_search_precision, set_up_memory
from mtformer.errors import CheckpointError, ConfigError, DataError, MtformerError, log
from mtformer.files import CHECKSUMS, file_sha256, read_json, read_meta, unsealed
from mtformer.model.transformer import Transformer
from mtformer.run_dir import CT2_WEIGHTS, MULTI_SENTENCE_SHARE, RunDir
from mtformer.text.case import case_of
from mtformer.text.tags import target, with_tags
from mtformer.text.tokenizer import EOS, TokenizerPair
from mtformer.weights import load_weights

BACKENDS = ("mtformer", "ctranslate2")
Member = tuple[RunDir, Config, str | None]
"""A run, its config and a checkpoint; several form an ensemble."""
_warn_once = cache(log.warning)
WORD = "Word"
"""Any word with a capital letter."""
KNOWN_SHARE = 0.1
"""Minimum share of training lines with several sentences for a model to translate such lines without splitting them."""


class Translator:
    """A model with its tokenizers, for Python programs, the command line and validation.

    Args:
        models: an engine, or models that are already on their device and in their precision; several form an ensemble.
            Models may be in training mode, which is restored after each call.
        tokenizers: tokenizers of the models.
        decoding: default settings of `translate`.
        trained_tokens: length of the longest training source; None: the maximum that the models support.
        multi_sentence_share: share of training lines with several sentences.
        weights: weight files of the models, for reports.
        weight_hashes: SHA-256 of these files when they were loaded; None: it is computed now.
        calibration: fitted confidence of the model; None: translations have no confidence.
        data: `data` section of the config, which names the languages; None: the models have one direction.
    """

    def __init__(
        self,
        models: Sequence[Transformer] | Engine,
        tokenizers: TokenizerPair,
        decoding: DecodingConfig,
        trained_tokens: int | None = None,
        multi_sentence_share: float = 0.0,
        weights: Sequence[Path] = (),
        data: DataConfig | None = None,
        calibration: Calibration | None = None,
        weight_hashes: Sequence[str] | None = None,
    ) -> None:
        if isinstance(models, Sequence):
            models = Engine([InferenceModel(model) for model in models])
        self.engine: Engine = models
        self.models = [one.transformer for one in self.engine.models]
        self.tokenizers = tokenizers if data is None else with_tags(tokenizers, data)
        self.decoding = decoding
        self.max_tokens = self.engine.max_positions - 1
        self.preferred_tokens = min(trained_tokens or self.max_tokens, self.max_tokens)
        self.knows_several_sentences = multi_sentence_share >= KNOWN_SHARE
        self.weights = weights
        self.weight_hashes = [file_sha256(path) for path in weights] if weight_hashes is None else list(weight_hashes)
        self.data = data
        self.calibration = calibration
        self.in_digits = data is None or writes_digits((data.src_lang, *data.target_languages))
        self.has_spaces = data is None or base_code(data.tgt_lang) not in WITHOUT_SPACES
        """False if the target language has no spaces between words."""
        if data is not None:
            self.engine = self.engine.with_target(target(data, self.tokenizers))

    @staticmethod
    def load(
        run_path: str | Path | Sequence[str | Path],
        checkpoint: str | Sequence[str] | None = None,
        device: str = "auto",
        precision: str | None = None,
        backend: str | None = None,
    ) -> "Translator":
        """Load a run directory, a bundle or a CTranslate2 export; several runs or checkpoints form an ensemble.

        Args:
            run_path: one folder, or several with the same tokenizers; the default settings come from the first.
            checkpoint: checkpoint name (see `find_weights`), or several to load from each run.
            device: `auto` (CUDA if available), `cpu` or `cuda`.
            precision: `fp32` (default on a CPU; translations do not depend on batching), `bf16`, `fp16` (CUDA), `int8`
                (CTranslate2), or `auto` (bf16 on devices where it is the fastest, else fp32).
            backend: `mtformer` or `ctranslate2`; None: ctranslate2 for its exports and for int8 on a CPU. A run or
                bundle is converted for CTranslate2 on first use and stored in the cache.

        Raise CheckpointError, ConfigError or DeviceError if a run, its weights, the backend or the device is unusable.
        """
        paths = [run_path] if isinstance(run_path, (str, Path)) else run_path
        with contextlib.ExitStack() as stack:
            runs = [stack.enter_context(RunDir.opened(path)) for path in paths]
            return Translator._load(runs, checkpoint, device, precision, backend)

    @staticmethod
    def _load(
        runs: Sequence[RunDir],
        checkpoint: str | Sequence[str] | None,
        device: str,
        precision: str | None,
        backend: str | None,
    ) -> "Translator":
        checkpoints = [checkpoint] if checkpoint is None or isinstance(checkpoint, str) else checkpoint
        if not runs or not checkpoints:
            raise ConfigError("no run or no checkpoint given; name at least one")
        if backend not in (None, *BACKENDS):
            raise ConfigError(f"backend '{backend}': unknown backend; use {' or '.join(BACKENDS)}")
        is_int8_on_cpu = precision == "int8" and pick_device(device).type == "cpu"
        if backend is None and (is_int8_on_cpu or any((run.path / CT2_WEIGHTS).is_file() for run in runs)):
            backend = "ctranslate2"
        configs = [load_config(run.config).config for run in runs]
        tokenizers = with_tags(TokenizerPair.load(runs[0].tokenizer), configs[0].data)
        members = [(run, config, one) for run, config in zip(runs, configs, strict=True) for one in checkpoints]
        load = _load_ctranslate2 if backend == "ctranslate2" else _load_own
        engine, weights, weight_hashes = load(members, tokenizers, device, precision)
        is_fitted = len(members) == 1 and is_default(runs[0], weights, configs[0].training.best_metric)
        return Translator(
            engine,
            tokenizers,
            configs[0].decoding,
            trained_tokens=min(config.data.filters.max_tokens for config in configs),
            multi_sentence_share=min(from_data_report(run, MULTI_SENTENCE_SHARE) or 0.0 for run in runs),
            weights=weights,
            weight_hashes=weight_hashes,
            data=configs[0].data,
            calibration=load_calibration(runs[0].confidence) if is_fitted else None,
        )

    def with_decoding(self, decoding: DecodingConfig | None = None, **settings: Any) -> "Translator":
        """Return a translator with the settings of `decoding` and `settings`; None keeps the current value.

        Raise ConfigError if a setting is out of range or not supported by the engine.
        """
        other = copy.copy(self)
        other.decoding = override(decoding or self.decoding, **settings)
        self.engine.check(other.decoding)
        return other

    def into(self, language: str | None) -> "Translator":
        """Return a translator for another target language, or for None itself; raise ConfigError for an unknown one."""
        if language is None:
            return self
        if self.data is None:
            raise ConfigError(f"to '{language}': this model has one direction")
        other = copy.copy(self)
        other.engine = self.engine.with_target(target(self.data, self.tokenizers, language))
        other.has_spaces = base_code(language) not in WITHOUT_SPACES
        return other

    def translate(
        self,
        lines: Sequence[str],
        *,
        prefixes: Sequence[str] | None = None,
        required: Sequence[Sequence[str]] | None = None,
        glossary: Mapping[str, str] | None = None,
        attention: bool = False,
        token_scores: bool = False,
        first_line: int = 0,
        progress: Callable[[int], object] | None = None,
        **settings: Any,
    ) -> list[Translation]:
        """Translate lines. Blank lines remain blank.

        A line longer than the training sources is split at sentence ends; `decoding.split` determines whether shorter
        lines with several sentences are split too. The translations of the parts are joined. A line in capital letters
        is translated in lower case if the tokenizer does not know its capitals, and the translation capitalized.

        Args:
            lines: source lines.
            prefixes: required beginning of each translation.
            required: phrases that each translation must contain; `Translation.flags` names missing ones.
            glossary: source terms and their required translations; see `mtformer.decoding.lines.inputs.required_terms`.
            attention: compute `Translation.attention`.
            token_scores: compute `Translation.token_log_probabilities` and `Translation.agreement`. CTranslate2 needs a
                second pass for the former; our own search always returns them.
            first_line: number of the first line in the user's input, which determines the seeds of samples.
            progress: function called with the number of lines finished since the last call.
            **settings: values that override keys of the `decoding` section.

        Raise ConfigError if a setting is out of range or not supported by the engine, DataError if the number of
        prefixes or phrase lists is wrong, a phrase is blank, or text is too long.
        """
        decoding, tgt = override(self.decoding, **settings), self.tokenizers.tgt
        self.engine.check(decoding, required is not None or bool(glossary))
        pairs = [(normalize("NFC", " ".join(src.split())), tgt.strip()) for src, tgt in (glossary or {}).items()]
        if not all(map(all, pairs)):
            raise DataError("a glossary term is blank, or its translation is; leave it out")
        terms = sorted(pairs, key=lambda term: (-len(term[0]), term[0].islower()))
        given = check_inputs(lines, prefixes, required, tgt, self.max_tokens, first_line, terms, self.has_spaces)
        languages = set() if self.data is None else {*chain.from_iterable(self.data.directions)}
        is_turkic = not {"az", "crh", "tr"}.isdisjoint(map(base_code, languages))  # i is İ in capitals, and ı is I
        inputs = given if is_turkic else without_case(given, self.tokenizers.src)
        num_tags = len(self.engine.target.tags)
        preferred = self.max_tokens if decoding.split == "never" else self.preferred_tokens
        limits = preferred - num_tags, self.max_tokens - num_tags
        splits = decoding.split == "always" or (decoding.split == "auto" and not self.knows_several_sentences)
        # A bound on the tokens of a translation cannot be divided among its sentences.
        splits = splits and not decoding.min_length and decoding.max_length is None
        segments = make_segments(inputs, self.tokenizers, *limits, first_line, splits, terms, self.has_spaces)
        report = progress or (lambda count: None)
        report(len(lines) - len({segment.line for segment in segments}))
        wants = attention, token_scores, token_scores or self.calibration is not None
        postprocess = Postprocessor(self.engine, self.tokenizers, decoding, *wants, self.in_digits)
        with evaluating(self.models):
            found = self._search(segments, postprocess, report)
            self._leave_out_phrases(segments, found, postprocess)
        by_line: list[list[list[Translation]]] = [[] for _ in lines]
        for segment, n_best in zip(segments, found, strict=True):
            by_line[segment.line - first_line].append(n_best)
        translations = []
        for line, searched, n_bests in zip(given, inputs, by_line, strict=True):
            joined = join_n_best(n_bests, decoding.length_penalty)
            best, *others = [flag_phrases(one, line.prefix, line.required) for one in joined]
            if self.calibration is not None:
                best = self.calibration.rate(searched.text, best)
            if line.text != searched.text and (change := case_of(line.text)) is not None:
                best, *others = (in_case(one, change) for one in (best, *others))
            translations.append(replace(best, alternatives=tuple(others)))
        return translations

    def _search(
        self, segments: Sequence[Segment], postprocess: Postprocessor, report: Callable[[int], object]
    ) -> list[list[Translation]]:
        """Search and postprocess batch by batch, and return the n best translations of each segment."""
        decoding, lengths = postprocess.decoding, [len(segment.source) for segment in segments]
        budget = min(self.engine.batch_tokens(decoding), self.engine.max_batch_tokens)
        batches = plan_batches(lengths, budget, decoding.num_rows)
        by_batch = [[segments[number] for number in batch] for batch in batches]
        found: list[list[Translation]] = [[] for _ in segments]
        num_left = Counter(segment.line for segment in segments)
        # Close the search immediately after an error, because the search changes the number of threads.
        searched = self.engine.search(by_batch, decoding)
        with contextlib.closing(searched):
            for batch, some, n_bests in zip(batches, by_batch, searched, strict=True):
                self._require_finite([[one.score for one in n_best] for n_best in n_bests])
                for number, n_best in zip(batch, postprocess(some, n_bests), strict=True):
                    found[number] = n_best
                num_left.subtract(segment.line for segment in some)
                report(sum(num_left[line] == 0 for line in {segment.line for segment in some}))
        return found

    def _leave_out_phrases(
        self, segments: Sequence[Segment], found: list[list[Translation]], postprocess: Postprocessor
    ) -> None:
        """Replace the translations in `found` that fail because of required phrases; see `_fails`.

        The translation with the most phrases that does not fail is used, and among several the one with the best score.
        """
        constrained = {number: segment for number, segment in enumerate(segments) if segment.required}
        while constrained:
            suspicious = {
                number: segment for number, segment in constrained.items() if self._may_fail(segment, found[number][0])
            }
            trials = self._search_with_fewer_phrases(suspicious, postprocess)
            constrained = {}
            for number, segment in suspicious.items():
                fewer = [(trial, n_best[0]) for trial, n_best in trials[number]]
                without_any = [(trial, best) for trial, best in fewer if not trial.required]
                if not self._fails(segment, found[number][0], fewer):
                    continue

                usable = [
                    (trial, n_best)
                    for trial, n_best in trials[number]
                    if not self._fails(trial, n_best[0], without_any)
                ]
                if usable:
                    chosen, found[number] = max(usable, key=_num_phrases_and_score)
                    # With one phrase, it has just been compared with the translation without any.
                    if len(chosen.required) > 1:
                        constrained[number] = chosen

    def _search_with_fewer_phrases(
        self, segments: Mapping[int, Segment], postprocess: Postprocessor
    ) -> dict[int, list[tuple[Segment, list[Translation]]]]:
        """Search each segment without one of its required phrases, for each of them, and without all of them."""
        trials = []
        for number, segment in segments.items():
            subsets = dict.fromkeys([(), *combinations(segment.required, len(segment.required) - 1)])
            trials += [(number, replace(segment, required=phrases)) for phrases in subsets]
        n_bests = self._search([trial for _, trial in trials], postprocess, lambda count: None)
        found: dict[int, list[tuple[Segment, list[Translation]]]] = {number: [] for number in segments}
        for (number, trial), n_best in zip(trials, n_bests, strict=True):
            found[number].append((trial, n_best))
        return found

    def _may_fail(self, segment: Segment, translation: Translation) -> bool:
        """Return True if `_fails` may be True; it needs more searches."""
        return has_unlikely_token(translation) or self._fails(segment, translation)

    def _fails(
        self, segment: Segment, translation: Translation, fewer: Sequence[tuple[Segment, Translation]] = ()
    ) -> bool:
        """Return True if a translation lacks required phrases, or has what they may cause.

        That is a repetition or, for a phrase that does not fit, a further sentence, or the phrase before or after the
        sentence. `fewer` are translations with fewer phrases.
        """
        if REPETITION in translation.flags or missing(translation.tokens, segment.required):
            return True

        phrases = self.tokenizers.tgt.decode(segment.required)
        shown = translation.text
        for phrase in phrases:
            # A phrase is one word here: it may contain periods, and begin a further sentence in lower case.
            shown = shown.replace(phrase, WORD) if phrase else shown
        without_any = [best.text for trial, best in fewer if not trial.required]
        most = max(_num_sentences(text) for text in (segment.text, *without_any))
        if _num_sentences(shown) > most:
            return True

        for phrase, ids in zip(phrases, segment.required, strict=True):
            for trial, best in fewer:
                if ids not in trial.required and is_appended(phrase, ids, translation, best):
                    return True
        return False

    def score(
        self, sources: Sequence[str], targets: Sequence[str], progress: Callable[[int], object] | None = None
    ) -> list[Scored | None]:
        """Return the log-probability of each token of given translations; an ensemble averages probabilities.

        The result of a line is None if its source or target exceeds the maximum length. For a blank translation only
        eos is scored. `progress` gets the number of finished lines. Raise DataError without one target per source.
        """
        if len(sources) != len(targets):
            raise DataError(f"{len(sources)} sources and {len(targets)} targets; give the same number of both")
        src = [[*ids, EOS] for ids in self.tokenizers.src.encode(check_lines(sources))]
        tgt = self.tokenizers.tgt.encode(check_lines(targets))
        found: list[Scored | None] = [None] * len(src)
        lengths = [max(len(self.engine.target.tags) + len(s), len(t) + 1) for s, t in zip(src, tgt, strict=True)]
        fits = [i for i, length in enumerate(lengths) if length <= self.engine.max_positions]
        report = progress or (lambda count: None)
        report(len(src) - len(fits))
        with evaluating(self.models):
            for batch in plan_batches([lengths[i] for i in fits], self.engine.batch_tokens(self.decoding), 1):
                numbers = [fits[i] for i in batch]
                scores = self.engine.score([src[i] for i in numbers], [tgt[i] for i in numbers])
                self._require_finite(scores)
                for i, log_probs in zip(numbers, scores, strict=True):
                    found[i] = Scored([*self.tokenizers.tgt.id_pieces(tgt[i]), END], log_probs)
                report(len(numbers))
        return found

    def _require_finite(self, scores: Sequence[Sequence[float]]) -> None:
        """Raise MtformerError if a sentence has no score or a NaN score, which means that logits are not finite."""
        if not all(of_sentence and not any(map(math.isnan, of_sentence)) for of_sentence in scores):
            where = "".join(f"{path}: " for path in self.weights)
            what = f"training diverged, or its weights are too large for {self.engine.dtype}; use another checkpoint"
            remedy = "" if "32" in self.engine.dtype else " or precision fp32"
            raise MtformerError(f"{where}the model's scores are not finite; {what}{remedy}")


def _load_own(
    members: Sequence[Member], tokenizers: TokenizerPair, device_name: str, precision: str | None
) -> tuple[Engine, list[Path], list[str]]:
    """Return the engine, the weight files and their SHA-256."""
    device = pick_device(device_name)
    if device.type == "cpu":
        set_up_memory()
    precision = pick_search_precision(precision, device)
    models = list[InferenceModel]()
    weights = list[Path]()
    weight_hashes = list[str]()
    for run, config, checkpoint in members:
        theirs = with_tags(TokenizerPair.load(run.tokenizer), config.data)
        if not theirs.equals(tokenizers):
            what = f"its tokenizer differs from that of {members[0][0].path}"
            raise CheckpointError(f"{run.path}: {what}; an ensemble needs identical tokenizers")
        languages = [(one.data.language_tags, one.data.directions) for one in (config, members[0][1])]
        if languages[0] != languages[1]:
            raise ConfigError(f"{run.path}: translates other languages, or has other tags, than {members[0][0].path}")
        paths = find_weights(run, checkpoint, config.training.best_metric)
        model = Transformer(config.model, tokenizers.src.vocab_size, tokenizers.tgt.vocab_size)
        with verified_weights(run, paths) as hashes:
            load_weights(model, *paths)
        models.append(InferenceModel.prepare(model, device, precision))
        weights += paths
        weight_hashes += hashes
    return Engine(models, precision), weights, weight_hashes


def _load_ctranslate2(
    members: Sequence[Member], tokenizers: TokenizerPair, device: str, precision: str | None
) -> tuple[Engine, list[Path], list[str]]:
    """Load an export, or a run or bundle, which is converted on first use."""
    if len(members) > 1:
        raise ConfigError("CTranslate2 supports only one model at a time; give one run and one checkpoint")
    [(run, config, checkpoint)] = members
    if config.data.language_tags == "target":
        raise unsupported("data.language_tags 'target'")
    if (run.path / CT2_WEIGHTS).is_file():  # an export
        if checkpoint is not None:
            raise ConfigError(f"{run.path}: a CTranslate2 export has one set of weights; leave --checkpoint out")
        engine = open_model(run.path, tokenizers, config.model.max_positions, device, precision)
        return engine, [run.path / CT2_WEIGHTS], [read_meta(run.path, CHECKSUMS)["sha256"][CT2_WEIGHTS]]
    weights = find_weights(run, checkpoint, config.training.best_metric)
    with verified_weights(run, weights) as weight_hashes:
        folder = cached_model(weights, config.model, tokenizers)
    return open_model(folder, tokenizers, config.model.max_positions, device, precision), weights, weight_hashes


def _num_phrases_and_score(trial: tuple[Segment, list[Translation]]) -> tuple[int, float]:
    segment, n_best = trial
    return len(segment.required), n_best[0].score


def _num_sentences(text: str) -> int:
    """Return the number of sentences; a text in lower case after a final punctuation mark counts too."""
    return len(split_sentences(with_capitals(text)))


def from_data_report(run: RunDir, key: str) -> float | None:
    """Return a number in data_report.json, or None if it is unknown, with a warning if the file is damaged."""
    path = run.data_report
    try:
        return float(unsealed(read_json(path))[key])
    except KeyError:
        return None
    except FileNotFoundError:
        if not run.checkpoints.is_dir():  # a bundle or export may have none
            return None
        reason = "missing"
    except (OSError, ValueError, TypeError) as error:
        reason = f"damaged ({' '.join(str(error).split()):.80})"
    effect = (
        "lines with several sentences are split" if key == MULTI_SENTENCE_SHARE else f"the number '{key}' is unknown"
    )
    _warn_once("%s: %s, so %s; restore it from a copy, or resume the run, which writes it again", path, reason, effect)
    return None


def override(decoding: DecodingConfig, **values: Any) -> DecodingConfig:
    """Return the section with these values, or raise a one-line ConfigError; None keeps the current value."""
    given = {name: value for name, value in values.items() if value is not None}
    try:
        return DecodingConfig.model_validate({**decoding.model_dump(), **given})
    except ValidationError as error:
        lines = describe_errors(error, {(): Origin("file", "decoding")}, DecodingConfig).splitlines()
        raise ConfigError(lines[0]) from error


@contextlib.contextmanager
def evaluating(models: Sequence[Transformer]) -> Iterator[None]:
    """Put the models in evaluation mode within the context, and restore their mode afterwards."""
    modes = [model.training for model in models]
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for model, mode in zip(models, modes, strict=True):
            model.train(mode)
