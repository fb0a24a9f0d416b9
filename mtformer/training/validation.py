"""Validation on dev: loss and perplexity on the references, and types of the function that decodes and scores dev."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

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

    The result also has `loss NAME` and `perplexity NAME` for each name in `Batch.pairs_of`. Batches are distributed
    over the processes; all processes return the same result.
    """
    sums = {"": np.zeros(3)}
    for batch in _own(batches, step.ranks):
        values = np.array([*step.evaluate(batch), batch.num_tgt_tokens])
        for name in ("", *batch.pairs_of):
            sums[name] = sums.get(name, 0.0) + values
    names = list(dict.fromkeys(itertools.chain(*step.ranks.gather(list(sums)))))
    totals = step.ranks.sum(np.concatenate([sums.get(name, np.zeros(3)) for name in names]).tolist())
    metrics = {}
    for name, (loss, nll, num_tokens) in zip(names, np.reshape(totals, (-1, 3)).tolist(), strict=True):
        metrics[f"loss {name}".rstrip()] = loss / num_tokens
        metrics[f"perplexity {name}".rstrip()] = math.exp(min(nll / num_tokens, 700.0))
    return metrics


def _own(batches: Iterable[Batch], ranks: Ranks) -> Iterator[Batch]:
    """Yield the batches of this process.

    All processes get the same number of batches, because each must take part in gathering sharded weights.
    """
    rest = iter(batches)
    while group := list(itertools.islice(rest, ranks.size)):
        yield group[ranks.rank] if ranks.rank < len(group) else group[-1].without_targets()
