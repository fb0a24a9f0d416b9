"""Batches with a token budget, whose contents are determined by (seed, epoch, window number).

Tensor dimensions: B pairs; S and T are the source and target length in tokens, including eos or bos.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain, count, islice
from typing import Any, TypeVar

import numpy as np
import pyarrow.compute as pc
import torch
from torch import Tensor

from mtformer.data.batching.mixture import START, Corpus, Mixture, SamplerState, Window
from mtformer.data.store.pairs import Column, Ints, Lengths, Pairs, flat, id_column, join, lengths, make_pairs, prefix
from mtformer.errors import log
from mtformer.text.tokenizer import BOS, EOS, PAD, UNK

NUM_AHEAD = 8  # maximum number of prefetched batches
T = TypeVar("T")


@dataclass(frozen=True)
class Batch:
    """Padded pairs. Token counts include eos and exclude padding."""

    src_BS: Tensor
    """int64; each row ends with eos, then pad."""
    tgt_in_BT: Tensor
    """int64; each row starts with bos."""
    tgt_out_BT: Tensor
    """int64; `tgt_in_BT` shifted by one token: each row ends with eos, then pad."""
    src_lengths_B: Tensor
    """int64; number of tokens of each source, including eos."""
    num_pairs: int
    num_src_tokens: int
    num_tgt_tokens: int
    pairs_of: Mapping[str, int] = field(default_factory=dict)
    """Number of pairs by corpus; empty if there is only one corpus."""
    end: SamplerState = START
    """Sampler state after this batch and the batches of the other processes in the same step."""

    @property
    def num_padded_tokens(self) -> int:
        """Number of pairs x length of the longer side, including padding; limited by `batch_tokens`."""
        return self.src_BS.size(0) * max(self.src_BS.size(1), self.tgt_in_BT.size(1))

    def to(self, device: torch.device | str) -> "Batch":
        """Copy the batch to a device; a copy from pinned memory is asynchronous."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> "Batch":
        """Copy the batch to pinned memory (CUDA only)."""
        return self._each(lambda tensor: tensor.pin_memory())

    def split(self, max_padded_tokens: int | None) -> "list[Batch]":
        """Split the batch into halves until each part has at most `max_padded_tokens`, or one pair."""
        num_rows = self.src_BS.size(0)
        if max_padded_tokens is None or self.num_padded_tokens <= max_padded_tokens or num_rows == 1:
            return [self]
        halves = (self._rows(slice(0, num_rows // 2)), self._rows(slice(num_rows // 2, num_rows)))
        return [piece for half in halves for piece in half.split(max_padded_tokens)]

    def without_targets(self) -> "Batch":
        """Return a batch of the same shape whose targets are padding: loss, gradients and all counts are 0."""
        nothing = torch.full_like(self.tgt_out_BT, PAD)
        return replace(self, tgt_out_BT=nothing, num_pairs=0, num_src_tokens=0, num_tgt_tokens=0, pairs_of={})

    def _rows(self, rows: slice) -> "Batch":
        tgt_out_BT, lengths_B = self.tgt_out_BT[rows], self.src_lengths_B[rows]
        tgt_mask_BT = tgt_out_BT != PAD
        S, T = int(lengths_B.max()), max(1, int(tgt_mask_BT.sum(dim=1).max()))
        return replace(
            self,
            src_BS=self.src_BS[rows, :S],
            tgt_in_BT=self.tgt_in_BT[rows, :T],
            tgt_out_BT=tgt_out_BT[:, :T],
            src_lengths_B=lengths_B,
            num_pairs=len(lengths_B),
            num_src_tokens=int(lengths_B.sum()),
            num_tgt_tokens=int(tgt_mask_BT.sum()),
        )

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        changed: dict[str, Any] = {key: change(value) for key, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **changed)


def make_batch(pairs: Sequence[tuple[list[int], list[int]]], start: int = BOS) -> Batch:
    """Return a batch of (source ids, target ids) pairs without bos and eos; decoder inputs start with `start`."""
    src, tgt = (id_column([pair[side] for pair in pairs]) for side in (0, 1))
    return _batch(make_pairs(src, tgt), start)


def plan_window(
    src_lengths: Lengths, tgt_lengths: Lengths, batch_tokens: int, random: np.random.Generator
) -> list[Ints]:
    """Return the indices of the pairs in each batch; each pair occurs once, in random order.

    The pairs are shuffled, then sorted by their longer side and, if equal, by the length difference, alternately in
    ascending and descending order, so that adjacent pairs are similar in both lengths. They are then cut into batches.
    The first batch has a random size, so that batches differ between epochs. Finally, the batches are shuffled.

    The lengths are numbers of tokens, excluding eos. `batch_tokens` is the maximum of (number of pairs x longest side,
    including eos) per batch; a longer pair gets a batch of its own.
    """
    order, upwards = random.permutation(len(src_lengths)), random.integers(2)
    src, tgt = src_lengths[order], tgt_lengths[order]
    longest = np.maximum(src, tgt)
    difference = np.where(longest % 2 == upwards, src - tgt, tgt - src)
    by_length = np.lexsort((difference, longest))
    first_tokens = 1 + int(random.integers(batch_tokens))
    batches = _cut(order[by_length], longest[by_length], batch_tokens, first_tokens)
    return [batches[number] for number in random.permutation(len(batches))]


def _cut(order: Ints, longest: Lengths, batch_tokens: int, first_tokens: int) -> list[Ints]:
    """Cut pairs, whose longer sides have these lengths, into batches that are as large as the budget allows."""
    sizes = longest.astype(np.int64) + 1
    batches: list[Ints] = []
    start, budget = 0, first_tokens
    while start < len(order):
        ahead = sizes[start : start + max(1, budget // int(sizes[start]))]
        padded_tokens = np.maximum.accumulate(ahead) * np.arange(1, len(ahead) + 1)
        size = max(1, int(np.searchsorted(padded_tokens, budget, side="right")))
        batches.append(order[start : start + size])
        start, budget = start + size, batch_tokens
    return batches


def ordered_batches(corpus: Corpus, batch_tokens: int, max_tokens: int | None = None) -> Iterator[Batch]:
    """Yield batches of a dev or test set, largest first, so that running out of memory is noticed early.

    The corpus is loaded into memory. Lines of more than `max_tokens` tokens, excluding eos, are cut, with a warning.
    """
    pairs = corpus.read()
    pairs = make_pairs(prefix(pairs["src"], corpus.tags), pairs["tgt"])
    longest = np.maximum(*map(lengths, pairs.columns))
    if max_tokens is not None and (num_long := int((longest > max_tokens).sum())):
        log.warning("%d of %d pairs were cut to %d tokens per side", num_long, len(pairs), max_tokens)
        pairs = make_pairs(*(pc.list_slice(side, 0, max_tokens) for side in pairs.columns))
        longest = np.minimum(longest, max_tokens)
    order = np.lexsort((np.arange(len(pairs)), lengths(pairs["src"]), longest))[::-1]
    for indices in _cut(order, longest[order], batch_tokens, batch_tokens):
        yield _batch(pairs.take(indices), corpus.start)


@dataclass(frozen=True)
class Sizes:
    """Batch sizes and number of batches of an epoch, estimated from its first window."""

    largest: Batch
    """The batch with the most padded tokens."""
    longest: Batch
    """A full batch of copies of the longest pair, because attention memory grows with the square of the length."""
    mean_padded_tokens: float
    num_batches: float
    """Approximate number of batches per epoch."""


@dataclass(frozen=True)
class TrainingBatches:
    """Training batches, determined by these values and the initial sampler state."""

    mixture: Mixture
    batch_tokens: int
    """See `plan_window`."""
    augmentation: Callable[[Pairs, tuple[int, ...]], Pairs] | None = None
    """Function of (pairs with text, seed) that returns augmented pairs without text; None: use the stored pairs."""

    def start(
        self,
        state: SamplerState = START,
        *,
        max_epochs: int | None = None,
        rank: int = 0,
        num_ranks: int = 1,
        pin: bool = False,
    ) -> Generator[Batch, None, None]:
        """Return a generator of the batches of consecutive epochs, prefetched by threads.

        Distributed processes share the same list of batches: process `rank` gets batch `rank` of each group of
        `num_ranks` batches. All get the same number of batches; in the last group, some may have no targets. A batch
        that `state` divides (because batch_tokens has changed) is whole. `pin`: copy to pinned memory, for faster CUDA.
        """
        windows = prefetch(self._windows(state, max_epochs), 1)
        return prefetch(self._share(windows, rank, num_ranks, pin), NUM_AHEAD)

    def sizes(self) -> Sizes:
        """Return the batch sizes of the first epoch."""
        mixture = self.mixture
        windows = chain.from_iterable(mixture.windows(epoch, None) for epoch in count())
        window = self._read(next(one for one in windows if one.num_pairs), 0)
        longest = 1 + np.maximum(*map(lengths, window.pairs.columns))
        padded_tokens = np.array([len(indices) * longest[indices].max() for indices in window.plan])
        src, tgt = np.max([corpus.longest() for corpus in mixture.corpora], axis=0).tolist()
        num_rows = max(1, self.batch_tokens // (1 + max(src, tgt)))
        return Sizes(
            largest=window.batch(window.plan[int(padded_tokens.argmax())]),
            longest=make_batch([([UNK] * src, [UNK] * tgt)] * num_rows),
            mean_padded_tokens=float(padded_tokens.mean()),
            num_batches=len(padded_tokens) * mixture.pairs_per_epoch / len(window.pairs),
        )

    def _windows(self, state: SamplerState, max_epochs: int | None) -> "Iterator[list[_Planned]]":
        """Load the windows of the run and yield the batches of each one, without batches that end before `state`."""
        epoch, passed, taken = state
        while max_epochs is None or epoch < max_epochs:
            pairs, after = 0, taken
            for blocks in self.mixture.windows(epoch, taken):
                after, end = blocks.taken_after, pairs + blocks.num_pairs
                if end > max(pairs, passed):
                    window = self._read(blocks, epoch)
                    ends = (pairs + np.cumsum([len(indices) for indices in window.plan])).tolist()
                    yield [
                        (window, indices, SamplerState(epoch, place, taken))
                        for indices, place in zip(window.plan, ends, strict=True)
                        if place > passed
                    ]
                pairs = end
            epoch, passed, taken = epoch + 1, 0, after

    def _share(self, windows: "Iterator[list[_Planned]]", rank: int, num_ranks: int, pin: bool) -> Iterator[Batch]:
        planned = chain.from_iterable(windows)
        while group := list(islice(planned, num_ranks)):
            window, indices, _ = group[min(rank, len(group) - 1)]
            batch = replace(window.batch(indices), end=group[-1][2])
            if rank >= len(group):
                batch = batch.without_targets()
            yield batch.pin_memory() if pin else batch

    def _read(self, blocks: Window, epoch: int) -> "_LoadedWindow":
        """Load the pairs of a window and plan its batches."""
        corpora = self.mixture.corpora
        parts, numbers = list[Pairs](), list[Ints]()
        for number, (corpus, some) in enumerate(zip(corpora, blocks.blocks, strict=True)):
            if not len(some):
                continue
            pairs = corpus.read(some)
            if self.augmentation is not None:
                pairs = self.augmentation(pairs, (self.mixture.seed, epoch, blocks.number, number))
            parts.append(make_pairs(prefix(pairs["src"], corpus.tags), pairs["tgt"]))
            numbers.append(np.full(len(pairs), number))
        joined = join(parts)
        random = np.random.Generator(np.random.PCG64([self.mixture.seed, epoch, blocks.number]))
        plan = plan_window(lengths(joined["src"]), lengths(joined["tgt"]), self.batch_tokens, random)
        return _LoadedWindow(joined, corpora, np.concatenate(numbers), plan)


@dataclass(frozen=True)
class _LoadedWindow:
    """The pairs of a window, the number of the corpus of each pair, and the indices of the pairs in each batch."""

    pairs: Pairs
    corpora: Sequence[Corpus]
    corpus_B: Ints
    plan: list[Ints]

    def batch(self, indices: Ints) -> Batch:
        corpus_B = self.corpus_B[indices]
        starts = np.array([corpus.start for corpus in self.corpora])
        batch = _batch(self.pairs.take(indices), starts[corpus_B])
        if len(self.corpora) == 1:
            return batch
        counts = np.bincount(corpus_B, minlength=len(self.corpora)).tolist()
        return replace(batch, pairs_of={corpus.name: n for corpus, n in zip(self.corpora, counts, strict=True)})


_Planned = tuple[_LoadedWindow, Ints, SamplerState]
"""A window, the indices of the pairs in a batch, and the sampler state after the batch."""


def _batch(pairs: Pairs, start: int | Ints) -> Batch:
    src, tgt = pairs.columns
    src_lengths_B = lengths(src).astype(np.int64) + 1
    return Batch(
        src_BS=_fill(src),
        tgt_in_BT=_fill(tgt, start),
        tgt_out_BT=_fill(tgt),
        src_lengths_B=torch.from_numpy(src_lengths_B),
        num_pairs=len(src),
        num_src_tokens=int(src_lengths_B.sum()),
        num_tgt_tokens=int(lengths(tgt).sum()) + len(tgt),
    )


def _fill(side: Column, start: int | Ints | None = None) -> Tensor:
    """Return padded rows of ids that begin with `start` or, if it is None, end with eos."""
    ids_N, lengths_B = flat(side)
    column = np.arange(lengths_B.max(initial=0))
    ids_BS = np.full((len(lengths_B), len(column) + 1), PAD, dtype=np.int64)
    inner_BS = ids_BS[:, :-1] if start is None else ids_BS[:, 1:]
    inner_BS[column < lengths_B[:, None]] = ids_N
    if start is None:
        ids_BS[np.arange(len(lengths_B)), lengths_B] = EOS
    else:
        ids_BS[:, 0] = start
    return torch.from_numpy(ids_BS)


def prefetch(source: Iterator[T], num_ahead: int) -> Generator[T, None, None]:
    """Yield the items of an iterator; a thread computes up to `num_ahead` items in advance.

    The thread, which is the only one that uses `source`, starts with the first item, and ends when the generator is
    closed or garbage-collected. If it raises an exception, so does this generator, after the preceding items.
    """
    end: Any = object()
    thread = ThreadPoolExecutor(1, "prefetch")
    try:
        ahead = deque(thread.submit(next, source, end) for _ in range(num_ahead))
        while (item := ahead.popleft().result()) is not end:
            ahead.append(thread.submit(next, source, end))
            yield item
    finally:
        thread.shutdown(cancel_futures=True)
