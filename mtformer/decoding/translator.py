"""The `Translator`, which translates lines of text and returns one result per line, in order."""

import contextlib
import copy
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from mtformer.config.data import DataConfig
from mtformer.config.languages import base_code, has_spaces
from mtformer.config.loading import load_config
from mtformer.config.schema import DecodingConfig
from mtformer.config.validation import describe_errors
from mtformer.config.yaml_text import Origin
from mtformer.data.filters.numbers import NumberRules
from mtformer.decoding.lines.confidence import Calibration, load_calibration
from mtformer.decoding.lines.glossary import Glossary
from mtformer.decoding.lines.input_watch import InputWatch
from mtformer.decoding.lines.inputs import (
    Line,
    Requirements,
    Splitting,
    TargetText,
    check_inputs,
    check_lines,
    make_segments,
    without_case,
)
from mtformer.decoding.lines.postprocessing import END, Extras, Postprocessor
from mtformer.decoding.lines.translation import Scored, Translation, flag_phrases, in_case, join_n_best
from mtformer.decoding.lines.unfit_phrases import UnfitPhrases
from mtformer.decoding.loading import Member, from_data_report, load_ctranslate2, load_transformers, style_of_training
from mtformer.decoding.search.engine import Engine, plan_batches
from mtformer.decoding.search.inference import InferenceModel
from mtformer.decoding.search.segments import Segment
from mtformer.decoding.search.transformer_engine import TransformerEngine
from mtformer.decoding.weights import is_default
from mtformer.device import pick_device
from mtformer.enums import Backend
from mtformer.errors import ConfigError, DataError, MtformerError
from mtformer.hub import local_path
from mtformer.model.transformer import Transformer
from mtformer.run_dir import CT2_WEIGHTS, MULTI_SENTENCE_SHARE, RunDir
from mtformer.text.case import TURKIC, case_of
from mtformer.text.style import StyleCounts, TrainingStyle
from mtformer.text.tags import target, with_tags
from mtformer.text.tokenizer import EOS, TokenizerPair

KNOWN_SHARE = 0.1
"""Minimum share of training lines with several sentences for a model to translate such lines without splitting them."""
Progress = Callable[[int], object]
"""Function that is called with the number of lines finished since the last call."""
Value = TypeVar("Value")


