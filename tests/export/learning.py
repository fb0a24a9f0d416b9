"""Short training, after which a tiny model generates eos and a different translation for each line."""

import random
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

STEPS, BATCH, WARMUP, RATE = 100, 32, 30, 5e-3


def teach(
    parameters: Iterable[nn.Parameter],
    logits: Callable[[Tensor, Tensor], Tensor],
    sources: Sequence[list[int]],
    targets: Sequence[list[int]],
    pad: int,
) -> None:
    """Train a model for some steps with Adam.

    Args:
        parameters: parameters of the model.
        logits: function (src_BS, tgt_in_BT) -> logits_BTV.
        sources: source ids ending with eos.
        targets: decoder start token, target ids and eos.
        pad: padding id.
    """
    parameters, rng = list(parameters), random.Random(0)
    by_length = sorted(zip(sources, targets, strict=True), key=lambda pair: len(pair[0]))
    optimizer = torch.optim.Adam(parameters, betas=(0.9, 0.98))
    for step in range(1, STEPS + 1):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, step / WARMUP)
        start = rng.randrange(len(by_length) - BATCH)
        src_BS, tgt_BT = (fill(side, pad) for side in zip(*by_length[start : start + BATCH], strict=True))
        logits_BTV = logits(src_BS, tgt_BT[:, :-1])
        loss = nn.functional.cross_entropy(logits_BTV.flatten(0, 1), tgt_BT[:, 1:].flatten(), ignore_index=pad)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()


def fill(rows: Sequence[list[int]], pad: int) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [pad] * (longest - len(row)) for row in rows])
