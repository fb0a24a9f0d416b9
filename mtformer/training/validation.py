"""How good the model is on dev: loss and perplexity by the references, BLEU and chrF by its own translations."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from mtformer.data.batching.batches import Batch
from mtformer.training.ranks import Ranks
from mtformer.training.step import TrainingStep


class Decoded(NamedTuple):
    """What decoding dev gave."""

    metrics: dict[str, float]
    """Scores by name, e.g. bleu and chrf."""
    samples: list[tuple[str, str, str]]
    """A few (source, reference, hypothesis)."""


DecodeDev = Callable[[Callable[[int], object]], Decoded]
"""Translates dev with the model as it stands and scores it; search and scoring lie in other rooms.

What it is given is to be called after each batch, with the number of sentences done; what that raises ends it.
"""


def dev_loss(step: TrainingStep, batches: Iterable[Batch]) -> dict[str, float]:
    """Smoothed loss, and perplexity without smoothing, per target token (eos counted) over all of dev.

    Several processes share the batches; each gets the same figures.
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
    """This process's batches: as many as the others have, for sharded weights come together at each."""
    rest = iter(batches)
    while group := list(itertools.islice(rest, ranks.size)):
        yield group[ranks.rank] if ranks.rank < len(group) else group[-1].without_targets()
