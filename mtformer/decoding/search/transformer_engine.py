"""The decoding backend `mtformer`: our own search with PyTorch models.

B sentences, S source length, T target length, N target positions, D model width.
"""

from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from mtformer.config.schema import DecodingConfig
from mtformer.decoding.search.beam import beam_search
from mtformer.decoding.search.candidates import best_candidates
from mtformer.decoding.search.constraints import RequiredPhrases
from mtformer.decoding.search.engine import MAX_WORKERS, Batches, Engine, NBests
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
from mtformer.decoding.search.steps import SearchBatch
from mtformer.enums import Backend
from mtformer.errors import ConfigError, DeviceError, is_out_of_memory, log
from mtformer.model.attention import record_weights
from mtformer.model.ops import padding_mask
from mtformer.model.transformer import DecoderLayer
from mtformer.text.tokenizer import EOS

POSITIONS_AT_ONCE = 2048
"""Number of target positions for which the probabilities of all V tokens are in memory at once."""


class TransformerEngine(Engine):
    """Search with one model, or with the mean probabilities of several.

    Args:
        models: models in evaluation mode, on one device, with the same vocabulary.
        precision: name of the precision in reports; None: the dtype of the weights.
    """

    name = Backend.MTFORMER

    def __init__(self, models: Sequence[InferenceModel], precision: str | None = None) -> None:
        self.models = models
        weights = models[0].transformer.output
        self.device = weights.device.type
        self.dtype = precision or str(weights.dtype).removeprefix("torch.")
        self.num_parameters = sum(_num_parameters(model) for model in models)
        self.max_positions = min(model.transformer.config.max_positions for model in models)

    def check(self, settings: DecodingConfig, required: bool = False) -> None:
        """Raise ConfigError if required phrases are combined with sampling."""
        if required and settings.draws:
            raise ConfigError("required phrases need beam search; leave sampling and mbr_samples out")

    def search(self, batches: Batches, settings: DecodingConfig) -> Generator[NBests, None, None]:
        """Yield the hypotheses of each batch, in order; `settings` determines their number per sentence.

        On a CPU, several batches are searched at once, with the threads divided among them. This is faster, because a
        search step consists of many small operations, which gain little from multithreading.
        """
        num_threads = torch.get_num_threads()
        num_workers = min(MAX_WORKERS, num_threads, len(batches))
        if num_workers <= 1 or self.device != "cpu":
            for batch in batches:
                yield self._search_within_memory(batch, settings)
            return

        search = partial(self._search_within_memory, settings=settings)
        threads_per_worker = num_threads // num_workers
        pool = ThreadPoolExecutor(num_workers, initializer=torch.set_num_threads, initargs=(threads_per_worker,))
        with pool:
            try:
                yield from pool.map(search, batches)
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
                remedy = "use a smaller beam_size or max_length_ratio"
                if self.device == "cuda":
                    remedy += ", or device cpu"
                raise DeviceError(f"out of memory on a single sentence; {remedy}") from None

        # After the handler, because the error refers to the tensors of the failed search.
        torch.cuda.empty_cache()
        half = len(segments) // 2
        log.warning("out of memory with %d sentences; continuing with %d", len(segments), half)
        first = self._search_within_memory(segments[:half], settings)
        second = self._search_within_memory(segments[half:], settings)
        return first + second

    def _search(self, segments: Sequence[Segment], settings: DecodingConfig) -> NBests:
        sources = [segment.source for segment in segments]
        src_BS, src_lengths_B = self._pad_sources(sources)
        reserved = [segment.num_required_tokens for segment in segments]
        capacity = self.max_positions - 1
        bounds = LengthBounds(settings, src_lengths_B, reserved, capacity, self.target.excluded)
        rules = _rules(segments, settings, src_BS.device)
        batch = SearchBatch(src_BS, src_lengths_B, bounds, rules, self.target.start)

        required = [segment.required for segment in segments]
        has_required = any(required)
        is_greedy = settings.beam_size == 1 and not has_required
        if settings.draws or is_greedy:
            lines = [segment.line for segment in segments]
            n_bests = generate(self.models, batch, settings, keys=lines)
        else:
            choose = RequiredPhrases(required).choose if has_required else best_candidates
            n_bests = beam_search(self.models, batch, settings, choose)

        _mark_limits(n_bests, bounds)
        return n_bests

    @torch.inference_mode()
    def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return log p(token | source, previous tokens) for each token of each target, including its eos."""
        src_BS, src_lengths_B = self._pad_sources(sources)
        start = self.target.start
        rows = [[start, *target, EOS] for target in targets]
        tgt_BT, tgt_lengths_B = pad(rows, src_BS.device)
        tgt_in_BT = tgt_BT[:, :-1]
        tgt_out_BT = tgt_BT[:, 1:]

        # The N tokens without padding, and the hidden states from which each model predicts them.
        T = tgt_out_BT.size(1)
        is_real_BT = padding_mask(tgt_lengths_B - 1, T)
        token_N = tgt_out_BT[is_real_BT]
        hidden_states = []
        for model in self.models:
            hidden_ND = model.transformer(src_BS, src_lengths_B, tgt_in_BT)[is_real_BT]
            hidden_states.append(hidden_ND)

        log_probs: list[float] = []
        for first in range(0, len(token_N), POSITIONS_AT_ONCE):
            positions = slice(first, first + POSITIONS_AT_ONCE)
            hidden_states_of_part = [hidden_ND[positions] for hidden_ND in hidden_states]
            log_probs += self._log_probs(hidden_states_of_part, token_N[positions])
        lengths = [len(target) + 1 for target in targets]
        return list(_split(log_probs, lengths))

    def _log_probs(self, hidden_states: Sequence[Tensor], token_N: Tensor) -> list[float]:
        """Return the log-probabilities of tokens, given the hidden states (N, D) of each model."""
        logits = []
        for model, hidden_ND in zip(self.models, hidden_states, strict=True):
            logits.append(model.project(hidden_ND))
        log_prob_NV = mean_log_probs(logits)
        log_prob_N1 = log_prob_NV.gather(1, token_N.unsqueeze(1))
        return log_prob_N1.squeeze(1).tolist()

    @torch.inference_mode()
    def attention(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[Tensor]:
        """Return the attention (T, S) from each target to its source, both without eos: float32, on the CPU.

        The weights are averaged over the heads of `alignment_layer` and over the models.
        """
        src_BS, src_lengths_B = self._pad_sources(sources)
        start = self.target.start
        rows = [[start, *target] for target in targets]
        tgt_in_BT, _ = pad(rows, src_BS.device)
        all_weights = []
        for model in self.models:
            decoder = model.transformer.decoder
            layer = decoder[alignment_layer(len(decoder))]
            assert isinstance(layer, DecoderLayer)
            attention = layer.cross_attention
            with record_weights([attention]) as recorded:
                model.transformer(src_BS, src_lengths_B, tgt_in_BT)
            weights_BTS = recorded[attention].mean(dim=1)
            all_weights.append(weights_BTS.float())

        mean_BTS = torch.stack(all_weights).mean(dim=0)
        num_tags = len(self.target.tags)
        without_tags_BTS = mean_BTS.cpu()[..., num_tags:]
        weights_of_pairs = []
        for weights_TS, source, target in zip(without_tags_BTS, sources, targets, strict=True):
            src_length = len(source) - 1
            without_eos_TS = weights_TS[: len(target), :src_length]
            weights_of_pairs.append(without_eos_TS.clone())
        return weights_of_pairs

    def _pad_sources(self, sources: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Return the padded sources (B, S) with tags, and their lengths (B,)."""
        tags = self.target.tags
        device = self.models[0].transformer.output.device
        return pad([[*tags, *source] for source in sources], device)


