"""Beam search, plain, diverse (Vijayakumar et al. 2016), or with phrases that must come.

B sentences, S source length, U units (sentences, or sentences x groups), R beams of a unit, N = U x R rows,
T target length, t tokens so far, V vocabulary, K = 2R candidates.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mtformer.config.schema import Stopping
from mtformer.decoding.limits import Limits
from mtformer.decoding.protocol import CacheT, Decodable, ExactLogits, Hypothesis, to_hypotheses
from mtformer.decoding.rules import LengthBounds, Rule, Step, Watch, apply
from mtformer.decoding.topk import Exact, top_candidates
from mtformer.text.tokenizer import BOS, EOS, PAD


class Candidates(NamedTuple):
    """The continuations that a unit may take, the wanted ones first; each (U, K)."""

    score_UK: Tensor
    """What search ranks by: the sum so far, rules included."""
    beam_UK: Tensor
    token_UK: Tensor


Chooser = Callable[[Step, Tensor, int], Candidates]
"""(step, score_UR, K) -> candidates."""


def likeliest(step: Step, score_UR: Tensor, K: int) -> Candidates:
    """The K continuations with the highest scores, best first."""
    return Candidates(*top_candidates(step.log_prob_URV, score_UR, K, step.exact))


class Diverse:
    """Groups one after the other: each token costs `penalty` for each beam of an earlier group that takes it here."""

    def __init__(self, num_groups: int, penalty: float) -> None:
        self.G = num_groups
        self.penalty = penalty

    def __call__(self, step: Step, score_UR: Tensor, K: int) -> Candidates:
        U, R, V = step.log_prob_URV.shape
        log_prob_BGRV, score_BGR = step.log_prob_URV.view(-1, self.G, R, V), score_UR.view(-1, self.G, R)
        lost_B1V = log_prob_BGRV.new_zeros(U // self.G, 1, V)
        chosen = []
        for group in range(self.G):
            log_prob_BRV = log_prob_BGRV[:, group] - lost_B1V
            penalised_BK, beam_BK, token_BK = top_candidates(log_prob_BRV, score_BGR[:, group], K)
            # The penalty is for choosing; the sum so far goes on without it.
            lost_BK = lost_B1V.squeeze(1).gather(1, token_BK)
            chosen.append((penalised_BK + lost_BK, beam_BK, token_BK))
            is_dead_BR = penalised_BK[:, :R] == -math.inf
            cost_BR = torch.full_like(penalised_BK[:, :R], self.penalty).masked_fill(is_dead_BR, 0.0)
            lost_B1V.squeeze(1).scatter_add_(1, token_BK[:, :R], cost_BR)
        return Candidates(*(torch.stack(parts, dim=1).view(U, K) for parts in zip(*chosen, strict=True)))


@torch.inference_mode()
def beam_search(
    model: Decodable[CacheT],
    src_BS: Tensor,
    src_lengths_B: Tensor,
    beam_size: int,
    length_penalty: float,
    limits: Limits,
    *,
    rules: Sequence[Rule] = (),
    choose: Chooser = likeliest,
    num_groups: int = 1,
    early_stopping: Stopping = "ended",
    start: int = BOS,
    watch: Watch | None = None,
) -> list[list[Hypothesis]]:
    """The best translations of each sentence that a beam of `beam_size` finds, best first, at most `beam_size`.

    A hypothesis ends when its eos is among the best R candidates of a step; beams that have not ended take its place,
    so R stay alive. A sentence is done when R hypotheses have ended (as in CTranslate2 and fairseq). To go on until it
    is certain that no living beam can win makes search last nearly to the length limit: with alpha > 0 a longer
    hypothesis may always still improve. The estimate (as in Hugging Face) takes each beam for as long as it is.

    What has ended when the sentence is done competes by score; a repetition penalty counts in that, but in no score
    that is given back. Groups may find the same translation.

    Args:
        model: in evaluation mode.
        src_BS: int64, each row ends with eos, padded on the right.
        src_lengths_B: int64, eos counted.
        beam_size: R, or with groups the beams of all of them.
        length_penalty: alpha of `Hypothesis.score`.
        limits: shortest and longest translation.
        rules: what else may not come, or costs more.
        choose: which continuations are taken.
        num_groups: each group of beams is a search of its own, `beam_size` / `num_groups` wide.
        early_stopping: `ended`, `certain` or `estimate`, see above.
        start: what the decoder starts with.
        watch: called at each step, the living beams of a unit best first.
    """
    bounds = LengthBounds(*limits.bounds(src_lengths_B))
    B, R, max_steps = src_BS.size(0), beam_size // num_groups, bounds.longest_max + 1
    cache = model.start(src_BS, src_lengths_B, beam_size, max_steps)
    beams = _Beams(B, num_groups, R, max_steps, length_penalty, src_BS.device, start)
    found: list[list[tuple[float, Hypothesis]]] = [[] for _ in range(B)]
    for position in range(max_steps):
        logits_NV, exact_logits = model.step(beams.last_N, cache)
        own_URV = log_probs(logits_NV, R)
        exact = None if rules else correction(exact_logits, logits_NV, R)
        step = apply(rules, bounds, Step(own_URV, own_URV, beams.tokens_URT[..., :position], beams.sentence_U, exact))
        if watch is not None:
            watch(step)
        candidates = choose(step, beams.score_UR, 2 * R)
        own_UK = own_URV.flatten(1).gather(1, candidates.beam_UK * own_URV.size(2) + candidates.token_UK)
        beams.end(candidates, own_UK, position)
        parent_UR = beams.go_on(candidates, own_UK, position)
        beams.settle(bounds.max_B, position, early_stopping)
        keep_M = may_leave(beams.done_U.view(-1, num_groups).all(dim=1), position)
        if keep_M is not None:
            if keep_M.size(0) == 0:
                break
            beams.collect(found)
            cache.keep(keep_M)
            parent_UR = parent_UR[beams.select(keep_M)]
        if beam_size > 1:
            cache.reorder(_rows(parent_UR, R))
    beams.collect(found)
    by_rank = [sorted(ended, key=lambda one: -one[0]) for ended in found]
    return [[hypothesis for _, hypothesis in ended] for ended in by_rank]


def log_probs(logits_NV: Tensor, R: int) -> Tensor:
    """(U, R, V) in float32 whatever the model computes in, over the whole vocabulary: rules do not rescale scores."""
    return torch.log_softmax(logits_NV, dim=-1, dtype=torch.float32).view(-1, R, logits_NV.size(-1))


def correction(exact_logits: ExactLogits | None, logits_NV: Tensor, R: int) -> Exact | None:
    """What `top_candidates` adds to log-probabilities whose logits are rounded; None when they are not."""
    if exact_logits is None:
        return None

    def correct(beam_UX: Tensor, token_UX: Tensor) -> Tensor:
        row_UX = beam_UX + torch.arange(0, len(beam_UX) * R, R, device=beam_UX.device).unsqueeze(1)
        return exact_logits(row_UX, token_UX) - logits_NV[row_UX, token_UX].float()

    return correct


def may_leave(done_B: Tensor, position: int) -> Tensor | None:
    """The sentences to keep, when so many are done that computing on costs more than copying the cache; else None.

    Asking a GPU makes it wait, so there it is done at every fourth step only.
    """
    if done_B.device.type != "cpu" and position % 4 != 3:
        return None
    keep_M = (~done_B).nonzero().squeeze(1)
    num_done = done_B.size(0) - keep_M.size(0)
    return keep_M if num_done * 8 >= done_B.size(0) else None


def _rows(parent_UR: Tensor, R: int) -> Tensor:
    """Beam numbers within a unit -> row numbers within the batch."""
    return (parent_UR + torch.arange(0, parent_UR.numel(), R, device=parent_UR.device).unsqueeze(1)).flatten()


class _Beams:
    """The living beams of the units in the batch, and the best R of each that have ended."""

    def __init__(self, B: int, G: int, R: int, T: int, alpha: float, device: torch.device, start: int) -> None:
        U = B * G
        self.G, self.R, self.alpha = G, R, alpha
        self.sentence_U = torch.arange(B, device=device).repeat_interleave(G)
        self.score_UR = torch.full((U, R), -math.inf, device=device)
        self.score_UR[:, 0] = 0.0  # All beams begin alike: only the first one counts.
        self.last_N = torch.full((U * R,), start, device=device)
        self.tokens_URT = torch.full((U, R, T), PAD, device=device)
        self.own_URT = torch.zeros(U, R, T, device=device)
        self.ended_rank_UR = torch.full((U, R), -math.inf, device=device)
        self.ended_tokens_URT = self.tokens_URT.clone()
        self.ended_own_URT = self.own_URT.clone()
        self.ended_length_UR = torch.ones((U, R), dtype=torch.long, device=device)
        self.num_ended_U = torch.zeros(U, dtype=torch.long, device=device)
        self.done_U = torch.zeros(U, dtype=torch.bool, device=device)

    def end(self, candidates: Candidates, own_UK: Tensor, position: int) -> None:
        """Sets aside the hypotheses that end among the first R candidates, as far as they are among the best R."""
        R, length = self.R, position + 1
        score_UR, beam_UR = candidates.score_UK[:, :R], candidates.beam_UK[:, :R]
        ends_UR = (candidates.token_UK[:, :R] == EOS) & (score_UR != -math.inf) & ~self.done_U.unsqueeze(1)
        if ends_UR.device.type == "cpu" and not ends_UR.any():
            return
        self.num_ended_U += ends_UR.sum(dim=1)
        rank_UR = (score_UR / length**self.alpha).masked_fill(~ends_UR, -math.inf)
        self.ended_rank_UR, place_UR = torch.cat([self.ended_rank_UR, rank_UR], dim=1).topk(R)
        self.ended_length_UR = torch.cat(
            [self.ended_length_UR, torch.full_like(self.ended_length_UR, length)], dim=1
        ).gather(1, place_UR)
        own_URT = _pick(self.own_URT[..., :length], beam_UR)
        own_URT[..., position] = own_UK[:, :R]
        self.ended_own_URT[..., :length] = _pick(
            torch.cat([self.ended_own_URT[..., :length], own_URT], dim=1), place_UR
        )
        tokens_URT = _pick(self.tokens_URT[..., :position], beam_UR)
        self.ended_tokens_URT[..., :position] = _pick(
            torch.cat([self.ended_tokens_URT[..., :position], tokens_URT], dim=1), place_UR
        )

    def go_on(self, candidates: Candidates, own_UK: Tensor, position: int) -> Tensor:
        """The first R candidates that do not end become the beams; returns the beam (U, R) that each goes on from.

        Of 2R candidates at most R end, one a beam, so there are always enough.
        """
        K = candidates.token_UK.size(1)
        order_UK = torch.arange(K, device=own_UK.device) + K * (candidates.token_UK == EOS)
        place_UR = order_UK.topk(self.R, largest=False).indices
        parent_UR, token_UR = candidates.beam_UK.gather(1, place_UR), candidates.token_UK.gather(1, place_UR)
        self.score_UR = candidates.score_UK.gather(1, place_UR)
        self.tokens_URT[..., :position] = _pick(self.tokens_URT[..., :position], parent_UR)
        self.tokens_URT[..., position] = token_UR
        self.own_URT[..., :position] = _pick(self.own_URT[..., :position], parent_UR)
        self.own_URT[..., position] = own_UK.gather(1, place_UR)
        self.last_N = token_UR.flatten()
        return parent_UR

    def settle(self, max_B: Tensor, position: int, early_stopping: Stopping) -> None:
        """Which units are done: their length is used up, or enough has ended."""
        enough_U = self.num_ended_U >= self.R
        if early_stopping != "ended":
            length = max_B[self.sentence_U] + 1 if early_stopping == "certain" else position + 1
            attainable_U = self.score_UR.amax(dim=1) / length**self.alpha
            enough_U = enough_U & (attainable_U <= self.ended_rank_UR.amin(dim=1))
        self.done_U = self.done_U | enough_U | (position >= max_B[self.sentence_U])

    def select(self, keep_M: Tensor) -> Tensor:
        """Only these sentences stay in the batch; returns the numbers of their units."""
        units = (keep_M.unsqueeze(1) * self.G + torch.arange(self.G, device=keep_M.device)).flatten()
        self.last_N = self.last_N.view(-1, self.R)[units].flatten()
        for name in ("sentence_U", "score_UR", "tokens_URT", "own_URT", "num_ended_U", "done_U"):
            setattr(self, name, getattr(self, name)[units])
        for name in ("ended_rank_UR", "ended_tokens_URT", "ended_own_URT", "ended_length_UR"):
            setattr(self, name, getattr(self, name)[units])
        return units

    def collect(self, found: list[list[tuple[float, Hypothesis]]]) -> None:
        """Adds what has ended of each sentence that is done, in all its groups and with its rank, to its place."""
        done_U = self.done_U.view(-1, self.G).all(dim=1).repeat_interleave(self.G).nonzero().squeeze(1)
        ranks = self.ended_rank_UR[done_U].flatten().tolist()
        parts = (self.ended_tokens_URT[done_U], self.ended_own_URT[done_U], self.ended_length_UR[done_U])
        tokens_NT, own_NT, length_N = (part.flatten(0, 1) for part in parts)
        hypotheses = to_hypotheses(tokens_NT, own_NT, length_N, self.alpha)
        sentences = self.sentence_U[done_U].repeat_interleave(self.R).tolist()
        for sentence, rank, hypothesis in zip(sentences, ranks, hypotheses, strict=True):
            if rank != -math.inf:
                found[sentence].append((rank, hypothesis))


def _pick(x_UQT: Tensor, index_UR: Tensor) -> Tensor:
    """(U, R, T): row index_UR[u, r] of each x[u]."""
    return x_UQT.gather(1, index_UR.unsqueeze(2).expand(-1, -1, x_UQT.size(2)))
