"""Decoding backend that runs models converted by `mtformer.decoding.ctranslate2.conversion` in CTranslate2.

B sentences, S source length, T target length.
"""

import itertools
from collections import defaultdict, deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mtformer.config.schema import DecodingConfig
from mtformer.decoding.search.engine import MAX_WORKERS, Batches, Engine, NBests
from mtformer.decoding.search.hypotheses import Hypothesis, to_hypothesis
from mtformer.decoding.search.rules import LengthBounds
from mtformer.decoding.search.segments import Segment
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

    name = "ctranslate2"
    num_parameters = None
    max_beam_tokens = 4 * BEAM_TOKENS

    def __init__(
        self, translator: Any, tokenizers: TokenizerPair, max_positions: int, has_vocabulary_map: bool = False
    ) -> None:
        self.translator = translator
        self.device = translator.device
        precision_of = {kind: name for name, kind in PRECISIONS.items() if name is not None}
        self.dtype = precision_of.get(translator.compute_type, translator.compute_type)
        self.max_positions = max_positions
        self.has_vocabulary_map = has_vocabulary_map
        self.src_pieces = tokenizers.src.vocabulary()
        self.tgt_pieces = tokenizers.tgt.vocabulary()
        self.tgt_ids = {piece: number for number, piece in enumerate(self.tgt_pieces)}

    def check(self, settings: DecodingConfig, required: bool = False) -> None:
        """Raise ConfigError if CTranslate2 does not support a setting or a constraint."""
        if settings.draws:
            raise unsupported("sampling or mbr_samples")
        if settings.early_stopping not in PATIENCE and settings.beam_size > 1:
            supported = " and ".join(PATIENCE)
            remedy = "set one of them, or use --backend mtformer"
            raise ConfigError(f"early_stopping: CTranslate2 supports only {supported}; {remedy}")
        if required:
            raise unsupported("required phrases")

    def search(self, batches: Batches, settings: DecodingConfig) -> Generator[NBests, None, None]:
        """Yield the hypotheses of each batch; the library searches later batches while the caller processes one."""
        remaining = (self._start(batch, settings) for batch in batches)
        started = deque(itertools.islice(remaining, BATCHES_AHEAD))
        while started:
            started.extend(itertools.islice(remaining, 1))
            yield self._finish(started.popleft(), settings)

    def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return the log-probability of each token of each target, including its eos."""
        results = self.translator.score_batch(
            [self._src_names(source) for source in sources],
            [self._tgt_names(target) for target in targets],
            max_batch_size=SCORED_TOKENS,
            **OPTIONS,
        )
        return [list(result.log_probs) for result in results]

    def attention(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[Tensor]:
        """Return the attention (T, S) from each target to its source, both without eos: float32, on the CPU."""
        results = self.translator.translate_batch(
            [self._src_names(source) for source in sources],
            [self._tgt_names(target) for target in targets],  # as prefixes, after which the search only adds eos
            beam_size=1,
            max_decoding_length=max(map(len, targets)) + 1,
            min_decoding_length=0,
            max_batch_size=BEAM_TOKENS,
            return_attention=True,
            return_end_token=True,
            **OPTIONS,
        )

        first = len(self.target.tags)
        return [
            torch.tensor(result.attention[0])[: len(target), first : first + len(source) - 1]
            for result, source, target in zip(results, sources, targets, strict=True)
        ]

    def _start(self, segments: Sequence[Segment], settings: DecodingConfig) -> "list[_Search]":
        """Start the search of a batch.

        A library call has a single maximum length. It affects only searches that reach it, so all sentences use the
        largest maximum, and `_finish` repeats the search for the few that reach their own maximum.
        """
        src_lengths_B = torch.tensor([len(self.target.tags) + len(segment.source) for segment in segments])
        reserved = [len(segment.prefix) for segment in segments]
        bounds = LengthBounds(settings, src_lengths_B, reserved, self.max_positions - 1)
        searches = [
            _Search(segment, min_length, max_length)
            for segment, min_length, max_length in zip(
                segments, bounds.min_B.tolist(), bounds.max_B.tolist(), strict=True
            )
        ]
        self._submit(searches, settings, bounds.max_steps - 1)
        return searches

    def _finish(self, searches: "Sequence[_Search]", settings: DecodingConfig) -> NBests:
        """Wait for the results of a batch and return them.

        The library's scores omit the prefix, and eos if a hypothesis is truncated. Such hypotheses are rescored.
        """
        n_bests = [search.hypotheses(self.tgt_ids, settings) for search in searches]

        truncated = [number for number, n_best in enumerate(n_bests) if _has_truncated(n_best)]
        self._submit([searches[number] for number in truncated], settings)
        for number in truncated:
            n_bests[number] = searches[number].hypotheses(self.tgt_ids, settings)

        with_prefix = [number for number, search in enumerate(searches) if search.segment.prefix]
        self._rescore(searches, n_bests, sorted({*truncated, *with_prefix}), settings)
        return n_bests

    def _rescore(
        self, searches: "Sequence[_Search]", n_bests: NBests, numbers: Sequence[int], settings: DecodingConfig
    ) -> None:
        """Replace the scores in `n_bests[number]` for these numbers, and keep the best `beam_size` hypotheses."""
        pairs = []
        for number in numbers:
            pairs += [(number, hypothesis) for hypothesis in n_bests[number]]
        if not pairs:
            return

        sources = [searches[number].segment.source for number, _ in pairs]
        log_probs = self.score(sources, [hypothesis.tokens for _, hypothesis in pairs])
        rescored: dict[int, list[Hypothesis]] = defaultdict(list)
        for (number, hypothesis), of_tokens in zip(pairs, log_probs, strict=True):
            scored = to_hypothesis(hypothesis.tokens, of_tokens, settings.length_penalty)
            rescored[number].append(replace(scored, at_limit=hypothesis.at_limit))

        for number, hypotheses in rescored.items():
            hypotheses.sort(key=lambda hypothesis: -hypothesis.score)
            n_bests[number] = hypotheses[: settings.beam_size]

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
        calls: dict[tuple[int, int, bool], list[_Search]] = defaultdict(list)
        for search in searches:
            longest = search.max_length if max_length is None else max_length
            calls[search.min_length, longest, bool(search.segment.prefix)].append(search)

        for (shortest, longest, has_prefix), members in calls.items():
            futures = self.translator.translate_batch(
                [self._src_names(search.segment.source) for search in members],
                [self._tgt_names(search.segment.prefix) for search in members],
                min_decoding_length=shortest,
                max_decoding_length=longest,
                use_vmap=self.has_vocabulary_map and not has_prefix,  # with both, the library raises IndexError
                asynchronous=True,
                **options,
            )
            for search, future in zip(members, futures, strict=True):
                search.future = future

    def _options(self, settings: DecodingConfig, is_truncating: bool) -> dict[str, Any]:
        """Return the library's options for a search; `is_truncating`: the maximum length truncates hypotheses."""
        patience = PATIENCE[settings.early_stopping] if settings.beam_size > 1 else 1
        num_hypotheses = settings.beam_size
        if is_truncating:
            # Twice as many, because the truncated ones are returned too.
            patience = 2
            num_hypotheses = 2 * settings.beam_size

        excluded = (PAD, BOS, *self.target.excluded)
        return {
            "beam_size": settings.beam_size,
            "patience": patience,
            "num_hypotheses": num_hypotheses,
            "length_penalty": max(settings.length_penalty, NO_PENALTY),
            "repetition_penalty": settings.repetition_penalty,
            "no_repeat_ngram_size": settings.no_repeat_ngram_size,
            "suppress_sequences": [[self.tgt_pieces[token]] for token in excluded],
            "max_batch_size": max(1, BEAM_TOKENS // settings.beam_size),
            "return_scores": True,
            "return_end_token": True,
            **OPTIONS,
        }

    def _src_names(self, source: Sequence[int]) -> list[str]:
        """Return the pieces of a source with its tags, without eos, which the converted model adds."""
        return [self.src_pieces[token] for token in (*self.target.tags, *source[:-1])]

    def _tgt_names(self, target: Sequence[int]) -> list[str]:
        """Return the pieces of a target."""
        return [self.tgt_pieces[token] for token in target]


@dataclass
class _Search:
    """Search for the translation of one segment; lengths are in tokens without eos."""

    segment: Segment
    min_length: int
    max_length: int
    future: Any = None

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

            log_probability = score * max(1, len(ids)) ** settings.length_penalty
            at_limit = len(tokens) >= self.max_length
            distinct[key] = Hypothesis(tokens, score, log_probability, [], at_limit)
            if has_ended:
                ended.append(distinct[key])
        return ended if len(ended) >= settings.beam_size else list(distinct.values())


def _has_truncated(n_best: Sequence[Hypothesis]) -> bool:
    return any(hypothesis.at_limit for hypothesis in n_best)


def unsupported(feature: str) -> ConfigError:
    """Return the error for a feature that CTranslate2 does not support."""
    return ConfigError(f"{feature}: not supported by CTranslate2; leave it out, or use --backend mtformer")
