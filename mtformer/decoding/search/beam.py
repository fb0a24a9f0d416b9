"""Beam search.

B sentences, S source length, U sentences that are not finished, R beams per sentence, N = U x R rows, T target length,
t tokens so far, V vocabulary, K = 2R candidates, M remaining sentences.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mtformer.config.schema import DecodingConfig, Stopping
from mtformer.decoding.search.candidates import Candidates, Hypothesis, sentences_to_keep, to_hypotheses, top_candidates
from mtformer.decoding.search.inference import InferenceModel
from mtformer.decoding.search.rules import LengthBounds, Rule, Step, next_step
from mtformer.text.tokenizer import BOS, EOS, PAD

Chooser = Callable[[Step, Tensor, int], Candidates]
"""Function (step, score_UR, K) -> candidates that chooses the continuations of each sentence."""


def best_candidates(step: Step, score_UR: Tensor, K: int) -> Candidates:
    """Return the K continuations with the highest scores, best first."""
    return top_candidates(step.log_prob_URV, score_UR, K, step.correct)


@torch.inference_mode()
def beam_search(
    models: Sequence[InferenceModel],
    src_BS: Tensor,
    src_lengths_B: Tensor,
    settings: DecodingConfig,
    bounds: LengthBounds,
    *,
    rules: Sequence[Rule] = (),
    choose: Chooser = best_candidates,
    start: int = BOS,
) -> list[list[Hypothesis]]:
    """Run beam search and return up to `beam_size` translations of each sentence, best first.

    Several models, of any size, share a vocabulary: p(token) is the mean over them. Source ids (int64) end with eos and
    are padded on the right; their lengths (int64) include eos. `settings` has `beam_size` (R), `length_penalty` and
    `early_stopping`, `choose` selects the continuations, and `start` is the first token of the decoder.

    A hypothesis is finished when its eos is among the best R candidates of a step. Unfinished candidates replace it, so
    R beams stay alive. `early_stopping` decides when a sentence is done: `ended`, when R hypotheses are finished (as
    in CTranslate2 and fairseq); `estimate` and `auto`, when in addition no live beam has a higher score at its current
    length (as in Hugging Face); `certain`, when in addition no live beam can still reach a higher score. With alpha >
    0, `certain` rarely stops before the maximum length, because the score of a beam may still improve as it grows. With
    `ended`, improbable hypotheses that end early may stop the search before the best one ends.

    Finished hypotheses are ranked by a score with the repetition penalty; the returned scores do not include it.
    """
    R, max_steps = settings.beam_size, bounds.max_steps
    caches = [model.start(src_BS, src_lengths_B, R, max_steps) for model in models]
    beams = _Beams(bounds.max_B, R, max_steps, settings.length_penalty, start)
    found: list[list[Hypothesis]] = [[] for _ in src_BS]
    for position in range(max_steps):
        step = next_step(models, beams.last_UR, caches, beams.tokens_URt, beams.sentence_U, rules, bounds)
        candidates = choose(step, beams.score_UR, 2 * R)
        index_UK = torch.add(candidates.token_BK, candidates.beam_BK, alpha=step.raw_URV.size(2))
        raw_UK = step.raw_URV.flatten(1).gather(1, index_UK)
        beams.finish(candidates, raw_UK, position)
        parent_UR = beams.extend(candidates, raw_UK)
        beams.update_done(position, settings.early_stopping)
        keep_M = sentences_to_keep(beams.done_U.unsqueeze(1), position)
        if keep_M is not None:
            if keep_M.size(0) == 0:
                break
            beams.collect(found)
            for cache in caches:
                cache.keep(keep_M)
            beams.keep(keep_M)
            parent_UR = parent_UR[keep_M]
        for cache in caches if R > 1 else ():
            cache.reorder(parent_UR)
    beams.collect(found)
    return found


class _Beams:
    """Live beams of all sentences and the best R finished hypotheses of each; the tensors have one row per sentence."""

    def __init__(self, max_U: Tensor, R: int, T: int, alpha: float, start: int) -> None:
        U, device = max_U.size(0), max_U.device
        self.R, self.alpha = R, alpha
        self.sentence_U = torch.arange(U, device=device)
        self.max_U = max_U
        self.score_UR = torch.full((U, R), -math.inf, device=device)
        self.score_UR[:, 0] = 0.0  # all beams are equal at the start, so only the first is alive
        self.last_UR = torch.full((U, R), start, device=device)
        self.tokens_URt = torch.full((U, R, 0), PAD, device=device)
        self.raw_URt = torch.zeros(U, R, 0, device=device)
        self.finished_rank_UR = torch.full((U, R), -math.inf, device=device)
        self.finished_tokens_URT = torch.full((U, R, T), PAD, device=device)
        self.finished_raw_URT = torch.zeros(U, R, T, device=device)
        self.done_U = torch.zeros(U, dtype=torch.bool, device=device)

    def finish(self, candidates: Candidates, raw_UK: Tensor, position: int) -> None:
        """Add those of the first R candidates that end to the finished hypotheses, and keep the best R of these."""
        R, length = self.R, position + 1
        score_UR, beam_UR, token_UR = (part[:, :R] for part in candidates)
        continues_UR = (token_UR != EOS) | self.done_U.unsqueeze(1)
        if continues_UR.device.type == "cpu" and continues_UR.all():
            return
        rank_UR = (score_UR / length**self.alpha).masked_fill(continues_UR, -math.inf)
        self.finished_rank_UR, place_UR = torch.cat([self.finished_rank_UR, rank_UR], dim=1).topk(R)
        raw_URt = _extend(self.raw_URt, beam_UR, raw_UK[:, :R])
        tokens_URt = _extend(self.tokens_URt, beam_UR, token_UR)
        for finished_URT, new_URt in ((self.finished_raw_URT, raw_URt), (self.finished_tokens_URT, tokens_URt)):
            finished_URt = finished_URT[..., :length]
            finished_URt.copy_(_pick(torch.cat([finished_URt, new_URt], dim=1), place_UR))

    def extend(self, candidates: Candidates, raw_UK: Tensor) -> Tensor:
        """Extend the beams with the first R candidates that do not end, and return the parent beam (U, R) of each.

        At most R of the 2R candidates end, one per beam, so at least R remain.
        """
        ends_UK = candidates.token_BK == EOS
        place_UR = ends_UK.sort(dim=1, stable=True).indices[:, : self.R]
        self.score_UR, parent_UR, self.last_UR = (part.gather(1, place_UR) for part in candidates)
        self.tokens_URt = _extend(self.tokens_URt, parent_UR, self.last_UR)
        self.raw_URt = _extend(self.raw_URt, parent_UR, raw_UK.gather(1, place_UR))
        return parent_UR

    def update_done(self, position: int, early_stopping: Stopping) -> None:
        """Mark sentences that reached their maximum length or have enough finished hypotheses (see `beam_search`)."""
        worst_U = self.finished_rank_UR.amin(dim=1)
        is_enough_U = worst_U != -math.inf
        if early_stopping != "ended":
            length = self.max_U + 1 if early_stopping == "certain" else position + 1
            is_enough_U = is_enough_U & (self.score_UR.amax(dim=1) / length**self.alpha <= worst_U)
        self.done_U = self.done_U | is_enough_U | (position >= self.max_U)

    def keep(self, keep_M: Tensor) -> None:
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value[keep_M])

    def collect(self, found: list[list[Hypothesis]]) -> None:
        """Add the finished hypotheses of each sentence that is done to `found`, best first."""
        done_U = self.done_U.nonzero().squeeze(1)
        ranks = self.finished_rank_UR[done_U].flatten().tolist()
        tokens_NT, raw_NT = (one[done_U].flatten(0, 1) for one in (self.finished_tokens_URT, self.finished_raw_URT))
        hypotheses = to_hypotheses(tokens_NT, raw_NT, self.alpha)
        sentences = self.sentence_U[done_U].repeat_interleave(self.R).tolist()
        for sentence, rank, hypothesis in zip(sentences, ranks, hypotheses, strict=True):
            if rank != -math.inf:
                found[sentence].append(hypothesis)


def _pick(x_UQT: Tensor, index_UR: Tensor) -> Tensor:
    """Return a tensor (U, R, T) whose row [u, r] is row index_UR[u, r] of x_UQT[u]."""
    return x_UQT.gather(1, index_UR.unsqueeze(2).expand(-1, -1, x_UQT.size(2)))


def _extend(x_UQt: Tensor, index_UR: Tensor, new_UR: Tensor) -> Tensor:
    """Return `_pick(x_UQt, index_UR)` with one more column."""
    return torch.cat([_pick(x_UQt, index_UR), new_UR.unsqueeze(2)], dim=2)