class Translator:
    """A model with its tokenizers, for Python programs, the command line and validation.

    Args:
        models: an engine, or models that are already on their device and in their precision; several form an ensemble.
            Models may be in training mode, which is restored after each call.
        tokenizers: tokenizers of the models.
        decoding: default settings of `translate`.
        trained_tokens: length of the longest training source; None: the maximum that the models support.
        multi_sentence_share: share of training lines with several sentences.
        data: `data` section of the config, which names the languages; None: the models have one direction.
    """

    def __init__(
        self,
        models: Sequence[Transformer] | Engine,
        tokenizers: TokenizerPair,
        decoding: DecodingConfig,
        trained_tokens: int | None = None,
        multi_sentence_share: float = 0.0,
        data: DataConfig | None = None,
    ) -> None:
        if isinstance(models, Sequence):
            inference_models = [InferenceModel(model) for model in models]
            models = TransformerEngine(inference_models)
        self.engine: Engine = models
        self.models: list[Transformer] = []
        """Models of our own backend, which may be in training mode."""
        if isinstance(models, TransformerEngine):
            self.models = [model.transformer for model in models.models]
        self.tokenizers = tokenizers if data is None else with_tags(tokenizers, data)
        self.decoding = decoding
        self.data = data

        self.max_tokens = self.engine.max_positions - 1
        self.preferred_tokens = min(trained_tokens or self.max_tokens, self.max_tokens)
        self.knows_several_sentences = multi_sentence_share >= KNOWN_SHARE
        self.number_rules = NumberRules()
        """How the source and target languages write numbers."""
        self.has_spaces = True
        """False if the target language has no spaces between words."""
        self.other_target: str | None = None
        """Target language code, if it is not `data.tgt_lang`."""
        if data is not None:
            self.number_rules = _number_rules(data, data.tgt_lang)
            self.has_spaces = has_spaces(data.tgt_lang)
            target_ids = target(data, self.tokenizers)
            self.engine = self.engine.with_target(target_ids)

        # `load` sets these for models that come from files.
        self.weights: Sequence[Path] = ()
        """Weight files of the models, for reports."""
        self.weight_hashes: list[str] = []
        """SHA-256 of the weight files when they were loaded."""
        self.calibration: Calibration | None = None
        """Fitted confidence of the model; None: translations have no confidence."""
        self.style: TrainingStyle | None = None
        """Style of the training text; None: unknown."""

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
            run_path: one folder, or several with the same tokenizers; the default settings come from the first. An
                address such as `hub:OWNER/NAME` is a bundle on the Hugging Face Hub, which is downloaded.
            checkpoint: checkpoint name (see `find_weights`), or several to load from each run.
            device: `auto` (CUDA if available), `cpu` or `cuda`.
            precision: `fp32` (default on a CPU; translations do not depend on batching), `bf16`, `fp16` (CUDA), `int8`
                (CTranslate2), or `auto` (bf16 on devices where it is the fastest, else fp32).
            backend: `mtformer` or `ctranslate2`; None: ctranslate2 for its exports and for int8 on a CPU. A run or
                bundle is converted for CTranslate2 on first use and stored in the cache.

        Raise CheckpointError, ConfigError or DeviceError if a run, its weights, the backend or the device is unusable.
        """
        paths = [run_path] if isinstance(run_path, (str, Path)) else run_path
        runs = []
        with contextlib.ExitStack() as stack:
            for path in paths:
                run = stack.enter_context(RunDir.opened(local_path(path)))
                runs.append(run)
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
        search_backend = _pick_backend(backend, runs, device, precision)

        # Load the members. The tokenizers and settings are those of the first one.
        members = _members(runs, checkpoints)
        first_run = runs[0]
        first_config = members[0].config
        data = first_config.data
        tokenizers = with_tags(TokenizerPair.load(first_run.tokenizer), data)
        load = load_ctranslate2 if search_backend == Backend.CTRANSLATE2 else load_transformers
        loaded = load(members, tokenizers, device, precision)

        # An ensemble can do what all of its members can do.
        trained_tokens = min(member.config.data.filters.max_tokens for member in members)
        share = min(from_data_report(run, MULTI_SENTENCE_SHARE) or 0.0 for run in runs)
        translator = Translator(loaded.engine, tokenizers, first_config.decoding, trained_tokens, share, data)
        translator.weights = loaded.weights
        translator.weight_hashes = loaded.weight_hashes
        translator.style = style_of_training(first_run)

        # The confidence was fitted to the translations of the default checkpoint.
        has_default_weights = is_default(first_run, loaded.weights, first_config.training.best_metric)
        if len(members) == 1 and has_default_weights:
            translator.calibration = load_calibration(first_run.confidence)
        return translator

    def with_decoding(self, decoding: DecodingConfig | None = None, **settings: Any) -> "Translator":
        """Return a translator with the settings of `decoding` and `settings`; None keeps the current value.

        Raise ConfigError if a setting is out of range or not supported by the engine.
        """
        translator = copy.copy(self)
        translator.decoding = override(decoding or self.decoding, **settings)
        self.engine.check(translator.decoding)
        return translator

    def into(self, language: str | None) -> "Translator":
        """Return a translator for another target language, or for None itself; raise ConfigError for an unknown one."""
        if language is None:
            return self
        if self.data is None:
            raise ConfigError(f"to '{language}': this model has one direction; leave the target language out")
        translator = copy.copy(self)
        target_ids = target(self.data, self.tokenizers, language)
        translator.engine = self.engine.with_target(target_ids)
        translator.has_spaces = has_spaces(language)
        translator.number_rules = _number_rules(self.data, language)
        translator.other_target = language
        return translator

    @property
    def tgt_lang(self) -> str:
        """Target language code; empty if it is unknown."""
        if self.data is None:
            return ""
        return self.other_target or self.data.tgt_lang

    @property
    def src_langs(self) -> list[str]:
        """Codes of the languages from which the model translates into the target language; empty if unknown."""
        if self.data is None:
            return []
        sources = [base_code(src) for src, tgt in self.data.directions if tgt == self.tgt_lang]
        return list(dict.fromkeys(sources))

    @property
    def src_lang(self) -> str:
        """Source language code; empty if it is unknown or there are several."""
        sources = self.src_langs
        return sources[0] if len(sources) == 1 else ""

    def watch_input(self, src_lang: str | None = None) -> InputWatch:
        """Return an object that compares input with the training text of its language.

        Args:
            src_lang: source language; None: any from which the model translates into the target language.
        """
        training: list[StyleCounts] = []
        if self.data is not None and self.style is not None:
            languages = dict.fromkeys(src for src, tgt in self.data.directions if tgt == self.tgt_lang)
            if src_lang is not None:
                languages = {src_lang: None}
            training = [self.style.src[language] for language in languages if language in self.style.src]
        accepts_any_case = self.data is not None and self.data.noise.case > 0
        return InputWatch(training, self.tokenizers.src.normalizer, accepts_any_case=accepts_any_case)

    def translate(  # noqa: PLR0913  # the public interface has one keyword for each option
        self,
        lines: Sequence[str],
        *,
        prefixes: Sequence[str] | None = None,
        required: Sequence[Sequence[str]] | None = None,
        glossary: Mapping[str, str] | None = None,
        attention: bool = False,
        token_scores: bool = False,
        first_line: int = 0,
        progress: Progress | None = None,
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
            glossary: source terms and their required translations; see `mtformer.decoding.lines.glossary.Glossary`.
            attention: compute `Translation.attention`.
            token_scores: compute `Translation.token_log_probabilities` and `Translation.agreement`. CTranslate2 needs a
                second pass for the former; our own search always returns them.
            first_line: number of the first line in the user's input, from 0, which determines the seeds of samples.
            progress: function called with the number of lines finished since the last call.
            **settings: values that override keys of the `decoding` section.

        Raise ConfigError if a setting is out of range or not supported by the engine, DataError if the number of
        prefixes or phrase lists is wrong, a phrase is blank, or text is too long.
        """
        decoding = override(self.decoding, **settings)
        has_required = required is not None or bool(glossary)
        self.engine.check(decoding, required=has_required)
        report = progress or _ignore

        # Check the input, and convert it to segments.
        terms = Glossary.from_mapping(glossary or {}, self.src_lang)
        requirements = Requirements(prefixes, required, terms)
        target_text = TargetText(self.tokenizers.tgt, self.max_tokens, self.has_spaces)
        given_lines = check_inputs(lines, requirements, target_text, first_line)
        searched_lines = self._without_case(given_lines)
        splitting = self._splitting(decoding)
        segments = make_segments(searched_lines, self.tokenizers.src, target_text, terms, splitting, first_line)
        lines_with_text = {segment.line for segment in segments}
        num_blank = len(lines) - len(lines_with_text)
        report(num_blank)

        # Search for the n best translations of each segment.
        needs_agreement = token_scores or self.calibration is not None
        extras = Extras(attention, token_scores, agreement=needs_agreement)
        postprocess = Postprocessor(self.engine, self.tokenizers, decoding, extras, self.number_rules)

        def search_again(trials: Sequence[Segment]) -> list[list[Translation]]:
            return self._search(trials, postprocess, _ignore)

        unfit_phrases = UnfitPhrases(search_again, self.tokenizers.tgt)
        with evaluating(self.models):
            n_bests = self._search(segments, postprocess, report)
            n_bests = unfit_phrases.leave_out(segments, n_bests)

        # Join the segments of each line, and complete its translations.
        n_bests_of_line: dict[int, list[list[Translation]]] = defaultdict(list)
        for segment, n_best in zip(segments, n_bests, strict=True):
            n_bests_of_line[segment.line].append(n_best)
        translations = []
        pairs = zip(given_lines, searched_lines, strict=True)
        for number, (given_line, searched_line) in enumerate(pairs, start=first_line):
            n_best = join_n_best(n_bests_of_line[number], decoding.length_penalty)
            translation = self._completed(given_line, searched_line, n_best)
            translations.append(translation)
        return translations

    def _without_case(self, lines: Sequence[Line]) -> Sequence[Line]:
        """Return the lines in the case in which they are translated."""
        sources = self.src_langs
        if len(sources) > 1 and not TURKIC.isdisjoint(sources):  # I may be a capital i or ı
            return lines
        return without_case(lines, self.tokenizers.src, self.src_lang)

    def _splitting(self, decoding: DecodingConfig) -> Splitting:
        """Return which lines are split into segments."""
        num_tags = len(self.engine.target.tags)
        preferred_tokens = self.max_tokens if decoding.split == "never" else self.preferred_tokens
        splits_sentences = decoding.split == "always"
        if decoding.split == "auto":
            splits_sentences = not self.knows_several_sentences
        # A bound on the tokens of a translation cannot be divided among its sentences.
        has_bound = decoding.min_length > 0 or decoding.max_length is not None
        return Splitting(
            preferred_tokens=preferred_tokens - num_tags,
            max_tokens=self.max_tokens - num_tags,
            splits_sentences=splits_sentences and not has_bound,
        )

    def _search(
        self, segments: Sequence[Segment], postprocess: Postprocessor, report: Progress
    ) -> list[list[Translation]]:
        """Search and postprocess batch by batch, and return the n best translations of each segment."""
        engine = self.engine
        decoding = postprocess.decoding
        lengths = [len(segment.source) for segment in segments]
        beam_tokens = min(engine.beam_tokens(decoding), engine.max_beam_tokens)
        numbers_of_batches = plan_batches(lengths, beam_tokens, decoding.num_rows)
        batches = [_chosen(segments, numbers) for numbers in numbers_of_batches]

        results: list[list[Translation]] = [[] for _ in segments]
        num_left = Counter(segment.line for segment in segments)
        hypotheses_of_batches = engine.search(batches, decoding)
        # Close the search immediately after an error, because the search changes the number of threads.
        with contextlib.closing(hypotheses_of_batches):
            for numbers, batch, n_bests in zip(numbers_of_batches, batches, hypotheses_of_batches, strict=True):
                for hypotheses in n_bests:
                    scores = [hypothesis.score for hypothesis in hypotheses]
                    self._require_finite(scores)
                translations_of_batch = postprocess(batch, n_bests)
                for number, translations in zip(numbers, translations_of_batch, strict=True):
                    results[number] = translations

                lines_of_batch = [segment.line for segment in batch]
                num_left.subtract(lines_of_batch)
                finished = [line for line in set(lines_of_batch) if num_left[line] == 0]
                report(len(finished))
        return results

    def _completed(self, given_line: Line, searched_line: Line, n_best: Sequence[Translation]) -> Translation:
        """Return the best translation of a line, with its flags, confidence, case and alternatives.

        Args:
            given_line: line of the input.
            searched_line: the same line, possibly in lower case, as it was translated.
            n_best: its translations, best first.
        """
        completed = [flag_phrases(translation, given_line.prefix, given_line.required) for translation in n_best]
        if self.calibration is not None:
            completed[0] = self.calibration.rate(searched_line.text, completed[0])
        if given_line.text != searched_line.text:
            change = case_of(given_line.text, self.src_lang)
            assert change is not None
            completed = [in_case(translation, change, self.tgt_lang) for translation in completed]
        best, *alternatives = completed
        return replace(best, alternatives=tuple(alternatives))

    def score(
        self, sources: Sequence[str], targets: Sequence[str], progress: Progress | None = None
    ) -> list[Scored | None]:
        """Return the log-probability of each token of given translations; an ensemble averages probabilities.

        Args:
            sources: source lines.
            targets: their translations; for a blank translation only eos is scored.
            progress: function called with the number of lines finished since the last call.

        Returns:
            One result per line; None if the source or target exceeds the maximum length.

        Raise DataError if the numbers of sources and targets differ.
        """
        if len(sources) != len(targets):
            raise DataError(f"{len(sources)} sources and {len(targets)} targets; give the same number of both")
        engine = self.engine
        encoded_sources = self.tokenizers.src.encode(check_lines(sources))
        src_ids = [[*ids, EOS] for ids in encoded_sources]
        tgt_ids = self.tokenizers.tgt.encode(check_lines(targets))

        # Leave out the pairs that are too long for the model.
        lengths = []
        num_tags = len(engine.target.tags)
        for src, tgt in zip(src_ids, tgt_ids, strict=True):
            src_length = num_tags + len(src)
            tgt_length = len(tgt) + 1  # with the first token
            lengths.append(max(src_length, tgt_length))
        fitting = [number for number, length in enumerate(lengths) if length <= engine.max_positions]
        report = progress or _ignore
        num_too_long = len(lengths) - len(fitting)
        report(num_too_long)

        # A batch lists positions in `fitting`.
        results: list[Scored | None] = [None] * len(lengths)
        fitting_lengths = _chosen(lengths, fitting)
        beam_tokens = engine.beam_tokens(self.decoding)
        batches = plan_batches(fitting_lengths, beam_tokens, num_rows=1)
        with evaluating(self.models):
            for batch in batches:
                numbers = _chosen(fitting, batch)
                scores = engine.score(_chosen(src_ids, numbers), _chosen(tgt_ids, numbers))
                for number, log_probs in zip(numbers, scores, strict=True):
                    self._require_finite(log_probs)
                    pieces = self.tokenizers.tgt.id_pieces(tgt_ids[number])
                    results[number] = Scored([*pieces, END], log_probs)
                report(len(numbers))
        return results

    def _require_finite(self, scores: Sequence[float]) -> None:
        """Raise MtformerError if a sentence has no score or a NaN score, which means that logits are not finite."""
        if scores and not any(map(math.isnan, scores)):
            return
        files = "".join(f"{path}: " for path in self.weights)
        precision = self.engine.dtype
        cause = f"training diverged, or its weights are too large for {precision}"
        remedy = "use another checkpoint"
        if "32" not in precision:
            remedy += " or precision fp32"
        raise MtformerError(f"{files}the model's scores are not finite; {cause}; {remedy}")


