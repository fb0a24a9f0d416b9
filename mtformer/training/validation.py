"""Validation on dev: loss and perplexity on the references, and types of the function that decodes and scores dev."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from mtformer.data.batching.batches import Batch
from mtformer.training.ranks import Ranks
from mtformer.training.step import TrainingStep


class Decoded(NamedTuple):
    """Scores and sample translations from decoding dev."""

    metrics: dict[str, float]
    """Scores by name, e.g. bleu and chrf."""
    samples: list[tuple[str, str, str]]
    """A few triples (source, reference, hypothesis)."""


DecodeDev = Callable[[Callable[[int], object]], Decoded]
"""Translates dev with the current model and scores it.

The argument is called after each batch with the number of finished sentences; an exception it raises ends decoding.
"""


def dev_loss(step: TrainingStep, batches: Iterable[Batch]) -> dict[str, float]:
    """Return the label-smoothed loss and the perplexity (without smoothing) per target token, including eos.

    Batches are distributed over the processes; all processes return the same result.
    """
    loss = nll = num_tokens = 0.0
    for batch in _own(batches, step.ranks):
        batch_loss, batch_nll = step.evaluate(batch)
        loss += batch_loss
        nll += batch_nll
        num_tokens += batch.num_tgt_tokens
    loss, nll, num_tokens = step.ranks.sum([loss, nll, num_tokens])
    return {"loss": loss / num_tokens, "perplexity": math.exp(min(nll / num_tokens, 700.0))}


def _own(batches: Iterable[Batch], ranks: Ranks) -> Iterator[Batch]:
    """Yield the batches of this process.

    All processes get the same number of batches, because each must take part in gathering sharded weights.
    """
    rest = iter(batches)
    while group := list(itertools.islice(rest, ranks.size)):
        yield group[ranks.rank] if ranks.rank < len(group) else group[-1].without_targets()
