"""Batches by a token budget: a function of (seed, epoch, number of the batch) and of nothing else.

B pairs, S source length and T target length in tokens, eos or bos counted.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtformer.data.prefetch import Ahead
from mtformer.data.store import Ints, Ragged, Store
from mtformer.errors import DataError
from mtformer.text.tokenizer import BOS, EOS, PAD, TokenizerPair

WINDOW_PAIRS = 250_000
"""About so many pairs are sorted by length together; more would hardly lower the padding."""
GROWTH_SAMPLE = 2000
"""Pairs from which is learned how much longer sampled segmentations are."""
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
    epoch: int = 0
    index: int = 0
    """Number of the batch in its epoch, from 0."""
    end: tuple[int, int] = (0, 0)
    """Where the run stands after it, and after the batches of other processes beside it: (epoch, pairs of it)."""

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
        return replace(self, tgt_out_BT=nothing, num_pairs=0, num_src_tokens=0, num_tgt_tokens=0)

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


def pad(sentences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Right-pads ids as they are (nothing is added): ids_BS and lengths_B, both int64."""
    ids_N, lengths_B = _flatten(sentences)
    return _fill(ids_N, lengths_B), torch.from_numpy(lengths_B.astype(np.int64))


def make_batch(pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Batch:
    """A batch of (source ids, target ids), both without bos and eos."""
    src, tgt = _flatten([pair[0] for pair in pairs]), _flatten([pair[1] for pair in pairs])
    return _batch(Ragged(*src), Ragged(*tgt))


def plan_epoch(
    src_lengths: NDArray[np.int32], tgt_lengths: NDArray[np.int32], batch_tokens: int, seed: int, epoch: int
) -> list[Ints]:
    """Which pairs make which batch: each pair once, in an order that depends on (seed, epoch) alone.

    The pairs are shuffled and cut into windows; a window is sorted by its pairs' longer side and, among equals, by the
    difference of the sides, up and down in turn, so that neighbours are alike in both lengths. Batches are cut from
    it, of which the first has a random size, lest the same pairs come together in every epoch. Then the batches of all
    windows are shuffled.

    Args:
        src_lengths: tokens of each source, eos not counted.
        tgt_lengths: tokens of each target, eos not counted.
        batch_tokens: a batch of n pairs has n x (longest side, eos counted) up to this; a pair that is above it alone
            is a batch of its own.
        seed: of the run.
        epoch: from 0.

    Returns:
        the indices of the pairs of each batch.
    """
    random = np.random.Generator(np.random.PCG64([seed, epoch]))
    order = random.permutation(len(src_lengths))
    upwards = random.integers(2)
    batches: list[Ints] = []
    for window in np.array_split(order, max(1, round(len(order) / WINDOW_PAIRS))):
        src, tgt = src_lengths[window], tgt_lengths[window]
        longest = np.maximum(src, tgt)
        difference = np.where(longest % 2 == upwards, src - tgt, tgt - src)
        window = window[np.lexsort((difference, longest))]
        first_tokens = 1 + int(random.integers(batch_tokens))
        batches += _cut(window, src_lengths, tgt_lengths, batch_tokens, first_tokens)
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


def ordered_batches(store: Store, batch_tokens: int, max_tokens: int | None = None) -> Iterator[Batch]:
    """Batches of dev or test, the largest first, so that a lack of memory shows at once.

    Args:
        store: the corpus.
        batch_tokens: as in `plan_epoch`.
        max_tokens: longest side, eos not counted, that the model takes; what is longer is cut, and told in the log.
    """
    src_lengths, tgt_lengths = store.src_lengths, store.tgt_lengths
    if max_tokens is not None:
        num_long = int((np.maximum(src_lengths, tgt_lengths) > max_tokens).sum())
        if num_long:
            log.warning("%d of %d pairs cut to %d tokens a side", num_long, len(store), max_tokens)
        src_lengths, tgt_lengths = np.minimum(src_lengths, max_tokens), np.minimum(tgt_lengths, max_tokens)
    plan = plan_in_order(src_lengths, tgt_lengths, batch_tokens)
    for index, indices in enumerate(plan):
        src, tgt = store.gather(indices)
        if max_tokens is not None:
            src, tgt = _shortened(src, max_tokens), _shortened(tgt, max_tokens)
        yield replace(_batch(src, tgt), index=index)


class TrainingBatches:
    """Training batches: each is a function of what is given here and of its (epoch, index), and of nothing else.

    Args:
        store: the corpus; with sampling it must keep its text.
        batch_tokens: as in `plan_epoch`.
        seed: of the run.
        tokenizers: those of the store.
        sampling_alpha: 0 takes the ids that are stored; else each line is segmented anew in each epoch, see
            `Tokenizer.sample`. The budget holds for what is sampled.
        max_tokens: longest side, eos not counted, that sampling may make; default: the longest side stored.

    Raises:
        DataError: when the store is empty.
    """

    def __init__(
        self,
        store: Store,
        batch_tokens: int,
        seed: int,
        tokenizers: TokenizerPair,
        sampling_alpha: float = 0.0,
        max_tokens: int | None = None,
    ) -> None:
        if not len(store):
            raise DataError("the training corpus is empty: there is nothing to make batches of")
        self.store = store
        self.batch_tokens = batch_tokens
        self.seed = seed
        self.tokenizers = (tokenizers.src, tokenizers.tgt)
        self.sampling_alpha = sampling_alpha
        self._lengths = (store.src_lengths, store.tgt_lengths)
        self.max_tokens = max_tokens or int(max(side.max() for side in self._lengths))
        if sampling_alpha:
            growths = self._growths()
            grown = (np.ceil(side * growth) for side, growth in zip(self._lengths, growths, strict=True))
            src_lengths, tgt_lengths = (side.astype(np.int32) for side in grown)
            self._lengths = (src_lengths, tgt_lengths)

    def plan(self, epoch: int) -> list[Ints]:
        """The indices of the pairs of each batch of an epoch."""
        return plan_epoch(*self._lengths, self.batch_tokens, self.seed, epoch)

    def make(self, indices: Ints, epoch: int, index: int) -> Batch:
        """The batch of these pairs, which is number `index` of its epoch."""
        plain = self.store.gather(indices)
        src, tgt = self._sampled(indices, plain, [self.seed, epoch, index]) if self.sampling_alpha else plain
        return replace(_batch(src, tgt), epoch=epoch, index=index)

    def start(
        self,
        epoch: int = 0,
        pairs: int = 0,
        *,
        max_epochs: int | None = None,
        rank: int = 0,
        num_ranks: int = 1,
        pin: bool = False,
        ahead: int = 8,
    ) -> Ahead[Batch]:
        """Batches epoch after epoch, made ahead by a thread; with `close()`, and usable in `with`.

        Several processes take turns on the same list: of each `num_ranks` batches in a row, process `rank` gets the
        one of its number, all in all as many as each other. Those that have none left at the very end get one without
        targets.

        Args:
            epoch: the epoch to start in.
            pairs: pairs of that epoch to pass over. When they end inside a batch (batch_tokens was changed), that
                batch comes whole.
            max_epochs: the end; None: never.
            rank, num_ranks: this process, and how many there are.
            pin: put them into page-locked memory, from which CUDA copies without waiting.
            ahead: batches that wait ready at most.
        """
        places = self._places(epoch, pairs, max_epochs)
        return Ahead(self._share(places, rank, num_ranks, pin), ahead)

    def _places(self, epoch: int, pairs: int, max_epochs: int | None) -> "Iterator[_Place]":
        """Every batch of the run, not made yet."""
        while max_epochs is None or epoch < max_epochs:
            plan = self.plan(epoch)
            ends = np.cumsum([len(indices) for indices in plan])
            for index in range(int(np.searchsorted(ends, pairs, side="right")), len(plan)):
                yield _Place(plan[index], epoch, index, int(ends[index]))
            epoch, pairs = epoch + 1, 0

    def _share(self, places: "Iterator[_Place]", rank: int, num_ranks: int, pin: bool) -> Iterator[Batch]:
        while group := list(islice(places, num_ranks)):
            mine, last = group[min(rank, len(group) - 1)], group[-1]
            batch = replace(self.make(mine.indices, mine.epoch, mine.number), end=(last.epoch, last.end_pairs))
            if rank >= len(group):
                batch = batch.without_targets()
            yield batch.pin_memory() if pin else batch

    def _growths(self) -> list[float]:
        """How many times longer sampled segmentations are, source and target, for 95 in 100 lines."""
        indices = np.unique(np.linspace(0, len(self.store) - 1, GROWTH_SAMPLE).astype(np.int64))
        growths = []
        sides = zip(self.store.text(indices), self.store.gather(indices), self.tokenizers, strict=True)
        for number, (lines, plain, tokenizer) in enumerate(sides):
            sampled = _flatten(tokenizer.sample(lines, self.sampling_alpha, seed=number))[1]
            has_tokens = plain.lengths_B > 0
            ratios = sampled[has_tokens] / plain.lengths_B[has_tokens]
            growths.append(max(1.0, float(np.quantile(ratios, 0.95))) if len(ratios) else 1.0)
        return growths

    def _sampled(self, indices: Ints, plain: tuple[Ragged, Ragged], place: list[int]) -> tuple[Ragged, Ragged]:
        """The pairs sampled; a line that became too long for the budget or the model keeps its stored segmentation."""
        limit = min(self.max_tokens, self.batch_tokens // len(indices) - 1)
        seeds = np.random.SeedSequence(place).generate_state(2, np.uint64)
        sampled = []
        for lines, stored, tokenizer, seed in zip(self.store.text(indices), plain, self.tokenizers, seeds, strict=True):
            rows = tokenizer.sample(lines, self.sampling_alpha, int(seed))
            if max(map(len, rows)) > limit:
                stored_rows = np.split(stored.ids_N, np.cumsum(stored.lengths_B)[:-1])
                rows = [
                    row if len(row) <= limit else kept.tolist() for row, kept in zip(rows, stored_rows, strict=True)
                ]
            sampled.append(Ragged(*_flatten(rows)))
        return sampled[0], sampled[1]


class _Place(NamedTuple):
    indices: Ints
    epoch: int
    number: int
    end_pairs: int
    """Pairs of the epoch behind us after this batch."""


def _batch(src: Ragged, tgt: Ragged) -> Batch:
    src_lengths_B = src.lengths_B.astype(np.int64) + 1
    tgt_in_BT = _fill(tgt.ids_N, tgt.lengths_B, first=BOS)
    return Batch(
        src_BS=_fill(src.ids_N, src.lengths_B, last=EOS),
        tgt_in_BT=tgt_in_BT,
        tgt_out_BT=_fill(tgt.ids_N, tgt.lengths_B, last=EOS),
        src_lengths_B=torch.from_numpy(src_lengths_B),
        num_pairs=len(src_lengths_B),
        num_src_tokens=int(src_lengths_B.sum()),
        num_tgt_tokens=int(tgt.lengths_B.sum()) + len(tgt.lengths_B),
    )


def _fill(ids_N: NDArray[Any], lengths_B: NDArray[Any], first: int | None = None, last: int | None = None) -> Tensor:
    """Rows of ids, with `first` before or `last` behind each, and pad behind that."""
    extra, shift = int(first is not None) + int(last is not None), int(first is not None)
    longest = int(lengths_B.max(initial=0))
    ids_BS = np.full((len(lengths_B), longest + extra), PAD, dtype=np.int64)
    column = np.arange(longest)
    ids_BS[:, shift : shift + longest][column < lengths_B[:, None]] = ids_N
    if first is not None:
        ids_BS[:, 0] = first
    if last is not None:
        ids_BS[np.arange(len(lengths_B)), lengths_B + shift] = last
    return torch.from_numpy(ids_BS)


def _flatten(rows: Sequence[Sequence[int]]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    lengths_B = np.fromiter(map(len, rows), dtype=np.int32, count=len(rows))
    return np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=int(lengths_B.sum())), lengths_B


def _shortened(side: Ragged, max_tokens: int) -> Ragged:
    if side.lengths_B.max(initial=0) <= max_tokens:
        return side
    starts_B = np.cumsum(side.lengths_B) - side.lengths_B
    place_N = np.arange(len(side.ids_N)) - np.repeat(starts_B, side.lengths_B)
    return Ragged(side.ids_N[place_N < max_tokens], np.minimum(side.lengths_B, max_tokens))
