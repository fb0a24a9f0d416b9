"""Decoding backends, which search for translations of source ids, and the function that plans their batches.

B sentences, S source length, T target length.
"""

import copy
import sys
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from mtformer.config.schema import DecodingConfig
from mtformer.decoding.search.beam import beam_search, best_candidates
from mtformer.decoding.search.candidates import Hypothesis
from mtformer.decoding.search.constraints import RequiredPhrases
from mtformer.decoding.search.inference import InferenceModel, alignment_layer, mean_log_probs, pad
from mtformer.decoding.search.rules import (
    LengthBounds,
    Rule,
    exclude_repeated_ngrams,
    force_prefixes,
    penalize_repetition,
)
from mtformer.decoding.search.sampling import generate
from mtformer.decoding.search.segments import Segment
from mtformer.device import is_out_of_memory
from mtformer.errors import ConfigError, DeviceError, log
from mtformer.model.attention import record_weights
from mtformer.model.ops import padding_mask
from mtformer.model.transformer import DecoderLayer
from mtformer.text.tags import Target
from mtformer.text.tokenizer import EOS

MAX_WORKERS = 4  # maximum number of batches searched at once on a CPU
BATCH_TOKENS = {"cpu": 8192, "cuda": 65_536}  # default batch size in tokens
POSITIONS_AT_ONCE = 2048  # number of target positions for which the probabilities of all V tokens are in memory at once
Batches = Sequence[Sequence[Segment]]
NBests = list[list[Hypothesis]]
"""Hypotheses of each sentence of a batch: best first, or samples in the order drawn."""


