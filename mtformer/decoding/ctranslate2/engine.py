"""Decoding backend that runs models converted by `mtformer.decoding.ctranslate2.conversion` in CTranslate2.

B sentences, S source length, T target length.
"""

import itertools
from collections import defaultdict, deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mtformer.config.schema import DecodingConfig
from mtformer.config.section import CTRANSLATE2
from mtformer.config.support import require_backend
from mtformer.decoding.search.engine import MAX_WORKERS, Batches, Engine, NBests
from mtformer.decoding.search.hypotheses import Hypothesis, to_hypothesis
from mtformer.decoding.search.rules import LengthBounds
from mtformer.decoding.search.segments import Segment
from mtformer.enums import Backend
from mtformer.errors import ConfigError, DeviceError
from mtformer.text.tokenizer import BOS, EOS, PAD, TokenizerPair

PRECISIONS = {None: "default", "auto": "auto", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "int8"}
"""The library's name of each precision."""
BATCHES_AHEAD = 2 * MAX_WORKERS
"""Maximum number of batches queued for the workers."""
BEAM_TOKENS = 512
"""Batch size of a worker: source tokens, including padding, times the number of beams; 1024 takes 10 % longer."""
SCORED_TOKENS = 2048
"""Source tokens, including padding, in a batch of `score`."""
OPTIONS = {"batch_type": "tokens", "max_input_length": 0}
"""Options of all calls: batch sizes are in tokens, and the library does not cut sources."""
PATIENCE = {"auto": 2, "ended": 1}
"""The library's `patience` for each supported value of `early_stopping`: a search stops when this factor times
`beam_size` hypotheses are finished."""
NO_PENALTY = 1e-9
"""Used instead of a length penalty of 0, for which the library has another stopping rule; float32 scores are equal."""


