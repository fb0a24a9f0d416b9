"""Search as the settings ask for it: source ids in, hypotheses out.

B sentences, S source length, T target length.
"""

import copy
import logging
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from mtformer.config.schema import DecodingConfig
from mtformer.decoding.beam import Chooser, Diverse, beam_search, best_candidates
from mtformer.decoding.constraints import ForbiddenPhrases, Phrase, Prefixes, RequiredPhrases
from mtformer.decoding.inference import Ensemble, InferenceModel
from mtformer.decoding.rules import Limits, NoRepeatedNgrams, RepetitionPenalty, Rule, Step, Watch
from mtformer.decoding.sampling import Sampling, greedy, sample
from mtformer.decoding.scorer import attention_of_targets, pad, score_targets
from mtformer.decoding.search import Decodable, Hypothesis
from mtformer.errors import DeviceError
from mtformer.text.tags import Target

log = logging.getLogger("mtformer")


@dataclass(frozen=True)
class Request:
    """One sentence to translate.

    Args:
        source: ids, eos last.
        key: the place of its line in the user's input, for samples.
        prefix: ids that the translation begins with.
        required: ids of phrases that it must hold.
        watch: called at each step of our own search with the ids of what is best so far, from the thread that searches.
    """

    source: Sequence[int]
    key: int = 0
    prefix: Sequence[int] = ()
    required: Sequence[Phrase] = ()
    watch: Callable[[list[int]], object] | None = None


