"""Greedy and beam search over anything that can encode a source and make one step.

B sentences, S source length, R beams a sentence, N = B x R rows (row b*R + r), T target length, V vocabulary,
K candidates, Q places for ended hypotheses.
"""

import math
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from mtformer.decoding.topk import top_candidates
from mtformer.text.tokenizer import BOS, EOS, PAD


class Cache(Protocol):
    """What a model remembers between two steps."""

    def reorder(self, rows_N: Tensor, /) -> None:
        """Row i goes on from the history of rows_N[i], a row of the same sentence."""

    def keep(self, sentences_B: Tensor, /) -> None:
        """Only these sentences stay in the batch, in this order, each with all its rows."""


MemoryT = TypeVar("MemoryT")
CacheT = TypeVar("CacheT", bound=Cache)


class Decodable(Protocol[MemoryT, CacheT]):
    """What search asks of a model."""

    def encode(self, src_BS: Tensor, src_lengths_B: Tensor, /) -> MemoryT:
        """Reads source ids (eos at the end, padded on the right); lengths count eos."""

    def start(self, memory: MemoryT, num_beams: int, max_length: int, /) -> CacheT:
        """An empty cache for at most `max_length` steps of B x num_beams rows."""

    def step(self, token_N: Tensor, cache: CacheT, /) -> Tensor:
        """Logits (N, V), in any float dtype, of the token after token_N."""


@dataclass(frozen=True)
class Hypothesis:
    """One translation in token ids, without bos and eos.

    `log_probability` is the sum over its tokens, eos included. `score` is log_probability / length^alpha, where the
    length counts eos: the normalisation of CTranslate2 (Wu et al. 2016, equation 14, without its constant 5).
    """

    tokens: list[int]
    score: float
    log_probability: float


