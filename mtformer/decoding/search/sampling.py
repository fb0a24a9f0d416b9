"""Greedy search and sampling: each step adds one token to each row, either the most probable one or a random one.

B sentences, C translations per sentence, N = B x C rows, M rows still in the batch, S source length, T target length,
V vocabulary, X tokens to draw from.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mtformer.config.schema import DecodingConfig
from mtformer.decoding.search.candidates import Hypothesis, sentences_to_keep, to_hypotheses, top_candidates
from mtformer.decoding.search.inference import InferenceModel
from mtformer.decoding.search.rules import LengthBounds, Rule, next_step
from mtformer.text.tokenizer import BOS, EOS, PAD


@torch.inference_mode()
def generate(
    models: Sequence[InferenceModel],
    src_BS: Tensor,
    src_lengths_B: Tensor,
    settings: DecodingConfig,
    bounds: LengthBounds,
    *,
    rules: Sequence[Rule] = (),
    keys: Sequence[int] = (),
    start: int = BOS,
) -> list[list[Hypothesis]]:
    """Return the greedy translation or the samples of each sentence.

    For all arguments except `keys` see `beam_search`; the length penalty affects only scores. Samples are returned in
    the order of their numbers, with scores at temperature 1. `keys` are the line numbers of the sentences in the user's
    input, needed for sampling: draws depend only on (seed, key, sample number, position), not on batching.
    """
    B, C, max_steps, device = src_BS.size(0), settings.num_rows, bounds.max_steps, src_BS.device
    uniform_NT = None
    if settings.draws:
        # Each sample has its own generator, so its numbers do not depend on other sentences or on the number of rows.
        generators = [np.random.default_rng((settings.seed, key, number)) for key in keys for number in range(C)]
        uniform_NT = torch.from_numpy(np.stack([one.random(max_steps) for one in generators])).to(device)
    caches = [model.start(src_BS, src_lengths_B, C, max_steps) for model in models]
    tokens_NT = torch.full((B * C, max_steps), PAD, device=device)
    raw_NT = torch.zeros(B * C, max_steps, device=device)
    row_M = torch.arange(B * C, device=device)
    token_M = torch.full((B * C,), start, device=device)
    done_M = torch.zeros(B * C, dtype=torch.bool, device=device)
    for position in range(max_steps):
        history_M1t = tokens_NT[row_M, :position].unsqueeze(1)
        step = next_step(models, token_M.unsqueeze(1), caches, history_M1t, row_M // C, rules, bounds)
        if uniform_NT is None:
            zero_M1 = raw_NT.new_zeros(len(token_M), 1)
            token_M = top_candidates(step.log_prob_URV, zero_M1, 1, step.correct).token_BK.squeeze(1)
        else:
            shape = settings.temperature, settings.top_k, settings.top_p
            token_M = draw_tokens(step.log_prob_URV.squeeze(1), uniform_NT[row_M, position], *shape)
        token_M = token_M.masked_fill(done_M, PAD)
        tokens_NT[row_M, position] = token_M
        raw_NT[row_M, position] = step.raw_URV.squeeze(1).gather(1, token_M.unsqueeze(1)).squeeze(1)
        done_M = done_M | (token_M == EOS)
        keep_B = sentences_to_keep(done_M.view(-1, C), position)
        if keep_B is not None:
            if keep_B.size(0) == 0:
                break
            for cache in caches:
                cache.keep(keep_B)
            keep_M = (keep_B.unsqueeze(1) * C + torch.arange(C, device=device)).flatten()
            row_M, token_M, done_M = row_M[keep_M], token_M[keep_M], done_M[keep_M]
    hypotheses = to_hypotheses(tokens_NT, raw_NT, settings.length_penalty)
    return [hypotheses[i : i + C] for i in range(0, B * C, C)]


def draw_tokens(log_prob_MV: Tensor, uniform_M: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Draw one token (M,) per row: the one whose interval of the cumulative distribution contains `uniform_M`.

    Args:
        log_prob_MV: log-probabilities, float32; -inf excludes a token.
        uniform_M: numbers in [0, 1), float64.
        temperature: divides the log-probabilities.
        top_k: draw from the k most probable tokens (Fan et al. 2018); 0: from all tokens.
        top_p: draw from the smallest set of tokens with at least this probability (Holtzman et al. 2020, section 3.1).
    """
    V = log_prob_MV.size(1)
    num_kept = min(top_k or V, V)
    token_MX = None
    if num_kept < V or top_p < 1.0:
        log_prob_MV, token_MX = log_prob_MV.topk(num_kept)  # sorted, as top_p requires
    log_prob_MX = log_prob_MV.double()
    # Shifted so that the maximum is 0: otherwise, all values could become -inf at very low temperatures.
    prob_MX = ((log_prob_MX - log_prob_MX.amax(dim=1, keepdim=True)) / temperature).softmax(dim=1)
    if top_p < 1.0:
        prob_MX = prob_MX.masked_fill(prob_MX.cumsum(dim=1) - prob_MX >= top_p, 0.0)
    sum_MX = prob_MX.cumsum(dim=1)
    place_M1 = uniform_M.unsqueeze(1) * sum_MX[:, -1:]
    index_M = torch.searchsorted(sum_MX, place_M1, right=True).clamp(max=sum_MX.size(1) - 1)
    return index_M.squeeze(1) if token_MX is None else token_MX.gather(1, index_M).squeeze(1)
