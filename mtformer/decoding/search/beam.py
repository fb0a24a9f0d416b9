"""Beam search.

U sentences that are not finished, R beams per sentence, T target length, t tokens so far, V vocabulary, I = R x V
indices beam * V + token, K = 2R candidates, M selected sentences, N = M x R hypotheses, Q rows of a sentence.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mtformer.config.schema import DecodingConfig, Stopping
from mtformer.decoding.search.candidates import Candidates, Step, best_candidates
from mtformer.decoding.search.hypotheses import Hypothesis, to_hypotheses
from mtformer.decoding.search.inference import InferenceModel
from mtformer.decoding.search.steps import SearchBatch, StepDecoder, sentences_to_keep
from mtformer.text.tokenizer import EOS, PAD

Chooser = Callable[[Step, Tensor, int], Candidates]
"""Function (step, score_UR, K) -> candidates that chooses the continuations of each sentence."""


@torch.inference_mode()
def beam_search(
    models: Sequence[InferenceModel],
    batch: SearchBatch,
    settings: DecodingConfig,
    choose: Chooser = best_candidates,
) -> list[list[Hypothesis]]:
    """Run beam search and return up to `beam_size` translations of each sentence, best first.

    A hypothesis is finished when its eos is among the best R candidates of a step. Unfinished candidates replace it, so
    R beams stay alive. `early_stopping` decides when a sentence is done: `ended`, when R hypotheses are finished (as
    in CTranslate2 and fairseq); `estimate` and `auto`, when in addition no live beam has a higher score at its current
    length (as in Hugging Face); `certain`, when in addition no live beam can still reach a higher score. With
    `length_penalty` > 0, `certain` rarely stops before the maximum length, because the score of a beam may still
    improve as it grows. With `ended`, improbable hypotheses that end early may stop the search before the best one
    ends.

    Finished hypotheses are ranked by a score with the repetition penalty; the returned scores do not include it.

    Args:
        models: models on one device; the probabilities of several are averaged.
        batch: sentences to search, with their rules and bounds.
        settings: `beam_size` (R), `length_penalty` and `early_stopping`.
        choose: function that chooses the continuations.
    """
    R = settings.beam_size
    decoder = StepDecoder(models, batch, R)
    beams = _Beams(batch, R, settings.length_penalty)
    num_sentences = len(batch.src_BS)
    n_bests: list[list[Hypothesis]] = [[] for _ in range(num_sentences)]

    for position in range(batch.bounds.max_steps):
        step = decoder.step(beams.last_UR, beams.tokens_URt, beams.sentence_U)
        candidates = choose(step, beams.score_UR, 2 * R)
        raw_UK = _raw_log_probs(step, candidates)
        beams.finish(candidates, raw_UK, position)
        parent_UR = beams.extend(candidates, raw_UK)
        beams.update_done(position, settings.early_stopping)

        keep_M = sentences_to_keep(beams.done_U.unsqueeze(1), position)
        if keep_M is not None:
            if keep_M.size(0) == 0:
                break
            beams.collect(n_bests)
            beams.keep(keep_M)
            decoder.keep(keep_M)
            parent_UR = parent_UR[keep_M]

        if R > 1:
            decoder.reorder(parent_UR)

    beams.collect(n_bests)
    return n_bests


def _raw_log_probs(step: Step, candidates: Candidates) -> Tensor:
    """Return the unmodified log-probabilities (U, K) of the candidates."""
    V = step.raw_URV.size(2)
    index_UK = torch.add(candidates.token_BK, candidates.beam_BK, alpha=V)
    raw_UI = step.raw_URV.flatten(1)
    return raw_UI.gather(1, index_UK)


class _Beams:
    """Live beams of all sentences and the best R finished hypotheses of each; the tensors have one row per sentence."""

    def __init__(self, batch: SearchBatch, R: int, length_penalty: float) -> None:
        self.R = R
        self.length_penalty = length_penalty
        self.max_U = batch.bounds.max_B
        U = len(self.max_U)
        T = batch.bounds.max_steps
        device = self.max_U.device
        self.sentence_U = torch.arange(U, device=device)
        self.done_U = torch.zeros(U, dtype=torch.bool, device=device)

        # Live beams. All are equal at the start, so only the first is alive.
        self.score_UR = torch.full((U, R), -math.inf, device=device)
        self.score_UR[:, 0] = 0.0
        self.last_UR = torch.full((U, R), batch.start, device=device)
        self.tokens_URt = torch.full((U, R, 0), PAD, device=device)
        self.raw_URt = torch.zeros(U, R, 0, device=device)

        # Finished hypotheses. A rank of -inf marks an empty place.
        self.finished_rank_UR = torch.full((U, R), -math.inf, device=device)
        self.finished_tokens_URT = torch.full((U, R, T), PAD, device=device)
        self.finished_raw_URT = torch.zeros(U, R, T, device=device)

    def finish(self, candidates: Candidates, raw_UK: Tensor, position: int) -> None:
        """Add those of the first R candidates that end to the finished hypotheses, and keep the best R of these.

        Args:
            candidates: the candidates (U, K), best first.
            raw_UK: their unmodified log-probabilities.
            position: number of tokens before the candidates.
        """
        R = self.R
        score_UR, beam_UR, token_UR = candidates.first(R)
        done_U1 = self.done_U.unsqueeze(1)
        continues_UR = (token_UR != EOS) | done_U1
        if continues_UR.device.type == "cpu" and continues_UR.all():
            return

        length = position + 1
        rank_UR = score_UR / length**self.length_penalty
        rank_UR = rank_UR.masked_fill(continues_UR, -math.inf)
        rank_UQ = torch.cat([self.finished_rank_UR, rank_UR], dim=1)
        self.finished_rank_UR, place_UR = rank_UQ.topk(R)

        # The tokens and log-probabilities of the best R of the earlier and the new hypotheses.
        tokens_URt = _extend(self.tokens_URt, beam_UR, token_UR)
        _merge(self.finished_tokens_URT, tokens_URt, place_UR)
        raw_URt = _extend(self.raw_URt, beam_UR, raw_UK[:, :R])
        _merge(self.finished_raw_URT, raw_URt, place_UR)

    def extend(self, candidates: Candidates, raw_UK: Tensor) -> Tensor:
        """Extend the beams with the first R candidates that do not end, and return the parent beam (U, R) of each.

        At most R of the 2R candidates end, one per beam, so at least R remain.
        """
        # A stable sort puts the candidates that continue first, and keeps their order.
        ends_UK = candidates.token_BK == EOS
        order_UK = ends_UK.sort(dim=1, stable=True).indices
        place_UR = order_UK[:, : self.R]

        score_UR, parent_UR, token_UR = candidates.gather(place_UR)
        raw_UR = raw_UK.gather(1, place_UR)
        self.score_UR = score_UR
        self.last_UR = token_UR
        self.tokens_URt = _extend(self.tokens_URt, parent_UR, token_UR)
        self.raw_URt = _extend(self.raw_URt, parent_UR, raw_UR)
        return parent_UR

    def update_done(self, position: int, early_stopping: Stopping) -> None:
        """Mark sentences that reached their maximum length or have enough finished hypotheses (see `beam_search`)."""
        worst_U = self.finished_rank_UR.amin(dim=1)
        is_enough_U = worst_U != -math.inf
        if early_stopping != "ended":
            # At the maximum length, the score of a beam would be the highest that it can still reach.
            length = self.max_U + 1 if early_stopping == "certain" else position + 1
            best_score_U = self.score_UR.amax(dim=1)
            best_rank_U = best_score_U / length**self.length_penalty
            is_enough_U = is_enough_U & (best_rank_U <= worst_U)

        is_longest_U = position >= self.max_U
        self.done_U = self.done_U | is_enough_U | is_longest_U

    def keep(self, keep_M: Tensor) -> None:
        """Keep only these sentences, in this order."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value[keep_M])

    def collect(self, n_bests: list[list[Hypothesis]]) -> None:
        """Add the finished hypotheses of each sentence that is done to its list in `n_bests`, best first."""
        done_M = self.done_U.nonzero().squeeze(1)
        tokens_NT = self.finished_tokens_URT[done_M].flatten(0, 1)
        raw_NT = self.finished_raw_URT[done_M].flatten(0, 1)
        hypotheses = to_hypotheses(tokens_NT, raw_NT, self.length_penalty)

        rank_N = self.finished_rank_UR[done_M].flatten()
        sentence_M = self.sentence_U[done_M]
        sentence_N = sentence_M.repeat_interleave(self.R)
        rows = zip(sentence_N.tolist(), rank_N.tolist(), hypotheses, strict=True)
        for sentence, rank, hypothesis in rows:
            if rank != -math.inf:
                n_bests[sentence].append(hypothesis)


def _pick(x_UQT: Tensor, index_UR: Tensor) -> Tensor:
    """Return a tensor (U, R, T) whose row [u, r] is row index_UR[u, r] of x_UQT[u]."""
    T = x_UQT.size(2)
    index_URT = index_UR.unsqueeze(2).expand(-1, -1, T)
    return x_UQT.gather(1, index_URT)


def _extend(x_UQt: Tensor, index_UR: Tensor, new_UR: Tensor) -> Tensor:
    """Return `_pick(x_UQt, index_UR)` with one more column."""
    picked_URt = _pick(x_UQt, index_UR)
    new_UR1 = new_UR.unsqueeze(2)
    return torch.cat([picked_URt, new_UR1], dim=2)


def _merge(finished_URT: Tensor, new_URt: Tensor, index_UR: Tensor) -> None:
    """Replace the rows of `finished_URT` by those that `index_UR` picks among its rows and the new ones."""
    t = new_URt.size(2)
    finished_URt = finished_URT[..., :t]
    both_UQt = torch.cat([finished_URt, new_URt], dim=1)
    picked_URt = _pick(both_UQt, index_UR)
    finished_URt.copy_(picked_URt)