class CTranslate2Engine(Engine):
    """Backend that uses a `ctranslate2.Translator`; its decoder starts with bos.

    In fp32 with `early_stopping: ended`, beam search returns the same translations as ours; with `auto`, it may stop
    earlier. Hypotheses have the score from the search, but no scores of individual tokens. The two searches differ as
    follows: excluded tokens (pad, bos, tags, eos below the minimum length, repeated n-grams) are removed before the
    softmax, which increases the probability of all others; the repetition penalty applies to logits instead of
    log-probabilities; the first step after a prefix drops all but one of the beams that would end there; and a beam
    that reaches the maximum length does not replace one that ended a step earlier.

    With a vocabulary map, the search chooses among the candidates for all source pieces of its batch.

    Args:
        translator: the `ctranslate2.Translator`.
        tokenizers: tokenizers of the model.
        max_positions: maximum length of source and target, including eos.
        has_vocabulary_map: True if the model has a vocabulary map.
    """

    name = Backend.CTRANSLATE2
    num_parameters = None
    max_beam_tokens = 4 * BEAM_TOKENS

    def __init__(
        self, translator: Any, tokenizers: TokenizerPair, max_positions: int, has_vocabulary_map: bool = False
    ) -> None:
        self.translator = translator
        self.device = translator.device
        compute_type = translator.compute_type
        precision_of = {library_name: name for name, library_name in PRECISIONS.items() if name is not None}
        self.dtype = precision_of.get(compute_type, compute_type)
        self.max_positions = max_positions
        self.has_vocabulary_map = has_vocabulary_map
        self.src_pieces = tokenizers.src.vocabulary()
        self.tgt_pieces = tokenizers.tgt.vocabulary()
        self.tgt_ids = {piece: number for number, piece in enumerate(self.tgt_pieces)}

    def check(self, settings: DecodingConfig, required: bool = False) -> None:
        """Raise ConfigError if CTranslate2 does not support a setting or a constraint."""
        require_backend(settings, CTRANSLATE2)
        if required:
            raise unsupported("required phrases")

    def search(self, batches: Batches, settings: DecodingConfig) -> Generator[NBests, None, None]:
        """Yield the hypotheses of each batch; the library searches later batches while the caller processes one."""
        # The generator starts the search of a batch when it is asked for the next element.
        starting = (self._start(batch, settings) for batch in batches)
        started = deque(itertools.islice(starting, BATCHES_AHEAD))
        while started:
            started.extend(itertools.islice(starting, 1))
            searches = started.popleft()
            yield self._finish(searches, settings)

    def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return the log-probability of each token of each target, including its eos."""
        src_pieces = [self._src_names(source) for source in sources]
        tgt_pieces = [self._tgt_names(target) for target in targets]
        results = self.translator.score_batch(src_pieces, tgt_pieces, max_batch_size=SCORED_TOKENS, **OPTIONS)
        return [list(result.log_probs) for result in results]

    def attention(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[Tensor]:
        """Return the attention (T, S) from each target to its source, both without eos: float32, on the CPU."""
        src_pieces = [self._src_names(source) for source in sources]
        tgt_pieces = [self._tgt_names(target) for target in targets]
        longest = max(map(len, targets))

        # The targets are prefixes, after which the search adds at least one token.
        results = self.translator.translate_batch(
            src_pieces,
            tgt_pieces,
            beam_size=1,
            max_decoding_length=longest + 1,
            min_decoding_length=0,
            max_batch_size=BEAM_TOKENS,
            return_attention=True,
            return_end_token=True,
            **OPTIONS,
        )

        num_tags = len(self.target.tags)
        all_weights = []
        for result, source, target in zip(results, sources, targets, strict=True):
            weights_TS = torch.tensor(result.attention[0])
            without_tags_TS = weights_TS[:, num_tags:]
            src_length = len(source) - 1  # without eos
            all_weights.append(without_tags_TS[: len(target), :src_length])
        return all_weights

    def _start(self, segments: Sequence[Segment], settings: DecodingConfig) -> "list[_Search]":
        """Start the search of a batch.

        A library call has a single maximum length. It affects only searches that reach it, so all sentences use the
        largest maximum, and `_finish` repeats the search for the few that reach their own maximum.
        """
        num_tags = len(self.target.tags)
        src_lengths_B = torch.tensor([num_tags + len(segment.source) for segment in segments])
        reserved = [len(segment.prefix) for segment in segments]
        capacity = self.max_positions - 1
        bounds = LengthBounds(settings, src_lengths_B, reserved, capacity)
        searches = list(map(_Search, segments, bounds.min_B.tolist(), bounds.max_B.tolist()))
        largest_maximum = bounds.max_steps - 1
        self._submit(searches, settings, largest_maximum)
        return searches

    def _finish(self, searches: "Sequence[_Search]", settings: DecodingConfig) -> NBests:
        """Wait for the results of a batch and return them.

        The library's scores omit the prefix, and eos if a hypothesis is truncated. Such hypotheses are rescored.
        """
        for search in searches:
            search.n_best = search.hypotheses(self.tgt_ids, settings)

        truncated = [search for search in searches if search.is_truncated]
        self._submit(truncated, settings)
        for search in truncated:
            search.n_best = search.hypotheses(self.tgt_ids, settings)
            search.needs_scores = True

        without_scores = [search for search in searches if search.needs_scores]
        self._rescore(without_scores, settings)
        return [search.n_best for search in searches]

    def _rescore(self, searches: "Sequence[_Search]", settings: DecodingConfig) -> None:
        """Replace the scores of the hypotheses of these searches."""
        sources = []
        targets = []
        for search in searches:
            for hypothesis in search.n_best:
                sources.append(search.segment.source)
                targets.append(hypothesis.tokens)
        if not targets:
            return

        log_probs = self.score(sources, targets)
        start = 0
        for search in searches:
            end = start + len(search.n_best)
            search.rescore(log_probs[start:end], settings)
            start = end

    def _submit(self, searches: "Sequence[_Search]", settings: DecodingConfig, max_length: int | None = None) -> None:
        """Start searches with one call per combination of bounds, separately for segments with and without a prefix.

        A prefix changes the library's first free step for all sentences of the call.

        Args:
            searches: searches to start; each gets its future.
            settings: settings of the search.
            max_length: maximum length that few hypotheses reach; None: that of each search, which is known to truncate
                hypotheses.
        """
        options = self._options(settings, is_truncating=max_length is None)
        calls: dict[_Call, list[_Search]] = defaultdict(list)
        for search in searches:
            has_prefix = bool(search.segment.prefix)
            max_length_of_call = search.max_length if max_length is None else max_length
            call = _Call(search.min_length, max_length_of_call, has_prefix)
            calls[call].append(search)

        for call, searches_of_call in calls.items():
            sources = [self._src_names(search.segment.source) for search in searches_of_call]
            prefixes = [self._tgt_names(search.segment.prefix) for search in searches_of_call]
            futures = self.translator.translate_batch(
                sources,
                prefixes,
                min_decoding_length=call.min_length,
                max_decoding_length=call.max_length,
                use_vmap=self.has_vocabulary_map and not call.has_prefix,  # with both, the library raises IndexError
                asynchronous=True,
                **options,
            )
            for search, future in zip(searches_of_call, futures, strict=True):
                search.future = future

    def _options(self, settings: DecodingConfig, is_truncating: bool) -> dict[str, Any]:
        """Return the library's options for a search; `is_truncating`: the maximum length truncates hypotheses."""
        beam_size = settings.beam_size
        patience = PATIENCE[settings.early_stopping] if beam_size > 1 else 1
        num_hypotheses = beam_size
        if is_truncating:
            # Twice as many, because the truncated ones are returned too.
            patience = 2
            num_hypotheses = 2 * beam_size

        excluded = (PAD, BOS, *self.target.excluded)
        src_tokens_per_batch = BEAM_TOKENS // beam_size
        return {
            "beam_size": beam_size,
            "patience": patience,
            "num_hypotheses": num_hypotheses,
            "length_penalty": max(settings.length_penalty, NO_PENALTY),
            "repetition_penalty": settings.repetition_penalty,
            "no_repeat_ngram_size": settings.no_repeat_ngram_size,
            "suppress_sequences": [[self.tgt_pieces[token]] for token in excluded],
            "max_batch_size": max(1, src_tokens_per_batch),
            "return_scores": True,
            "return_end_token": True,
            **OPTIONS,
        }

    def _src_names(self, source: Sequence[int]) -> list[str]:
        """Return the pieces of a source with its tags, without eos, which the converted model adds."""
        without_eos = source[:-1]
        tokens = [*self.target.tags, *without_eos]
        return [self.src_pieces[token] for token in tokens]

    def _tgt_names(self, target: Sequence[int]) -> list[str]:
        """Return the pieces of a target."""
        return [self.tgt_pieces[token] for token in target]