def _number_rules(data: DataConfig, tgt_lang: str) -> NumberRules:
    """Return the rules for the numbers of translations into a language, from all languages that have this direction."""
    src_langs = [src for src, tgt in data.directions if tgt == tgt_lang]
    return NumberRules.of(data.src_lang, *src_langs, tgt_lang)


def _chosen(values: Sequence[Value], numbers: Sequence[int]) -> list[Value]:
    """Return the values with these indices."""
    return [values[number] for number in numbers]


def _ignore(num_lines: int) -> None:
    """Report no progress."""


def _members(runs: Sequence[RunDir], checkpoints: Sequence[str | None]) -> list[Member]:
    """Return a member of an ensemble for each checkpoint of each run."""
    members = []
    for run in runs:
        config = load_config(run.config).config
        members += [Member(run, config, checkpoint) for checkpoint in checkpoints]
    return members


def _pick_backend(name: str | None, runs: Sequence[RunDir], device: str, precision: str | None) -> Backend:
    """Return the backend with this name; without a name, CTranslate2 for its exports and for int8 on a CPU.

    Raise ConfigError if the name is unknown.
    """
    if name is not None:
        try:
            return Backend(name)
        except ValueError:
            raise ConfigError(f"backend '{name}': unknown backend; use {' or '.join(Backend)}") from None

    is_int8_on_cpu = precision == "int8" and pick_device(device).type == "cpu"
    if is_int8_on_cpu or any((run.path / CT2_WEIGHTS).is_file() for run in runs):
        return Backend.CTRANSLATE2
    return Backend.MTFORMER


def override(decoding: DecodingConfig, **values: Any) -> DecodingConfig:
    """Return the section with these values, or raise a one-line ConfigError; None keeps the current value."""
    changes = {name: value for name, value in values.items() if value is not None}
    new_values = {**decoding.model_dump(), **changes}
    try:
        return DecodingConfig.model_validate(new_values)
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
