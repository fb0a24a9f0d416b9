"""Score given translations: the log-probability of each token, and its attention to the source.

B sentences, S source length, T target length (eos counted), V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from mtformer.decoding.inference import InferenceModel, mean_log_probs
from mtformer.model.attention import record_weights
from mtformer.model.ops import padding_mask
from mtformer.model.transformer import DecoderLayer
from mtformer.text.tokenizer import BOS, EOS, PAD

POSITIONS_AT_ONCE = 2048
"""Target positions whose V probabilities are in memory at the same time."""


def pad(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return rows of ids padded on the right, (B, longest), and their lengths (B,); int64."""
    lengths = [len(row) for row in rows]
    longest = max(lengths)
    filled = [[*row, *[PAD] * (longest - len(row))] for row in rows]
    return torch.tensor(filled, device=device), torch.tensor(lengths, device=device)


@torch.inference_mode()
def score_targets(
    models: Sequence[InferenceModel],
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    start: int = BOS,
) -> list[list[float]]:
    """Return log p(token | source, previous tokens) for each token of each target, and for the eos after them.

    Args:
        models: in evaluation mode; several: their mean probabilities.
        sources: ids with eos.
        targets: ids without bos and eos.
        start: first token of the decoder.
    """
    device = models[0].transformer.output.device
    src_BS, src_lengths_B = pad(sources, device)
    tgt_BT, lengths_B = pad([[start, *target, EOS] for target in targets], device)
    is_real_BT = padding_mask(lengths_B - 1, tgt_BT.size(1) - 1)
    hidden_ND = [model.transformer(src_BS, src_lengths_B, tgt_BT[:, :-1])[is_real_BT] for model in models]
    next_N = tgt_BT[:, 1:][is_real_BT]
    found = []
    for first in range(0, len(next_N), POSITIONS_AT_ONCE):
        here = slice(first, first + POSITIONS_AT_ONCE)
        logits = [model.project(hidden[here]) for model, hidden in zip(models, hidden_ND, strict=True)]
        found += mean_log_probs(logits).gather(1, next_N[here].unsqueeze(1)).squeeze(1).tolist()
    rest = iter(found)
    return [[next(rest) for _ in range(len(target) + 1)] for target in targets]


@torch.inference_mode()
def attention_of_targets(
    models: Sequence[InferenceModel],
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    start: int = BOS,
) -> list[Tensor]:
    """Return the attention of each target token, and of the eos after them, to the source: (T, S) each, on the CPU.

    Arguments as in `score_targets`; several models: the mean. The weights are float32, the mean over the heads of
    `alignment_layer`.
    """
    device = models[0].transformer.output.device
    src_BS, src_lengths_B = pad(sources, device)
    tgt_in_BT, _ = pad([[start, *target] for target in targets], device)
    weights = []
    for model in models:
        decoder = model.transformer.decoder
        layer = decoder[alignment_layer(len(decoder))]
        assert isinstance(layer, DecoderLayer)
        attention = layer.cross_attention
        with record_weights([attention]) as recorded:
            model.transformer(src_BS, src_lengths_B, tgt_in_BT)
        weights.append(recorded[attention].mean(dim=1).float())
    mean_BTS = torch.stack(weights).mean(dim=0).cpu()
    pairs = zip(mean_BTS, sources, targets, strict=True)
    return [weights_TS[: len(target) + 1, : len(source)].clone() for weights_TS, source, target in pairs]


def alignment_layer(num_layers: int) -> int:
    """Return the decoder layer whose cross-attention is nearest to word alignments: the last but one, if any.

    Garg et al. 2019, section 4.1.
    """
    return max(0, num_layers - 2)
