"""Which sentences are translated together."""

from collections.abc import Sequence


def plan_batches(lengths: Sequence[int], batch_tokens: int, beam_size: int) -> list[list[int]]:
    """Sentence numbers in batches of like lengths, the longest first, so that a lack of memory shows at once.

    A batch of n sentences has n x beam_size x (its longest source) up to `batch_tokens`; a sentence that is above it
    alone is a batch of its own.

    Args:
        lengths: tokens of each source.
        batch_tokens: the budget.
        beam_size: rows that a sentence takes.
    """
    order = sorted(range(len(lengths)), key=lambda sentence: lengths[sentence], reverse=True)
    batches: list[list[int]] = []
    start = 0
    while start < len(order):
        rows = max(1, batch_tokens // (beam_size * max(1, lengths[order[start]])))
        batches.append(order[start : start + rows])
        start += rows
    return batches