class _Call(NamedTuple):
    """Searches that one call of the library can start have these in common."""

    min_length: int
    max_length: int
    has_prefix: bool


@dataclass
class _Search:
    """Search for the translation of one segment; lengths are in tokens without eos."""

    segment: Segment
    min_length: int
    max_length: int
    future: Any = None
    """The library's future result."""
    n_best: list[Hypothesis] = field(default_factory=list, init=False)
    """Hypotheses found so far."""
    needs_scores: bool = field(init=False)
    """True if the library's scores omit a part of the hypotheses."""

    def __post_init__(self) -> None:
        self.needs_scores = bool(self.segment.prefix)

    @property
    def is_truncated(self) -> bool:
        """Return True if a hypothesis has the maximum length."""
        return any(hypothesis.at_limit for hypothesis in self.n_best)

    def hypotheses(self, ids_of: Mapping[str, int], settings: DecodingConfig) -> list[Hypothesis]:
        """Wait for the result and return distinct hypotheses, without truncated ones if enough others have ended.

        Beams that remain empty after a prefix are duplicates or contain pad.
        """
        try:
            result = self.future.result()
        except RuntimeError as error:  # such as a missing CUDA library
            raise DeviceError(f"CTranslate2: {error}; use another device, or --backend mtformer") from error

        distinct: dict[tuple[int, ...], Hypothesis] = {}
        ended = []
        for pieces, score in zip(result.hypotheses, result.scores, strict=True):
            ids = [ids_of[piece] for piece in pieces]
            has_ended = ids[-1:] == [EOS]
            tokens = ids[:-1] if has_ended else ids
            key = tuple(tokens)
            if PAD in tokens or key in distinct:
                continue

            length = max(1, len(ids))
            log_probability = score * length**settings.length_penalty
            at_limit = len(tokens) >= self.max_length
            hypothesis = Hypothesis(tokens, score, log_probability, token_log_probabilities=[], at_limit=at_limit)
            distinct[key] = hypothesis
            if has_ended:
                ended.append(hypothesis)

        if len(ended) >= settings.beam_size:
            return ended
        return list(distinct.values())

    def rescore(self, log_probs: Sequence[list[float]], settings: DecodingConfig) -> None:
        """Replace the scores of the hypotheses by those of their tokens, and keep the best `beam_size`."""
        rescored = []
        for hypothesis, token_log_probs in zip(self.n_best, log_probs, strict=True):
            scored = to_hypothesis(hypothesis.tokens, token_log_probs, settings.length_penalty)
            rescored.append(replace(scored, at_limit=hypothesis.at_limit))
        rescored.sort(key=lambda hypothesis: -hypothesis.score)
        self.n_best = rescored[: settings.beam_size]


def unsupported(feature: str) -> ConfigError:
    """Return the error for a feature that CTranslate2 does not support."""
    return ConfigError(f"{feature}: not supported by CTranslate2; leave it out, or use --backend mtformer")
