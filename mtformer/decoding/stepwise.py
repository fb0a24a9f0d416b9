"""One token a row at each step: the most probable one (greedy), or one drawn at random.

B sentences, C translations of each, M rows still in the batch, S source length, T target length, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mtformer.decoding.beam import correction, log_probs, may_leave
from mtformer.decoding.limits import Limits
from mtformer.decoding.protocol import CacheT, Decodable, Hypothesis, to_hypotheses
from mtformer.decoding.rules import LengthBounds, Rule, Step, Watch, apply
from mtformer.decoding.topk import top_candidates
from mtformer.text.tokenizer import BOS, EOS, PAD

Choose = Callable[[Step, Tensor, int], Tensor]
"""(step, numbers of the rows in the batch as it came, position) -> token_M."""


@dataclass(frozen=True)
class Sampling:
    """What to draw from, and with which random numbers.

    `keys` are one number a sentence, its place in the user's input: draws hang on (seed, key, number of the sample,
    position) and on nothing else, so a batch of any size draws the same.
    """

    num_samples: int
    keys: Sequence[int]
    seed: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0


def greedy(
    model: Decodable[CacheT],
    src_BS: Tensor,
    src_lengths_B: Tensor,
    limits: Limits,
    length_penalty: float = 1.0,
    rules: Sequence[Rule] = (),
    start: int = BOS,
    watch: Watch | None = None,
) -> list[Hypothesis]:
    """The most probable token at each step, for each sentence of the batch.

    Args:
        model: in evaluation mode.
        src_BS: int64, each row ends with eos, padded on the right.
        src_lengths_B: int64, eos counted.
        limits: shortest and longest translation.
        length_penalty: alpha of `Hypothesis.score`; it does not change the translation.
        rules: what else may not come, or costs more.
        start: what the decoder starts with.
        watch: called at each step.
    """

    def most_probable(step: Step, _: Tensor, __: int) -> Tensor:
        zero_M1 = step.log_prob_URV.new_zeros(step.log_prob_URV.shape[:2])
        return top_candidates(step.log_prob_URV, zero_M1, 1, step.exact)[2].squeeze(1)

    return _grow(model, src_BS, src_lengths_B, limits, length_penalty, rules, 1, most_probable, start, watch)


def sample(
    model: Decodable[CacheT],
    src_BS: Tensor,
    src_lengths_B: Tensor,
    limits: Limits,
    sampling: Sampling,
    length_penalty: float = 1.0,
    rules: Sequence[Rule] = (),
    start: int = BOS,
    watch: Watch | None = None,
) -> list[list[Hypothesis]]:
    """`num_samples` translations of each sentence, drawn from the model's distribution, in the order of drawing.

    Scores are the model's own, whatever the temperature. Arguments as in `greedy`.
    """
    C, max_steps = sampling.num_samples, int(limits.bounds(src_lengths_B)[1].max()) + 1
    # A generator each, so that neither the longest of the batch nor the number of samples moves what one draws.
    numbers = [
        np.random.default_rng((sampling.seed, key, number)).random(max_steps)
        for key in sampling.keys
        for number in range(C)
    ]
    uniform_NT = torch.from_numpy(np.stack(numbers)).to(src_BS.device)

    def draw(step: Step, row_M: Tensor, position: int) -> Tensor:
        uniform_M = uniform_NT[row_M, position]
        log_prob_MV = step.log_prob_URV.squeeze(1)
        return draw_tokens(log_prob_MV, uniform_M, sampling.temperature, sampling.top_k, sampling.top_p)

    hypotheses = _grow(model, src_BS, src_lengths_B, limits, length_penalty, rules, C, draw, start, watch)
    return [hypotheses[i : i + C] for i in range(0, len(hypotheses), C)]


def draw_tokens(log_prob_MV: Tensor, uniform_M: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """One token (M,) a row, by where a number from [0, 1) falls among the summed probabilities.

    Args:
        log_prob_MV: float32, -inf: never.
        uniform_M: float64.
        temperature: probabilities are raised to its inverse.
        top_k: only the k most probable tokens count (Fan et al. 2018); 0: all.
        top_p: only the fewest tokens with this much probability together count (Holtzman et al. 2020, section 3.1).
    """
    V = log_prob_MV.size(1)
    num_kept = min(top_k or V, V)
    token_MX = None
    if num_kept < V or top_p < 1.0:
        log_prob_MV, token_MX = log_prob_MV.topk(num_kept)  # sorted, which the nucleus needs
    log_prob_MX = log_prob_MV.double()
    # The best one at 0, so that no temperature, however low, sends all of them to -inf.
    prob_MX = ((log_prob_MX - log_prob_MX.amax(dim=1, keepdim=True)) / temperature).softmax(dim=1)
    if top_p < 1.0:
        prob_MX = prob_MX.masked_fill(prob_MX.cumsum(dim=1) - prob_MX >= top_p, 0.0)
    sum_MX = prob_MX.cumsum(dim=1)
    place_M1 = uniform_M.unsqueeze(1) * sum_MX[:, -1:]
    index_M = torch.searchsorted(sum_MX, place_M1, right=True).clamp(max=sum_MX.size(1) - 1)
    return index_M.squeeze(1) if token_MX is None else token_MX.gather(1, index_M).squeeze(1)


@torch.inference_mode()
def _grow(
    model: Decodable[CacheT],
    src_BS: Tensor,
    src_lengths_B: Tensor,
    limits: Limits,
    length_penalty: float,
    rules: Sequence[Rule],
    C: int,
    choose: Choose,
    start: int,
    watch: Watch | None,
) -> list[Hypothesis]:
    """C translations of each sentence, those of one sentence together."""
    bounds = LengthBounds(*limits.bounds(src_lengths_B))
    B, max_steps, device = src_BS.size(0), bounds.longest_max + 1, src_BS.device
    cache = model.start(src_BS, src_lengths_B, C, max_steps)
    tokens_NT = torch.full((B * C, max_steps), PAD, device=device)
    own_NT = torch.zeros(B * C, max_steps, device=device)
    row_M = torch.arange(B * C, device=device)
    token_M = torch.full((B * C,), start, device=device)
    done_M = torch.zeros(B * C, dtype=torch.bool, device=device)
    for position in range(max_steps):
        logits_MV, exact_logits = model.step(token_M, cache)
        own_M1V = log_probs(logits_MV, 1)
        exact = None if rules else correction(exact_logits, logits_MV, 1)
        step = Step(own_M1V, own_M1V, tokens_NT[row_M, :position].unsqueeze(1), row_M // C, exact)
        if watch is not None:
            watch(step)
        token_M = choose(apply(rules, bounds, step), row_M, position).masked_fill(done_M, PAD)
        own_M = own_M1V.squeeze(1).gather(1, token_M.unsqueeze(1)).squeeze(1)
        tokens_NT[row_M, position] = token_M
        own_NT[row_M, position] = own_M.masked_fill(done_M, 0.0)
        done_M = done_M | (token_M == EOS)
        keep_B = may_leave(done_M.view(-1, C).all(dim=1), position)
        if keep_B is not None:
            if keep_B.size(0) == 0:
                break
            cache.keep(keep_B)
            keep_M = (keep_B.unsqueeze(1) * C + torch.arange(C, device=device)).flatten()
            row_M, token_M, done_M = row_M[keep_M], token_M[keep_M], done_M[keep_M]
    return to_hypotheses(tokens_NT, own_NT, (tokens_NT != PAD).sum(dim=1), length_penalty)
