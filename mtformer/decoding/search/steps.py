"""Steps of a search: run the models on the last token of each row, and apply the rules to the log-probabilities.

B sentences, S source length, U sentences that are not finished, R beams per sentence, N = U x R rows, V vocabulary, t
tokens so far, M remaining sentences, X parts of a sentence (beams or samples).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mtformer.decoding.search.candidates import Correction, Step
from mtformer.decoding.search.inference import InferenceModel, mean_log_probs
from mtformer.decoding.search.rules import LengthBounds, Rule
from mtformer.text.tokenizer import BOS, EOS

GPU_REMOVAL_PERIOD = 4
"""On a GPU, finished sentences leave the batch only at every fourth step."""


@dataclass(frozen=True)
class SearchBatch:
    """Sentences that are searched together, and the restrictions of their translations."""

    src_BS: Tensor
    """Source ids (int64), which end with eos and are padded on the right."""
    src_lengths_B: Tensor
    """Source lengths (int64), including eos."""
    bounds: LengthBounds
    """Bounds of the lengths, which are applied after the rules."""
    rules: Sequence[Rule] = ()
    """Rules that are applied at each step, in this order."""
    start: int = BOS
    """First input token of the decoder."""


class StepDecoder:
    """The models of a search with their caches, which compute one step at a time.

    Several models, of any size, share a vocabulary: p(token) is the mean over them.

    Args:
        models: models on one device.
        batch: sentences to search.
        num_rows: number R of beams or samples per sentence.
    """

    def __init__(self, models: Sequence[InferenceModel], batch: SearchBatch, num_rows: int) -> None:
        self.models = models
        self.rules = batch.rules
        self.bounds = batch.bounds
        self.caches = []
        for model in models:
            cache = model.start(batch.src_BS, batch.src_lengths_B, num_rows, batch.bounds.max_steps)
            self.caches.append(cache)

    def step(self, token_UR: Tensor, history_URt: Tensor, sentence_U: Tensor) -> Step:
        """Run the models, apply the rules, then the bounds. A row without any allowed token ends with eos.

        Args:
            token_UR: last token of each beam, or the start token.
            history_URt: tokens so far.
            sentence_U: index of each sentence in the original batch.
        """
        token_N = token_UR.flatten()
        logits_NV, correct = self._logits(token_N)
        raw_NV = torch.log_softmax(logits_NV, dim=-1, dtype=torch.float32)
        U, R = token_UR.shape
        raw_URV = raw_NV.view(U, R, -1)
        if not self.rules:
            step = Step(raw_URV, raw_URV, history_URt, sentence_U, correct)
            self.bounds(step)
            return step

        log_prob_URV = raw_URV.clone()
        step = Step(log_prob_URV, raw_URV, history_URt, sentence_U)
        for rule in self.rules:
            rule(step)
        self.bounds(step)
        _let_stuck_rows_end(step)
        return step

    def _logits(self, token_N: Tensor) -> tuple[Tensor, Correction | None]:
        """Return the logits (N, V), or the log of the mean probabilities of several models, and their correction."""
        outputs = []
        for model, cache in zip(self.models, self.caches, strict=True):
            outputs.append(model.step(token_N, cache))
        if len(outputs) == 1:
            return outputs[0]

        logits = [logits_NV for logits_NV, _ in outputs]
        return mean_log_probs(logits), None

    def keep(self, sentences_M: Tensor) -> None:
        """Keep only these sentences in the batch, in this order."""
        for cache in self.caches:
            cache.keep(sentences_M)

    def reorder(self, beam_UR: Tensor) -> None:
        """Let beam r of sentence u continue the history of its beam beam_UR[u, r]."""
        for cache in self.caches:
            cache.reorder(beam_UR)


def _let_stuck_rows_end(step: Step) -> None:
    """Allow eos in the rows in which the rules have excluded all tokens."""
    best_UR = step.log_prob_URV.amax(dim=2)
    is_stuck_UR = best_UR == -math.inf
    eos_UR = step.log_prob_URV[..., EOS]
    raw_eos_UR = step.raw_URV[..., EOS]
    new_eos_UR = torch.where(is_stuck_UR, raw_eos_UR, eos_UR)
    eos_UR.copy_(new_eos_UR)


def sentences_to_keep(done_UX: Tensor, position: int) -> Tensor | None:
    """Return the indices of sentences with an unfinished part if removing the others saves time, else None.

    Removing sentences copies the cache, so at least an eighth of them must be finished. Reading the flags synchronizes
    with a GPU, so on a GPU sentences are removed only once per `GPU_REMOVAL_PERIOD`.
    """
    is_end_of_period = (position + 1) % GPU_REMOVAL_PERIOD == 0
    if done_UX.device.type != "cpu" and not is_end_of_period:
        return None

    is_unfinished_U = ~done_UX.all(dim=1)
    keep_M = is_unfinished_U.nonzero().squeeze(1)
    num_sentences = len(done_UX)
    num_done = num_sentences - len(keep_M)
    if num_done * 8 < num_sentences:
        return None
    return keep_M
