"""Decoding backends, which search hypotheses for source ids, and the planning of their batches.

B sentences, S source length, T target length.
"""

import copy
import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch
from torch import Tensor

from mtformer.config.schema import DecodingConfig
from mtformer.decoding.beam import beam_search
from mtformer.decoding.constraints import ForbiddenPhrases, Prefixes, RequiredPhrases
from mtformer.decoding.inference import Ensemble, InferenceModel, attention_of_targets, pad, score_targets
from mtformer.decoding.inputs import Segment
from mtformer.decoding.rules import LengthBounds, NoRepeatedNgrams, RepetitionPenalty, Rule, Step, Watch
from mtformer.decoding.sampling import generate
from mtformer.decoding.search import Decodable, Hypothesis
from mtformer.device import is_out_of_memory
from mtformer.errors import ConfigError, DeviceError
from mtformer.text.tags import Target

log = logging.getLogger("mtformer")
MAX_WORKERS = 4
"""Batches that a CPU searches at a time."""
Batches = Sequence[Sequence[Segment]]
NBests = list[list[Hypothesis]]
"""The hypotheses of each sentence of a batch, the best first, samples as drawn."""


class Engine(ABC):
    """A decoding backend: a model with a search."""

    device: str
    """cpu or cuda."""
    dtype: str
    """The precision of matrix products."""
    max_positions: int
    """Longest source and longest target, eos counted."""
    max_batch_tokens = sys.maxsize
    """The largest useful budget of `plan_batches`; small ones let the caller process one while others are searched."""
    target = Target()
    """The target language."""

    def with_target(self, target: Target) -> "Engine":
        """Return the engine for another target language."""
        other = copy.copy(self)
        other.target = target
        return other

    @abstractmethod
    def check(self, settings: DecodingConfig, required: bool = False, forbidden: bool = False) -> None:
        """Raise ConfigError if the engine does not support a setting, or required or forbidden phrases with it."""

    @abstractmethod
    def search(
        self, batches: Batches, settings: DecodingConfig, forbidden: Tensor | None
    ) -> Generator[NBests, None, None]:
        """Yield the hypotheses of each batch, in order: up to the number that `settings` requires.

        Args:
            batches: from `plan_batches`.
            settings: the `decoding` section.
            forbidden: an automaton for `mtformer.decoding.constraints.ForbiddenPhrases`.
        """

    @abstractmethod
    def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """See `mtformer.decoding.inference.score_targets`."""

    @abstractmethod
    def attention(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[Tensor]:
        """See `mtformer.decoding.inference.attention_of_targets`; without the columns of tags."""


def plan_batches(lengths: Sequence[int], batch_tokens: int, num_rows: int) -> list[list[int]]:
    """Return sentence numbers in batches of similar lengths, the longest first, so that a lack of memory shows at once.

    For n sentences, n x num_rows x (the longest source) is at most `batch_tokens`; a sentence that alone exceeds it is
    a batch of its own.

    Args:
        lengths: tokens of each source.
        batch_tokens: the budget.
        num_rows: beams or samples of a sentence.
    """
    order = sorted(range(len(lengths)), key=lambda sentence: lengths[sentence], reverse=True)
    batches: list[list[int]] = []
    start = 0
    while start < len(order):
        num_sentences = max(1, batch_tokens // (num_rows * max(1, lengths[order[start]])))
        batches.append(order[start : start + num_sentences])
        start += num_sentences
    return batches


class OwnEngine(Engine):
    """Our own search over one model, or over the mean of several.

    The models are in evaluation mode, on one device, with one vocabulary. `precision` is its name in reports; None: the
    dtype of the weights.
    """

    def __init__(self, models: Sequence[InferenceModel], precision: str | None = None) -> None:
        self.models = models
        self.model: Decodable = models[0] if len(models) == 1 else Ensemble(models)
        self.max_positions = min(model.transformer.config.max_positions for model in models)
        weights = models[0].transformer.output
        self.device = weights.device.type
        self.dtype = precision or str(weights.dtype).removeprefix("torch.")

    def check(self, settings: DecodingConfig, required: bool = False, forbidden: bool = False) -> None:
        if required and (settings.draws or settings.beam_groups > 1):
            raise ConfigError("required phrases need plain beam search; leave sampling and beam_groups out")

    def search(
        self, batches: Batches, settings: DecodingConfig, forbidden: Tensor | None
    ) -> Generator[NBests, None, None]:
        """Search on a CPU several batches at a time, each with its share of the threads.

        A step of search is many small operations, which gain little from threads within them.
        """
        num_threads = torch.get_num_threads()
        num_workers = min(MAX_WORKERS, num_threads, len(batches))
        if num_workers <= 1 or self.device != "cpu":
            yield from (self._search_within_memory(batch, settings, forbidden) for batch in batches)
            return
        share = num_threads // num_workers
        with ThreadPoolExecutor(num_workers, initializer=torch.set_num_threads, initargs=(share,)) as pool:
            try:
                yield from pool.map(lambda batch: self._search_within_memory(batch, settings, forbidden), batches)
            finally:
                pool.shutdown(cancel_futures=True)
                torch.set_num_threads(num_threads)

    def _search_within_memory(
        self, segments: Sequence[Segment], settings: DecodingConfig, forbidden: Tensor | None
    ) -> NBests:
        """Search a batch; if memory runs out, half of the sentences at a time."""
        try:
            return self._search(segments, settings, forbidden)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if len(segments) == 1:
                remedy = ", or device cpu" if self.device == "cuda" else ""
                message = f"out of memory on one sentence; use a smaller beam_size or max_length_ratio{remedy}"
                raise DeviceError(message) from None
        torch.cuda.empty_cache()
        half = len(segments) // 2
        log.warning("out of memory with %d sentences; continuing with %d", len(segments), half)
        halves = (segments[:half], segments[half:])
        return [n_best for some in halves for n_best in self._search_within_memory(some, settings, forbidden)]

    def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        return score_targets(self.models, self._tagged(sources), targets, self.target.start)

    def attention(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[Tensor]:
        found = attention_of_targets(self.models, self._tagged(sources), targets, self.target.start)
        return [weights_TS[:, len(self.target.tags) :] for weights_TS in found]

    def _tagged(self, sources: Sequence[Sequence[int]]) -> list[list[int]]:
        return [[*self.target.tags, *ids] for ids in sources]

    def _search(self, segments: Sequence[Segment], settings: DecodingConfig, forbidden: Tensor | None) -> NBests:
        device = self.models[0].transformer.output.device
        src, start = pad(self._tagged([segment.source for segment in segments]), device), self.target.start
        reserved = [len(segment.prefix) + sum(map(len, segment.required)) for segment in segments]
        bounds = LengthBounds(settings, src[1], reserved, self.max_positions - 1)
        rules, watch = _rules(segments, settings, forbidden, device), _watch(segments)
        required = [segment.required for segment in segments]
        if settings.draws or (settings.beam_size == 1 and not any(required)):
            keys = [segment.line for segment in segments]
            n_bests = generate(self.model, *src, settings, bounds, rules=rules, keys=keys, start=start, watch=watch)
        else:
            choose = RequiredPhrases(required).choose if any(required) else None
            n_bests = beam_search(
                self.model, *src, settings, bounds, rules=rules, choose=choose, start=start, watch=watch
            )
        return [
            [replace(one, at_limit=True) if len(one.tokens) >= longest else one for one in n_best]
            for n_best, longest in zip(n_bests, bounds.max_B.tolist(), strict=True)
        ]


def _watch(segments: Sequence[Segment]) -> Watch | None:
    """Return a function that reports the first beam of each watched segment, or None if none is watched."""
    if all(segment.watch is None for segment in segments):
        return None

    def watch(step: Step) -> None:
        first: dict[int, int] = {}
        for unit, sentence in enumerate(step.sentence_U.tolist()):
            first.setdefault(sentence, unit)
        for sentence, unit in first.items():
            on_step = segments[sentence].watch
            if on_step is not None:
                on_step(step.history_URt[unit, 0].tolist())

    return watch


def _rules(
    segments: Sequence[Segment], settings: DecodingConfig, forbidden: Tensor | None, device: torch.device
) -> list[Rule]:
    """Return the rules of the settings. The prefix comes last, so that no other rule excludes it."""
    rules: list[Rule] = []
    if settings.repetition_penalty != 1.0:
        rules.append(RepetitionPenalty(settings.repetition_penalty))
    if settings.no_repeat_ngram_size:
        rules.append(NoRepeatedNgrams(settings.no_repeat_ngram_size))
    if forbidden is not None:
        rules.append(ForbiddenPhrases(forbidden.to(device)))
    if any(segment.prefix for segment in segments):
        rules.append(Prefixes([segment.prefix for segment in segments], device))
    return rules
