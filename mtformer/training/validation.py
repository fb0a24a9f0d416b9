"""Validation on dev: loss and perplexity of the references; types for decoding."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from mtformer.data.batching.batches import Batch
from mtformer.training.ranks import Ranks
from mtformer.training.step import TrainingStep


class Decoded(NamedTuple):
    """Result of decoding dev."""

    metrics: dict[str, float]
    """Scores by name, e.g. bleu and chrf."""
    samples: list[tuple[str, str, str]]
    """A few (source, reference, hypothesis)."""


DecodeDev = Callable[[Callable[[int], object]], Decoded]
"""Translates dev with the current model and scores it.

It calls its argument after each batch with the number of finished sentences; an exception of that call ends it.
"""


def dev_loss(step: TrainingStep, batches: Iterable[Batch]) -> dict[str, float]:
    """Return smoothed loss, and perplexity without smoothing, per target token (eos included) of all batches.

    The processes share the batches, and all get the same result.
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
    """Yield this process's batches; all processes get equally many, because sharded weights are gathered at each."""
    rest = iter(batches)
    while group := list(itertools.islice(rest, ranks.size)):
        yield group[ranks.rank] if ranks.rank < len(group) else group[-1].without_targets()
