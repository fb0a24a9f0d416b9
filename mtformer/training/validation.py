"""How good the model is on dev: loss and perplexity by the references, BLEU and chrF by its own translations."""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch

from mtformer.data.batches import Batch
from mtformer.training.step import TrainingStep


class Decoded(NamedTuple):
    """What decoding dev gave."""

    metrics: dict[str, float]
    """Scores by name, e.g. bleu and chrf."""
    samples: list[tuple[str, str, str]]
    """A few (source, reference, hypothesis)."""


DecodeDev = Callable[[], Decoded]
"""Translates dev with the model as it stands and scores it; search and scoring lie in other rooms."""


@torch.no_grad()
def dev_loss(step: TrainingStep, batches: Iterable[Batch]) -> dict[str, float]:
    """Smoothed loss, and perplexity without smoothing, per target token (eos counted) over all of dev."""
    step.model.eval()
    loss = nll = num_tokens = 0.0
    for batch in batches:
        batch_loss, batch_nll = step.loss(batch)
        loss += batch_loss.item()
        nll += batch_nll.item()
        num_tokens += batch.num_tgt_tokens
    return {"loss": loss / num_tokens, "perplexity": math.exp(min(nll / num_tokens, 700.0))}