@dataclass(frozen=True)
class Limits:
    """How long a translation may be, in tokens without eos, relative to its source's tokens without eos.

    At least floor(min_length_ratio x source), at most ceil(max_length_ratio x source) + 10, and never above
    `max_tokens` (what the model has positions for). At its upper limit a hypothesis is closed by eos.
    """

    max_length_ratio: float = 2.0
    min_length_ratio: float = 0.0
    max_tokens: int | None = None

    def bounds(self, src_lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """Fewest and most tokens (B,) of each sentence's translation; the given lengths count eos."""
        src_B = (src_lengths_B - 1).double()
        max_B = (src_B * self.max_length_ratio).ceil().long() + 10
        if self.max_tokens is not None:
            max_B = max_B.clamp(max=self.max_tokens)
        return torch.minimum((src_B * self.min_length_ratio).floor().long(), max_B), max_B


class _Bounds:
    """The limits of the sentences in the batch; Python's numbers save asking the device at each step."""

    def __init__(self, min_B: Tensor, max_B: Tensor) -> None:
        self.min_B, self.max_B = min_B, max_B
        self.longest_min, self.shortest_max, self.longest_max = int(min_B.max()), int(max_B.min()), int(max_B.max())

    def select(self, keep_M: Tensor) -> None:
        self.min_B, self.max_B = self.min_B[keep_M], self.max_B[keep_M]

    def apply(self, log_prob_BRV: Tensor, position: int) -> None:
        """Makes impossible, in place, what must not come as token number `position` (from 0)."""
        log_prob_BRV[..., PAD] = -math.inf
        log_prob_BRV[..., BOS] = -math.inf
        eos_BR = log_prob_BRV[..., EOS]
        if position < self.longest_min:
            eos_BR.masked_fill_((position < self.min_B).unsqueeze(1), -math.inf)
        if position >= self.shortest_max:
            eos_BR = eos_BR.clone()
            log_prob_BRV.masked_fill_((position >= self.max_B).view(-1, 1, 1), -math.inf)
            log_prob_BRV[..., EOS] = eos_BR


def _log_probs(logits_NV: Tensor, R: int) -> Tensor:
    """(B, R, V) in float32 whatever the model computes in, over the whole vocabulary: limits do not rescale scores."""
    return torch.log_softmax(logits_NV, dim=-1, dtype=torch.float32).view(-1, R, logits_NV.size(-1))


def _may_leave(done_B: Tensor, position: int) -> Tensor | None:
    """The sentences to keep, when so many are done that computing on costs more than copying the cache; else None.

    Asking a GPU makes it wait, so there it is done at every fourth step only.
    """
    if done_B.device.type != "cpu" and position % 4 != 3:
        return None
    keep_M = (~done_B).nonzero().squeeze(1)
    num_done = done_B.size(0) - keep_M.size(0)
    return keep_M if num_done * 8 >= done_B.size(0) else None


@torch.inference_mode()
def greedy(
    model: Decodable[MemoryT, CacheT],
    src_BS: Tensor,
    src_lengths_B: Tensor,
    limits: Limits,
    length_penalty: float = 1.0,
) -> list[Hypothesis]:
    """The most probable token at each step, for each sentence of the batch.

    Args:
        model: in evaluation mode.
        src_BS: int64, each row ends with eos, padded on the right.
        src_lengths_B: int64, eos counted.
        limits: shortest and longest translation.
        length_penalty: alpha of `Hypothesis.score`; it does not change the translation.
    """
    bounds = _Bounds(*limits.bounds(src_lengths_B))
    B, max_steps, device = src_BS.size(0), bounds.longest_max + 1, src_BS.device
    cache = model.start(model.encode(src_BS, src_lengths_B), 1, max_steps)
    tokens_BT = torch.full((B, max_steps), PAD, device=device)
    log_prob_B = torch.zeros(B, device=device)
    sentence_M = torch.arange(B, device=device)
    token_M = torch.full((B,), BOS, device=device)
    done_M = torch.zeros(B, dtype=torch.bool, device=device)
    for position in range(max_steps):
        log_prob_M1V = _log_probs(model.step(token_M, cache), 1)
        bounds.apply(log_prob_M1V, position)
        best_M1, _, token_M1 = top_candidates(log_prob_M1V, log_prob_M1V.new_zeros(token_M.size(0), 1), 1)
        token_M = token_M1.squeeze(1).masked_fill(done_M, PAD)
        tokens_BT[sentence_M, position] = token_M
        log_prob_B[sentence_M] += best_M1.squeeze(1).masked_fill(done_M, 0.0)
        done_M = done_M | (token_M == EOS)
        keep = _may_leave(done_M, position)
        if keep is not None:
            if keep.size(0) == 0:
                break
            cache.keep(keep)
            bounds.select(keep)
            sentence_M, token_M, done_M = sentence_M[keep], token_M[keep], done_M[keep]
    length_B = (tokens_BT != PAD).sum(dim=1)
    return _hypotheses(tokens_BT, length_B, log_prob_B, length_penalty)


@torch.inference_mode()
def beam_search(
    model: Decodable[MemoryT, CacheT],
    src_BS: Tensor,
    src_lengths_B: Tensor,
    beam_size: int,
    length_penalty: float,
    limits: Limits,
) -> list[list[Hypothesis]]:
    """The best translations of each sentence that a beam of `beam_size` finds, best first, at most `beam_size`.

    A hypothesis ends when its eos is among the best R candidates of a step; beams that have not ended take its place,
    so R stay alive. A sentence is done when R hypotheses have ended (as in CTranslate2 and fairseq). To go on until no
    living beam can win would make search last nearly to the length limit: with alpha > 0 a longer hypothesis may
    always still improve. What has ended when the sentence is done competes by score.

    Args:
        model: in evaluation mode.
        src_BS: int64, each row ends with eos, padded on the right.
        src_lengths_B: int64, eos counted.
        beam_size: R.
        length_penalty: alpha of `Hypothesis.score`.
        limits: shortest and longest translation.
    """
    bounds = _Bounds(*limits.bounds(src_lengths_B))
    B, max_steps = src_BS.size(0), bounds.longest_max + 1
    cache = model.start(model.encode(src_BS, src_lengths_B), beam_size, max_steps)
    beams = _Beams(B, beam_size, max_steps, src_BS.device)
    found: list[list[Hypothesis]] = [[] for _ in range(B)]
    for position in range(max_steps):
        log_prob_BRV = _log_probs(model.step(beams.last_N, cache), beam_size)
        bounds.apply(log_prob_BRV, position)
        candidates = top_candidates(log_prob_BRV, beams.score_BR, 2 * beam_size)
        beams.end(*candidates, position)
        beams.done_B |= position >= bounds.max_B
        parent_BR = beams.go_on(*candidates, position)
        keep = _may_leave(beams.done_B, position)
        if keep is not None:
            if keep.size(0) == 0:
                break
            beams.collect(found, length_penalty)
            cache.keep(keep)
            bounds.select(keep)
            beams.select(keep)
            parent_BR = parent_BR[keep]
        if beam_size > 1:
            cache.reorder(_rows(parent_BR))
    beams.collect(found, length_penalty)
    return found


def _rows(parent_BR: Tensor) -> Tensor:
    """Beam numbers within a sentence -> row numbers within the batch."""
    B, R = parent_BR.shape
    return (parent_BR + torch.arange(0, B * R, R, device=parent_BR.device).unsqueeze(1)).flatten()


class _Beams:
    """The living beams of the sentences in the batch, and what has ended of each.

    Fewer than R have ended when a step begins and at most R end in it, so 2R - 1 places suffice; one more is the
    place where candidates that did not end are written to, so that no step needs to know which did.
    """

    def __init__(self, B: int, R: int, T: int, device: torch.device) -> None:
        self.R = R
        self.sentence_B = torch.arange(B, device=device)
        self.score_BR = torch.full((B, R), -math.inf, device=device)
        self.score_BR[:, 0] = 0.0  # All beams begin alike: only the first one counts.
        self.last_N = torch.full((B * R,), BOS, device=device)
        self.tokens_BRT = torch.full((B, R, T), PAD, device=device)
        self.ended_tokens_BQT = torch.full((B, 2 * R, T), PAD, device=device)
        self.ended_log_prob_BQ = torch.full((B, 2 * R), -math.inf, device=device)
        self.ended_length_BQ = torch.ones((B, 2 * R), dtype=torch.long, device=device)
        self.num_ended_B = torch.zeros(B, dtype=torch.long, device=device)
        self.done_B = torch.zeros(B, dtype=torch.bool, device=device)

    def end(self, score_BK: Tensor, beam_BK: Tensor, token_BK: Tensor, position: int) -> None:
        """Sets aside the hypotheses that end among the best R candidates."""
        score_BR, beam_BR = score_BK[:, : self.R], beam_BK[:, : self.R]
        ends_BR = (token_BK[:, : self.R] == EOS) & (score_BR != -math.inf) & ~self.done_B.unsqueeze(1)
        place_BR = self.num_ended_B.unsqueeze(1) + ends_BR.cumsum(dim=1) - 1
        place_BR = place_BR.masked_fill(~ends_BR, 2 * self.R - 1)
        self.ended_log_prob_BQ.scatter_(1, place_BR, score_BR.masked_fill(~ends_BR, -math.inf))
        self.ended_length_BQ.scatter_(1, place_BR, position + 1)
        history_BRT = _pick(self.tokens_BRT[..., :position], beam_BR)
        self.ended_tokens_BQT[..., :position].scatter_(1, place_BR.unsqueeze(2).expand_as(history_BRT), history_BRT)
        self.num_ended_B += ends_BR.sum(dim=1)
        self.done_B = self.done_B | (self.num_ended_B >= self.R)

    def go_on(self, score_BK: Tensor, beam_BK: Tensor, token_BK: Tensor, position: int) -> Tensor:
        """The best R candidates that do not end become the beams; returns the beam (B, R) that each one goes on from.

        Of 2R candidates at most R end, one a beam, so there are always enough.
        """
        self.score_BR, place_BR = score_BK.masked_fill(token_BK == EOS, -math.inf).topk(self.R)
        parent_BR, token_BR = beam_BK.gather(1, place_BR), token_BK.gather(1, place_BR)
        self.tokens_BRT[..., :position] = _pick(self.tokens_BRT[..., :position], parent_BR)
        self.tokens_BRT[..., position] = token_BR
        self.last_N = token_BR.flatten()
        return parent_BR

    def select(self, keep_M: Tensor) -> None:
        """Only these sentences stay in the batch."""
        self.sentence_B, self.num_ended_B = self.sentence_B[keep_M], self.num_ended_B[keep_M]
        self.done_B = self.done_B[keep_M]
        self.last_N = self.last_N.view(-1, self.R)[keep_M].flatten()
        self.score_BR, self.tokens_BRT = self.score_BR[keep_M], self.tokens_BRT[keep_M]
        self.ended_tokens_BQT = self.ended_tokens_BQT[keep_M]
        self.ended_log_prob_BQ = self.ended_log_prob_BQ[keep_M]
        self.ended_length_BQ = self.ended_length_BQ[keep_M]

    def collect(self, found: list[list[Hypothesis]], length_penalty: float) -> None:
        """Writes the best R hypotheses of each sentence that is done into its place in `found`."""
        done_M = self.done_B.nonzero().squeeze(1)
        length_MQ, log_prob_MQ = self.ended_length_BQ[done_M], self.ended_log_prob_BQ[done_M]
        best_MR = (log_prob_MQ / length_MQ.float() ** length_penalty).topk(self.R).indices
        tokens_MRT = _pick(self.ended_tokens_BQT[done_M], best_MR)
        log_prob_MR, length_MR = log_prob_MQ.gather(1, best_MR), length_MQ.gather(1, best_MR)
        hypotheses = _hypotheses(tokens_MRT.flatten(0, 1), length_MR.flatten(), log_prob_MR.flatten(), length_penalty)
        for i, sentence in enumerate(self.sentence_B[done_M].tolist()):
            n_best = [h for h in hypotheses[i * self.R : (i + 1) * self.R] if h.log_probability != -math.inf]
            found[sentence] = sorted(n_best, key=lambda h: h.score, reverse=True)


def _pick(x_BQT: Tensor, index_BR: Tensor) -> Tensor:
    """(B, R, T): row index_BR[b, r] of each x[b]."""
    return x_BQT.gather(1, index_BR.unsqueeze(2).expand(-1, -1, x_BQT.size(2)))


def _hypotheses(tokens_NT: Tensor, length_N: Tensor, log_prob_N: Tensor, alpha: float) -> list[Hypothesis]:
    """Lengths count eos; tokens beyond them are ignored."""
    rows = zip(tokens_NT.tolist(), length_N.tolist(), log_prob_N.tolist(), strict=True)
    return [Hypothesis(tokens[: length - 1], score / length**alpha, score) for tokens, length, score in rows]
