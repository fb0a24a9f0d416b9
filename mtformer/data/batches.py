"""Batches by a token budget: a function of (seed, epoch, number of the window) and of nothing else.

B pairs, S source length and T target length in tokens, eos or bos counted.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtformer.data.mixture import START, Corpus, Mixture, Place, Window
from mtformer.data.prefetch import Ahead
from mtformer.data.ragged import Ints, Ragged
from mtformer.data.store import Pairs
from mtformer.text.tokenizer import BOS, EOS, PAD, UNK

log = logging.getLogger("mtformer")


@dataclass(frozen=True)
class Batch:
    """Padded pairs. Counts are in tokens, with eos, without padding."""

    src_BS: Tensor
    """int64; each row ends with eos, then pad."""
    tgt_in_BT: Tensor
    """int64; each row starts with bos."""
    tgt_out_BT: Tensor
    """int64; what follows each token of `tgt_in_BT`: each row ends with eos, then pad."""
    src_lengths_B: Tensor
    """int64; tokens of each source, eos counted."""
    num_pairs: int
    num_src_tokens: int
    num_tgt_tokens: int
    pairs_of: Mapping[str, int] = field(default_factory=dict)
    """Pairs by corpus; empty when there is only one."""
    end: Place = START
    """Where the run stands after it, and after the batches of other processes beside it."""

    @property
    def num_cells(self) -> int:
        """Pairs times the longer of the two lengths, padding counted: what `batch_tokens` limits."""
        return self.src_BS.size(0) * max(self.src_BS.size(1), self.tgt_in_BT.size(1))

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch there; from pinned memory the copy does not wait."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> "Batch":
        """The same batch in page-locked memory (CUDA only)."""
        return self._each(lambda tensor: tensor.pin_memory())

    def split(self, max_cells: int | None) -> "list[Batch]":
        """Itself, or halves of halves until each has at most so many cells, or one pair."""
        num_rows = self.src_BS.size(0)
        if max_cells is None or self.num_cells <= max_cells or num_rows == 1:
            return [self]
        halves = (self._rows(slice(0, num_rows // 2)), self._rows(slice(num_rows // 2, num_rows)))
        return [piece for half in halves for piece in half.split(max_cells)]

    def without_targets(self) -> "Batch":
        """The same shapes with nothing to predict: no loss and no gradient comes of it, and it counts for nothing."""
        nothing = torch.full_like(self.tgt_out_BT, PAD)
        return replace(self, tgt_out_BT=nothing, num_pairs=0, num_src_tokens=0, num_tgt_tokens=0, pairs_of={})

    def _rows(self, rows: slice) -> "Batch":
        tgt_out_BT, lengths_B = self.tgt_out_BT[rows], self.src_lengths_B[rows]
        tgt_keep_BT = tgt_out_BT != PAD
        S, T = int(lengths_B.max()), max(1, int(tgt_keep_BT.sum(dim=1).max()))
        counts = (len(lengths_B), int(lengths_B.sum()), int(tgt_keep_BT.sum()))
        return replace(
            self,
            src_BS=self.src_BS[rows, :S],
            tgt_in_BT=self.tgt_in_BT[rows, :T],
            tgt_out_BT=tgt_out_BT[:, :T],
            src_lengths_B=lengths_B,
            num_pairs=counts[0],
            num_src_tokens=counts[1],
            num_tgt_tokens=counts[2],
        )

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        return replace(
            self,
            src_BS=change(self.src_BS),
            tgt_in_BT=change(self.tgt_in_BT),
            tgt_out_BT=change(self.tgt_out_BT),
            src_lengths_B=change(self.src_lengths_B),
        )


def pad(sentences: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
    """Right-pads ids as they are (nothing is added): ids_BS and lengths_B, both int64."""
    side = Ragged.of(sentences)
    return _fill(side), torch.from_numpy(side.lengths_B.astype(np.int64))


def make_batch(pairs: Sequence[tuple[list[int], list[int]]], start: int = BOS) -> Batch:
    """A batch of (source ids, target ids), both without bos and eos; targets start with `start` in the decoder."""
    return _batch(Ragged.of([pair[0] for pair in pairs]), Ragged.of([pair[1] for pair in pairs]), start)


def plan_window(
    src_lengths: NDArray[np.int32],
    tgt_lengths: NDArray[np.int32],
    batch_tokens: int,
    random: np.random.Generator,
) -> list[Ints]:
    """Which pairs make which batch: each pair once, in a random order.

    The pairs are shuffled, then sorted by their longer side and, among equals, by the difference of the sides, up and
    down in turn, so that neighbours are alike in both lengths. Batches are cut from that, of which the first has a
    random size, lest the same pairs come together in every epoch. Then the batches are shuffled.

    Args:
        src_lengths: tokens of each source, eos not counted.
        tgt_lengths: tokens of each target, eos not counted.
        batch_tokens: a batch of n pairs has n x (longest side, eos counted) up to this; a pair that is above it alone
            is a batch of its own.
        random: where the order comes from.

    Returns:
        the indices of the pairs of each batch.
    """
    order, upwards = random.permutation(len(src_lengths)), random.integers(2)
    src, tgt = src_lengths[order], tgt_lengths[order]
    longest = np.maximum(src, tgt)
    difference = np.where(longest % 2 == upwards, src - tgt, tgt - src)
    order = order[np.lexsort((difference, longest))]
    batches = _cut(order, src_lengths, tgt_lengths, batch_tokens, 1 + int(random.integers(batch_tokens)))
    return [batches[number] for number in random.permutation(len(batches))]


def plan_in_order(src_lengths: NDArray[np.int32], tgt_lengths: NDArray[np.int32], batch_tokens: int) -> list[Ints]:
    """Which pairs make which batch for dev and test: by length, the largest batches first; no randomness."""
    longest = np.maximum(src_lengths, tgt_lengths)
    order = np.lexsort((np.arange(len(longest)), src_lengths, longest))[::-1]
    return _cut(order, src_lengths, tgt_lengths, batch_tokens)


def _cut(
    order: Ints,
    src_lengths: NDArray[np.int32],
    tgt_lengths: NDArray[np.int32],
    batch_tokens: int,
    first_tokens: int | None = None,
) -> list[Ints]:
    """Cuts batches from pairs in this order, each as large as its budget allows."""
    longest = np.maximum(src_lengths, tgt_lengths)[order].astype(np.int64) + 1
    batches: list[Ints] = []
    start, budget = 0, first_tokens or batch_tokens
    while start < len(order):
        ahead = longest[start : start + max(1, budget // int(longest[start]))]
        cells = np.maximum.accumulate(ahead) * np.arange(1, len(ahead) + 1)
        size = max(1, int(np.searchsorted(cells, budget, side="right")))
        batches.append(order[start : start + size])
        start, budget = start + size, batch_tokens
    return batches


def ordered_batches(corpus: Corpus, batch_tokens: int, max_tokens: int | None = None) -> Iterator[Batch]:
    """Batches of dev or test, the largest first, so that a lack of memory shows at once.

    Args:
        corpus: what fits the memory.
        batch_tokens: as in `plan_window`.
        max_tokens: longest side, eos not counted, that the model takes; what is longer is cut, and told in the log.
    """
    pairs = corpus.read(np.arange(corpus.store.num_blocks))
    src, tgt = pairs.src.prefixed(corpus.tags), pairs.tgt
    if max_tokens is not None:
        num_long = int((np.maximum(src.lengths_B, tgt.lengths_B) > max_tokens).sum())
        if num_long:
            log.warning("%d of %d pairs cut to %d tokens a side", num_long, len(pairs), max_tokens)
        src, tgt = src.shortened(max_tokens), tgt.shortened(max_tokens)
    for indices in plan_in_order(src.lengths_B, tgt.lengths_B, batch_tokens):
        yield _batch(src.take(indices), tgt.take(indices), corpus.start)


@dataclass(frozen=True)
class Sizes:
    """What is known of an epoch from its first window."""

    largest: Batch
    """The one with the most cells."""
    longest: Batch
    """As many of the longest pair as fit a batch: what attention holds grows with the square of the length."""
    mean_cells: float
    num_batches: float
    """In the epoch, about."""


class TrainingBatches:
    """Training batches: a function of what is given here and of the place to start from, and of nothing else.

    Args:
        mixture: which pairs come when.
        batch_tokens: as in `plan_window`.
        changes: makes the pairs of a window other ones in each epoch, or leaves them as they are.
    """

    def __init__(self, mixture: Mixture, batch_tokens: int, changes: "Change | None" = None) -> None:
        self.mixture = mixture
        self.batch_tokens = batch_tokens
        self.changes = changes

    def start(
        self,
        place: Place = START,
        step: int = 0,
        *,
        batches_per_step: int = 1,
        max_epochs: int | None = None,
        rank: int = 0,
        num_ranks: int = 1,
        pin: bool = False,
        ahead: int = 8,
    ) -> Ahead[Batch]:
        """Batches epoch after epoch, made ahead by threads; with `close()`, and usable in `with`.

        Several processes take turns on the same list: of each `num_ranks` batches in a row, process `rank` gets the
        one of its number, all in all as many as each other. Those that have none left at the very end get one without
        targets.

        Args:
            place: where to start; when it is inside a batch (batch_tokens was changed), that batch comes whole.
            step: of the run, there; with `batches_per_step`, of all processes, it tells the weights' schedule the time.
            max_epochs: the end; None: never.
            rank, num_ranks: this process, and how many there are.
            pin: put them into page-locked memory, from which CUDA copies without waiting.
            ahead: batches that wait ready at most.
        """
        windows = Ahead(self._windows(place, step, batches_per_step, max_epochs), 1)
        return Ahead(self._share(windows, rank, num_ranks, pin), ahead)

    def sizes(self) -> Sizes:
        """Of the first epoch."""
        mixture = self.mixture
        window = self._read(next(mixture.windows(0, 0, mixture.begin(START))), 0)
        longest = 1 + np.maximum(window.src.lengths_B, window.tgt.lengths_B)
        cells = np.array([len(indices) * longest[indices].max() for indices in window.plan])
        src, tgt = np.max([corpus.longest() for corpus in mixture.corpora], axis=0).tolist()
        num_rows = max(1, self.batch_tokens // (1 + max(src, tgt)))
        return Sizes(
            largest=window.batch(window.plan[int(cells.argmax())]),
            longest=make_batch([([UNK] * src, [UNK] * tgt)] * num_rows),
            mean_cells=float(cells.mean()),
            num_batches=len(cells) * mixture.pairs_per_epoch(0) / len(window.src),
        )

    def _windows(self, place: Place, step: int, batches_per_step: int, max_epochs: int | None) -> "Iterator[_Window]":
        """Every window of the run, read and planned; of the first one only what is left of it."""
        mixture, num_batches = self.mixture, 0
        epoch, passed, since_step, taken = place.epoch, place.pairs, place.since_step, mixture.begin(place)
        while max_epochs is None or epoch < max_epochs:
            pairs, shares, after = 0, mixture.shares(since_step), taken
            for blocks in mixture.windows(epoch, since_step, taken):
                after, end = blocks.taken_after, pairs + blocks.num_pairs
                if end > passed:
                    window = self._read(blocks, epoch)
                    window.go_on(Place(epoch, pairs, since_step, taken), passed)
                    num_batches += len(window.plan)
                    yield window
                pairs = end
                if pairs >= passed and mixture.shares(step + num_batches // batches_per_step) != shares:
                    break
            epoch, passed, since_step, taken = epoch + 1, 0, step + num_batches // batches_per_step, after

    def _share(self, windows: "Ahead[_Window]", rank: int, num_ranks: int, pin: bool) -> Iterator[Batch]:
        with windows:
            places = ((window, number) for window in windows for number in range(len(window.plan)))
            while group := list(islice(places, num_ranks)):
                (mine, number), (last, last_number) = group[min(rank, len(group) - 1)], group[-1]
                batch = replace(mine.batch(mine.plan[number]), end=last.ends[last_number])
                if rank >= len(group):
                    batch = batch.without_targets()
                yield batch.pin_memory() if pin else batch

    def _read(self, blocks: Window, epoch: int) -> "_Window":
        """The pairs of a window, and its batches."""
        corpora = self.mixture.corpora
        parts, numbers = [], []
        for number, (corpus, some) in enumerate(zip(corpora, blocks.blocks, strict=True)):
            if not len(some):
                continue
            pairs = corpus.read(some)
            if self.changes is not None:
                pairs = self.changes(pairs, (self.mixture.seed, epoch, blocks.number, number))
            parts.append(Pairs(pairs.src.prefixed(corpus.tags), pairs.tgt))
            numbers.append(np.full(len(pairs), number))
        both = Pairs.joined(parts) if parts else Pairs(Ragged.of([]), Ragged.of([]))
        random = np.random.Generator(np.random.PCG64([self.mixture.seed, epoch, blocks.number]))
        plan = plan_window(both.src.lengths_B, both.tgt.lengths_B, self.batch_tokens, random)
        corpus_B = np.concatenate(numbers) if numbers else np.empty(0, np.int64)
        return _Window(both.src, both.tgt, corpora, corpus_B, plan)


Change = Callable[[Pairs, tuple[int, ...]], Pairs]
"""(pairs with their text, a seed) -> the pairs as an epoch sees them, without text."""


class _Window:
    """What is in memory: pairs, and which of them make which batch."""

    def __init__(self, src: Ragged, tgt: Ragged, corpora: Sequence[Corpus], corpus_B: Ints, plan: list[Ints]) -> None:
        self.src, self.tgt, self.corpora, self.corpus_B, self.plan = src, tgt, corpora, corpus_B, plan
        self.ends: list[Place] = []

    def go_on(self, begin: Place, passed: int) -> None:
        """Leaves out the batches that lie behind `passed` pairs of the epoch; the window begins at `begin`."""
        ends = (begin.pairs + np.cumsum([len(indices) for indices in self.plan])).tolist()
        first = int(np.searchsorted(ends, passed, side="right"))
        self.plan = self.plan[first:]
        self.ends = [begin._replace(pairs=end) for end in ends[first:]]

    def batch(self, indices: Ints) -> Batch:
        """Of these pairs."""
        corpus_B = self.corpus_B[indices]
        starts = np.array([corpus.start for corpus in self.corpora])
        batch = _batch(self.src.take(indices), self.tgt.take(indices), starts[corpus_B])
        if len(self.corpora) == 1:
            return batch
        counts = np.bincount(corpus_B, minlength=len(self.corpora)).tolist()
        return replace(batch, pairs_of={corpus.name: n for corpus, n in zip(self.corpora, counts, strict=True)})


def _batch(src: Ragged, tgt: Ragged, start: int | Ints) -> Batch:
    src_lengths_B = src.lengths_B.astype(np.int64) + 1
    return Batch(
        src_BS=_fill(src, last=EOS),
        tgt_in_BT=_fill(tgt, first=start),
        tgt_out_BT=_fill(tgt, last=EOS),
        src_lengths_B=torch.from_numpy(src_lengths_B),
        num_pairs=len(src),
        num_src_tokens=int(src_lengths_B.sum()),
        num_tgt_tokens=int(tgt.lengths_B.sum()) + len(tgt),
    )


def _fill(side: Ragged, first: int | Ints | None = None, last: int | None = None) -> Tensor:
    """Rows of ids, with `first` before or `last` behind each, and pad behind that."""
    extra, shift = int(first is not None) + int(last is not None), int(first is not None)
    lengths_B = side.lengths_B
    longest = int(lengths_B.max(initial=0))
    ids_BS = np.full((len(lengths_B), longest + extra), PAD, dtype=np.int64)
    column = np.arange(longest)
    ids_BS[:, shift : shift + longest][column < lengths_B[:, None]] = side.ids_N
    if first is not None:
        ids_BS[:, 0] = first
    if last is not None:
        ids_BS[np.arange(len(lengths_B)), lengths_B + shift] = last
    return torch.from_numpy(ids_BS)