def plan_batches(lengths: Sequence[int], batch_tokens: int, num_rows: int) -> list[list[int]]:
    """Group sentences of similar lengths into batches of sentence indices.

    The longest sentences come first, so that out-of-memory errors occur early. For n sentences with `num_rows` beams or
    samples each, n x num_rows x (longest source) is at most `batch_tokens`, except for a batch of one sentence.
    """
    order = sorted(range(len(lengths)), key=lambda sentence: lengths[sentence], reverse=True)
    batches: list[list[int]] = []
    start = 0
    while start < len(order):
        num_sentences = max(1, batch_tokens // (num_rows * max(1, lengths[order[start]])))
        batches.append(order[start : start + num_sentences])
        start += num_sentences
    return batches


class Engine:
    """Decoding backend: our own search with one model, or with the mean probabilities of several.

    The models are in evaluation mode, on one device, and share a vocabulary. `precision` is the name shown in reports;
    None: the dtype of the weights. `CTranslate2Engine` replaces the methods for another library.
    """

    max_batch_tokens = sys.maxsize
    """Upper limit of `batch_tokens`; small batches let the caller process one while others are being searched."""
    target = Target()

    def __init__(self, models: Sequence[InferenceModel], precision: str | None = None) -> None:
        self.models = models
        self.max_positions = min(model.transformer.config.max_positions for model in models)
        """Maximum length of source and target, including eos."""
        weights = models[0].transformer.output
        self.device = weights.device.type
        self.dtype = precision or str(weights.dtype).removeprefix("torch.")

    def batch_tokens(self, settings: DecodingConfig) -> int:
        """Return the batch size in tokens: the configured one, or the default for the device."""
        return settings.batch_tokens or BATCH_TOKENS.get(self.device, BATCH_TOKENS["cpu"])

    def with_target(self, target: Target) -> "Engine":
        """Return a copy of the engine for another target language."""
        other = copy.copy(self)
        other.target = target
        return other

    def check(self, settings: DecodingConfig, required: bool = False) -> None:
        """Raise ConfigError if the backend does not support a setting, alone or with required phrases."""
        if required and settings.draws:
            raise ConfigError("required phrases need beam search; leave sampling out")

    def search(self, batches: Batches, settings: DecodingConfig) -> Generator[NBests, None, None]:
        """Yield the hypotheses of each batch, in order; `settings` determines their number per sentence.

        On a CPU, several batches are searched at once, with the threads divided among them. This is faster, because a
        search step consists of many small operations, which gain little from multithreading.
        """
        num_threads = torch.get_num_threads()
        num_workers = min(MAX_WORKERS, num_threads, len(batches))
        if num_workers <= 1 or self.device != "cpu":
            yield from (self._search_within_memory(batch, settings) for batch in batches)
            return
        share = num_threads // num_workers
        with ThreadPoolExecutor(num_workers, initializer=torch.set_num_threads, initargs=(share,)) as pool:
            try:
                yield from pool.map(lambda batch: self._search_within_memory(batch, settings), batches)
            finally:
                pool.shutdown(cancel_futures=True)
                torch.set_num_threads(num_threads)

    def _search_within_memory(self, segments: Sequence[Segment], settings: DecodingConfig) -> NBests:
        """Search a batch; if memory runs out, search its two halves separately."""
        try:
            return self._search(segments, settings)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if len(segments) == 1:
                remedy = ", or device cpu" if self.device == "cuda" else ""
                message = f"out of memory on a single sentence; use a smaller beam_size or max_length_ratio{remedy}"
                raise DeviceError(message) from None
        torch.cuda.empty_cache()
        half = len(segments) // 2
        log.warning("out of memory with %d sentences; continuing with %d", len(segments), half)
        halves = (segments[:half], segments[half:])
        return [n_best for some in halves for n_best in self._search_within_memory(some, settings)]

    @torch.inference_mode()
    def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return log p(token | source, previous tokens) for each token of each target, including its eos.

        Sources end with eos; targets have neither bos nor eos.
        """
        src_BS, src_lengths_B = self._sources(sources)
        tgt_BT, lengths_B = pad([[self.target.start, *target, EOS] for target in targets], src_BS.device)
        is_real_BT = padding_mask(lengths_B - 1, tgt_BT.size(1) - 1)
        hidden_ND = [model.transformer(src_BS, src_lengths_B, tgt_BT[:, :-1])[is_real_BT] for model in self.models]
        next_N = tgt_BT[:, 1:][is_real_BT]
        found = []
        for first in range(0, len(next_N), POSITIONS_AT_ONCE):
            here = slice(first, first + POSITIONS_AT_ONCE)
            logits = [model.project(hidden[here]) for model, hidden in zip(self.models, hidden_ND, strict=True)]
            found += mean_log_probs(logits).gather(1, next_N[here].unsqueeze(1)).squeeze(1).tolist()
        remaining = iter(found)
        return [[next(remaining) for _ in range(len(target) + 1)] for target in targets]

    @torch.inference_mode()
    def attention(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[Tensor]:
        """Return the attention (T, S) from each target to its source, both without eos: float32, on the CPU.

        The weights are averaged over the heads of `alignment_layer` and over the models. For arguments see `score`.
        """
        src_BS, src_lengths_B = self._sources(sources)
        tgt_in_BT, _ = pad([[self.target.start, *target] for target in targets], src_BS.device)
        weights = []
        for model in self.models:
            decoder = model.transformer.decoder
            layer = decoder[alignment_layer(len(decoder))]
            assert isinstance(layer, DecoderLayer)
            with record_weights([layer.cross_attention]) as recorded:
                model.transformer(src_BS, src_lengths_B, tgt_in_BT)
            weights.append(recorded[layer.cross_attention].mean(dim=1).float())
        mean_BTS = torch.stack(weights).mean(dim=0).cpu()[..., len(self.target.tags) :]
        pairs = zip(mean_BTS, sources, targets, strict=True)
        return [weights_TS[: len(target), : len(source) - 1].clone() for weights_TS, source, target in pairs]

    def _sources(self, sources: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Return the padded sources with tags, and their lengths."""
        return pad([[*self.target.tags, *ids] for ids in sources], self.models[0].transformer.output.device)

    def _search(self, segments: Sequence[Segment], settings: DecodingConfig) -> NBests:
        src, start = self._sources([segment.source for segment in segments]), self.target.start
        reserved = [len(segment.prefix) + sum(map(len, segment.required)) for segment in segments]
        bounds = LengthBounds(settings, src[1], reserved, self.max_positions - 1, self.target.excluded)
        rules = _rules(segments, settings, src[0].device)
        required = [segment.required for segment in segments]
        if settings.draws or (settings.beam_size == 1 and not any(required)):
            keys = [segment.line for segment in segments]
            n_bests = generate(self.models, *src, settings, bounds, rules=rules, keys=keys, start=start)
        else:
            choose = RequiredPhrases(required).choose if any(required) else best_candidates
            n_bests = beam_search(self.models, *src, settings, bounds, rules=rules, choose=choose, start=start)
        return [
            [replace(one, at_limit=True) if len(one.tokens) >= longest else one for one in n_best]
            for n_best, longest in zip(n_bests, bounds.max_B.tolist(), strict=True)
        ]


def _rules(segments: Sequence[Segment], settings: DecodingConfig, device: torch.device) -> list[Rule]:
    """Return the rules that the settings require. The prefix is last, so that no other rule excludes it."""
    rules: list[Rule] = []
    if settings.repetition_penalty != 1.0:
        rules.append(partial(penalize_repetition, settings.repetition_penalty))
    if settings.no_repeat_ngram_size:
        rules.append(partial(exclude_repeated_ngrams, settings.no_repeat_ngram_size))
    if any(segment.prefix for segment in segments):
        prefix_BT, _ = pad([segment.prefix for segment in segments], device, value=-1)
        rules.append(partial(force_prefixes, prefix_BT))
    return rules