class Engine(Protocol):
    """What finds hypotheses."""

    device: str
    """Where it computes: cpu or cuda."""
    dtype: str
    """In what it multiplies."""
    max_positions: int
    """Longest source and longest target, eos counted."""
    asked: Target
    """The language that it translates into."""

    def asking(self, asked: Target) -> "Engine":
        """The same for another language."""

    def search(
        self, requests: Sequence[Request], settings: DecodingConfig, forbidden: Tensor | None
    ) -> list[list[Hypothesis]]:
        """Of each sentence as many hypotheses as `settings` asks to compute, or fewer; best first, samples as drawn."""

    def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """See `mtformer.decoding.scorer.score_targets`."""

    def attention(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[Tensor]:
        """See `mtformer.decoding.scorer.attention_of_targets`; without the columns of tags."""


MOST_WORKERS = 4
"""Threads that search at a time; what they do between products they do one after the other."""


def search_batches(
    engine: Engine,
    batches: Sequence[Sequence[Request]],
    settings: DecodingConfig,
    forbidden: Tensor | None,
) -> Generator[list[list[Hypothesis]], None, None]:
    """`engine.search` of each batch, in order; on a CPU several at a time, each with its share of the threads.

    A step of search is many small operations, which gain little from threads within them.
    """
    num_threads = torch.get_num_threads()
    num_workers = min(MOST_WORKERS, num_threads, len(batches)) if isinstance(engine, OwnEngine) else 1
    if num_workers <= 1 or engine.device != "cpu":
        yield from (engine.search(batch, settings, forbidden) for batch in batches)
        return
    share = num_threads // num_workers
    with ThreadPoolExecutor(num_workers, initializer=torch.set_num_threads, initargs=(share,)) as pool:
        try:
            yield from pool.map(lambda batch: engine.search(batch, settings, forbidden), batches)
        finally:
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(num_threads)


class OwnEngine:
    """Our own search over one model, or over the mean of several.

    Args:
        models: in evaluation mode, on one device, with one vocabulary.
        precision: what reports call it; None: the dtype of the weights.
    """

    def __init__(self, models: Sequence[InferenceModel], precision: str | None = None) -> None:
        self.models = models
        self.model: Decodable[Any] = models[0] if len(models) == 1 else Ensemble(models)
        self.max_positions = min(model.transformer.config.max_positions for model in models)
        weights = models[0].transformer.output
        self.device = weights.device.type
        self.dtype = precision or str(weights.dtype).removeprefix("torch.")
        self.asked = Target()

    def asking(self, asked: Target) -> "OwnEngine":
        """As in `Engine`."""
        other = copy.copy(self)
        other.asked = asked
        return other

    def search(
        self, requests: Sequence[Request], settings: DecodingConfig, forbidden: Tensor | None
    ) -> list[list[Hypothesis]]:
        """As in `Engine`; when the GPU's memory does not suffice, half of the sentences at a time."""
        try:
            return self._search(requests, settings, forbidden)
        except torch.OutOfMemoryError:
            if len(requests) == 1:
                message = "out of memory on one sentence; use a smaller beam_size or max_length_ratio, or device cpu"
                raise DeviceError(message) from None
        torch.cuda.empty_cache()
        half = len(requests) // 2
        log.warning("out of memory with %d sentences; going on with %d", len(requests), half)
        return [h for part in (requests[:half], requests[half:]) for h in self.search(part, settings, forbidden)]

    def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """As in `Engine`."""
        return score_targets(self.models, self._tagged(sources), targets, self.asked.start)

    def attention(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[Tensor]:
        """As in `Engine`."""
        found = attention_of_targets(self.models, self._tagged(sources), targets, self.asked.start)
        return [weights_TS[:, len(self.asked.tags) :] for weights_TS in found]

    def _tagged(self, sources: Sequence[Sequence[int]]) -> list[list[int]]:
        return [[*self.asked.tags, *ids] for ids in sources]

    def _search(
        self, requests: Sequence[Request], settings: DecodingConfig, forbidden: Tensor | None
    ) -> list[list[Hypothesis]]:
        device = self.models[0].transformer.output.device
        src, start = pad(self._tagged([request.source for request in requests]), device), self.asked.start
        reserved = [len(request.prefix) + sum(map(len, request.required)) for request in requests]
        limits = Limits.of(settings, reserved, self.max_positions - 1)
        most = limits.bounds(src[1])[1].tolist()
        rules = _rules(requests, settings, forbidden, device)
        alpha, watch = settings.length_penalty, _watch(requests)
        if settings.draws:
            sampling = Sampling(
                num_samples=settings.num_rows,
                keys=[request.key for request in requests],
                seed=settings.seed,
                temperature=settings.temperature,
                top_k=settings.top_k,
                top_p=settings.top_p,
            )
            return _marked(sample(self.model, *src, limits, sampling, alpha, rules, start, watch), most)
        choose: Chooser = best_candidates
        if settings.beam_groups > 1:
            choose = Diverse(settings.beam_groups, settings.diversity_penalty)
        if any(request.required for request in requests):
            choose = RequiredPhrases([request.required for request in requests]).choose
        elif settings.beam_size == 1:
            return _marked([[one] for one in greedy(self.model, *src, limits, alpha, rules, start, watch)], most)
        n_bests = beam_search(
            self.model,
            *src,
            settings.beam_size,
            alpha,
            limits,
            rules=rules,
            choose=choose,
            num_groups=settings.beam_groups,
            early_stopping=settings.early_stopping,
            start=start,
            watch=watch,
        )
        return _marked(n_bests, most)


def _marked(n_bests: list[list[Hypothesis]], most: list[int]) -> list[list[Hypothesis]]:
    """The same, with a mark on those that are as long as they may be."""
    return [
        [replace(one, at_limit=True) if len(one.tokens) >= longest else one for one in n_best]
        for n_best, longest in zip(n_bests, most, strict=True)
    ]


def _watch(requests: Sequence[Request]) -> Watch | None:
    """Tells those requests that are watched what the first beam of their first unit has."""
    if all(request.watch is None for request in requests):
        return None

    def watch(step: Step) -> None:
        first: dict[int, int] = {}
        for unit, sentence in enumerate(step.sentence_U.tolist()):
            first.setdefault(sentence, unit)
        for sentence, unit in first.items():
            tell = requests[sentence].watch
            if tell is not None:
                tell(step.history_URt[unit, 0].tolist())

    return watch


def _rules(
    requests: Sequence[Request], settings: DecodingConfig, forbidden: Tensor | None, device: torch.device
) -> list[Rule]:
    """The prefix comes last: nothing keeps it out."""
    rules: list[Rule] = []
    if settings.repetition_penalty != 1.0:
        rules.append(RepetitionPenalty(settings.repetition_penalty))
    if settings.no_repeat_ngram_size:
        rules.append(NoRepeatedNgrams(settings.no_repeat_ngram_size))
    if forbidden is not None:
        rules.append(ForbiddenPhrases(forbidden.to(device)))
    if any(request.prefix for request in requests):
        rules.append(Prefixes([request.prefix for request in requests], device))
    return rules