def _num_parameters(model: InferenceModel) -> int:
    return sum(parameter.numel() for parameter in model.transformer.parameters())


def _rules(segments: Sequence[Segment], settings: DecodingConfig, device: torch.device) -> list[Rule]:
    """Return the rules that the settings require. The prefix is last, so that no other rule excludes it."""
    rules: list[Rule] = []
    if settings.repetition_penalty != 1.0:
        rules.append(partial(penalize_repetition, settings.repetition_penalty))
    if settings.no_repeat_ngram_size:
        rules.append(partial(exclude_repeated_ngrams, settings.no_repeat_ngram_size))
    if any(segment.prefix for segment in segments):
        prefixes = [segment.prefix for segment in segments]
        prefix_BT, _ = pad(prefixes, device, value=-1)
        rules.append(partial(force_prefixes, prefix_BT))
    return rules


def _mark_limits(n_bests: NBests, bounds: LengthBounds) -> None:
    """Set `at_limit` of the hypotheses that have the maximum length of their sentence."""
    for n_best, max_length in zip(n_bests, bounds.max_B.tolist(), strict=True):
        for rank, hypothesis in enumerate(n_best):
            if len(hypothesis.tokens) >= max_length:
                n_best[rank] = replace(hypothesis, at_limit=True)


def _split(values: Sequence[float], lengths: Sequence[int]) -> Iterator[list[float]]:
    """Yield consecutive parts of these lengths."""
    start = 0
    for length in lengths:
        end = start + length
        yield list(values[start:end])
        start = end
