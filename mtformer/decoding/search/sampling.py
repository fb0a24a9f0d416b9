"""Greedy search and sampling: each step adds one token to each row, either the most probable one or a random one.

B sentences, C translations per sentence, N = B x C rows, M rows still in the batch, T target length, V vocabulary,
X tokens to draw from.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mtformer.config.schema import DecodingConfig
from mtformer.decoding.search.candidates import Step, best_candidates
from mtformer.decoding.search.hypotheses import Hypothesis, to_hypotheses
from mtformer.decoding.search.inference import InferenceModel
from mtformer.decoding.search.steps import SearchBatch, StepDecoder, sentences_to_keep
from mtformer.text.tokenizer import EOS, PAD


@torch.inference_mode()
def generate(
    models: Sequence[InferenceModel],
    batch: SearchBatch,
    settings: DecodingConfig,
    keys: Sequence[int] = (),
) -> list[list[Hypothesis]]:
    """Return the greedy translation or the samples of each sentence.

    The length penalty affects only scores. Samples are returned in the order of their numbers, with scores at
    temperature 1.

    Args:
        models: models on one device; the probabilities of several are averaged.
        batch: sentences to search, with their rules and bounds.
        settings: settings of sampling, `seed` and `length_penalty`.
        keys: line numbers of the sentences in the user's input, needed for sampling: draws depend only on (seed, key,
            sample number, position), not on batching.
    """
    C = settings.num_rows
    N = len(batch.src_BS) * C
    T = batch.bounds.max_steps
    device = batch.src_BS.device
    uniform_NT = None
    if settings.draws:
        uniform_NT = _uniform_numbers(settings.seed, keys, C, T).to(device)

    decoder = StepDecoder(models, batch, C)
    tokens_NT = torch.full((N, T), PAD, device=device)
    raw_NT = torch.zeros(N, T, device=device)
    row_M = torch.arange(N, device=device)
    token_M = torch.full((N,), batch.start, device=device)
    done_M = torch.zeros(N, dtype=torch.bool, device=device)

    for position in range(T):
        history_Mt = tokens_NT[row_M, :position]
        sentence_M = row_M // C
        step = decoder.step(token_M.unsqueeze(1), history_Mt.unsqueeze(1), sentence_M)
        if uniform_NT is None:
            token_M = _best_tokens(step)
        else:
            token_M = _random_tokens(step, uniform_NT[row_M, position], settings)

        # Rows that are done stay in the batch until their whole sentence leaves it.
        token_M = token_M.masked_fill(done_M, PAD)
        tokens_NT[row_M, position] = token_M
        raw_NT[row_M, position] = _raw_log_probs(step, token_M)
        done_M = done_M | (token_M == EOS)

        done_BC = done_M.view(-1, C)
        keep_B = sentences_to_keep(done_BC, position)
        if keep_B is not None:
            if keep_B.size(0) == 0:
                break
            decoder.keep(keep_B)
            first_B1 = keep_B.unsqueeze(1) * C
            keep_BC = first_B1 + torch.arange(C, device=device)
            keep_M = keep_BC.flatten()
            row_M = row_M[keep_M]
            token_M = token_M[keep_M]
            done_M = done_M[keep_M]

    hypotheses = to_hypotheses(tokens_NT, raw_NT, settings.length_penalty)
    first_rows = range(0, N, C)
    return [hypotheses[first : first + C] for first in first_rows]


def _uniform_numbers(seed: int, keys: Sequence[int], num_samples: int, num_steps: int) -> Tensor:
    """Return numbers in [0, 1) for each step (columns) of each sample of each sentence (rows), in float64.

    Each sample has its own generator, so its numbers do not depend on other sentences or on the number of samples.
    """
    rows = []
    for key in keys:
        for number in range(num_samples):
            generator = np.random.default_rng((seed, key, number))
            row = generator.random(num_steps)
            rows.append(row)
    return torch.from_numpy(np.stack(rows))


def _best_tokens(step: Step) -> Tensor:
    """Return the most probable token (M,) of each row."""
    num_rows = len(step.log_prob_URV)
    score_M1 = step.log_prob_URV.new_zeros(num_rows, 1)
    best = best_candidates(step, score_M1, 1)
    return best.token_BK.squeeze(1)


def _random_tokens(step: Step, uniform_M: Tensor, settings: DecodingConfig) -> Tensor:
    """Return a token (M,) for each row, drawn with numbers in [0, 1)."""
    log_prob_MV = step.log_prob_URV.squeeze(1)
    return draw_tokens(log_prob_MV, uniform_M, settings.temperature, settings.top_k, settings.top_p)


def _raw_log_probs(step: Step, token_M: Tensor) -> Tensor:
    """Return the unmodified log-probability (M,) of the token of each row."""
    raw_MV = step.raw_URV.squeeze(1)
    raw_M1 = raw_MV.gather(1, token_M.unsqueeze(1))
    return raw_M1.squeeze(1)


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

    # Shifted so that the maximum is 0: otherwise, all values could become -inf at very low temperatures.
    log_prob_MX = log_prob_MV.double()
    max_M1 = log_prob_MX.amax(dim=1, keepdim=True)
    shifted_MX = log_prob_MX - max_M1
    prob_MX = (shifted_MX / temperature).softmax(dim=1)
    if top_p < 1.0:
        prob_before_MX = prob_MX.cumsum(dim=1) - prob_MX
        prob_MX = prob_MX.masked_fill(prob_before_MX >= top_p, 0.0)

    # The probabilities are not normalized again; instead, the uniform numbers are scaled to their sum.
    cumulative_MX = prob_MX.cumsum(dim=1)
    sum_M1 = cumulative_MX[:, -1:]
    place_M1 = uniform_M.unsqueeze(1) * sum_M1
    index_M1 = torch.searchsorted(cumulative_MX, place_M1, right=True)
    last_index = cumulative_MX.size(1) - 1
    token_M1 = index_M1.clamp(max=last_index)
    if token_MX is not None:
        token_M1 = token_MX.gather(1, token_M1)
    return token_M1.squeeze(1)
