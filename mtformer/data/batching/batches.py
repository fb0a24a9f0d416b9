"""Batches with a token budget, whose contents are determined by (seed, epoch, window number).

Without noise, all processes plan the same list of batches, and each takes every n-th one. With noise, each process
plans the batches of its share of a window (see `shares`), and the processes exchange the sizes of their batches at the
start of each window, so that all of them have the same number of batches.

Tensor dimensions: B pairs; S and T are the source and target length in tokens, including eos or bos.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain, islice, zip_longest
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow.compute as pc
import torch
from torch import Tensor

from mtformer.data.batching.mixture import START, BlockWindow, Corpus, Mixture, SamplerState
from mtformer.data.batching.shares import Augment, AugmentTask, AugmentWorkers, Share, tasks
from mtformer.data.store.pairs import Column, Ints, Lengths, Pairs, flat, id_column, join, lengths, make_pairs, prefix
from mtformer.errors import warn_once
from mtformer.text.tokenizer import BOS, EOS, PAD, UNK

NUM_AHEAD = 8
"""Maximum number of prefetched batches."""

AUGMENTED_PAIRS_PER_TOKEN = 32
"""Window size with noise, in pairs per token of a batch, up to `WINDOW_PAIRS`.

Padding depends on this ratio. The first batch waits for its window, of which a process augments 40,000 pairs per
second, so that the windows of small batches should not be larger than they need.
"""

MIN_AUGMENTED_PAIRS = 1 << 14
"""Minimum number of pairs per window with noise, so that the pairs are shuffled well."""

NUM_TYPICAL = 4
"""Number of typical batches, whose time is measured before training."""

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
        num_rows, src_length = self.src_BS.shape
        return num_rows * max(src_length, self.tgt_in_BT.size(1))

    def to(self, device: torch.device | str) -> "Batch":
        """Copy the batch to a device; a copy from pinned memory is asynchronous."""
        return self._with_tensors(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> "Batch":
        """Copy the batch to pinned memory (CUDA only)."""
        return self._with_tensors(lambda tensor: tensor.pin_memory())

    def split(self, max_padded_tokens: int | None) -> "list[Batch]":
        """Split the batch into halves until each part has at most `max_padded_tokens`, or one pair."""
        num_rows = self.src_BS.size(0)
        if max_padded_tokens is None or num_rows == 1:
            return [self]
        if self.num_padded_tokens <= max_padded_tokens:
            return [self]

        middle = num_rows // 2
        first_half = self._rows(slice(0, middle))
        second_half = self._rows(slice(middle, num_rows))
        return first_half.split(max_padded_tokens) + second_half.split(max_padded_tokens)

    def without_targets(self) -> "Batch":
        """Return a batch of the same shape whose targets are padding: loss, gradients and all counts are 0."""
        padding = torch.full_like(self.tgt_out_BT, PAD)
        return replace(self, tgt_out_BT=padding, num_pairs=0, num_src_tokens=0, num_tgt_tokens=0, pairs_of={})

    def doubled(self) -> "Batch":
        """Return a batch that contains each pair twice."""
        batch = self._with_tensors(lambda tensor: torch.cat([tensor, tensor]))
        return replace(
            batch,
            num_pairs=2 * self.num_pairs,
            num_src_tokens=2 * self.num_src_tokens,
            num_tgt_tokens=2 * self.num_tgt_tokens,
        )

    def _rows(self, rows: slice) -> "Batch":
        """Return some rows, without the columns that are only padding."""
        tgt_out_BT = self.tgt_out_BT[rows]
        src_lengths_B = self.src_lengths_B[rows]
        tgt_lengths_B = (tgt_out_BT != PAD).sum(dim=1)
        src_length = int(src_lengths_B.max())
        tgt_length = max(1, int(tgt_lengths_B.max()))  # 0 in a batch without targets
        return replace(
            self,
            src_BS=self.src_BS[rows, :src_length],
            tgt_in_BT=self.tgt_in_BT[rows, :tgt_length],
            tgt_out_BT=tgt_out_BT[:, :tgt_length],
            src_lengths_B=src_lengths_B,
            num_pairs=len(src_lengths_B),
            num_src_tokens=int(src_lengths_B.sum()),
            num_tgt_tokens=int(tgt_lengths_B.sum()),
        )

    def _with_tensors(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """Return the batch with each tensor changed by a function."""
        changed: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                changed[name] = change(value)
        return replace(self, **changed)


def make_batch(pairs: Sequence[tuple[list[int], list[int]]], start: int = BOS) -> Batch:
    """Return a batch of (source ids, target ids) pairs without bos and eos; decoder inputs start with `start`."""
    src = id_column([src_ids for src_ids, _ in pairs])
    tgt = id_column([tgt_ids for _, tgt_ids in pairs])
    return _batch(make_pairs(src, tgt), start)


def plan_window(
    src_lengths: Lengths, tgt_lengths: Lengths, batch_tokens: int, random: np.random.Generator
) -> list[Ints]:
    """Return the indices of the pairs in each batch; each pair occurs once, in random order.

    The pairs are shuffled, then sorted by their longer side and, if equal, by the length difference, alternately in
    ascending and descending order, so that adjacent pairs are similar in both lengths. They are then cut into batches.
    The first batch has a random size, so that batches differ between epochs. Finally, the batches are shuffled.

    Args:
        src_lengths: number of tokens of each source, excluding eos.
        tgt_lengths: number of tokens of each target, excluding eos.
        batch_tokens: maximum of (number of pairs x longest side, including eos) per batch; a longer pair gets a batch
            of its own.
        random: random number generator.
    """
    shuffled = random.permutation(len(src_lengths))
    src = src_lengths[shuffled]
    tgt = tgt_lengths[shuffled]
    longer = np.maximum(src, tgt)

    # Pairs whose longer side is even are sorted in one direction, the others in the other direction.
    ascending_parity = random.integers(2)
    is_ascending = longer % 2 == ascending_parity
    difference = src - tgt
    signed_difference = np.where(is_ascending, difference, -difference)
    by_length = np.lexsort((signed_difference, longer))  # the last key is the main one
    order = shuffled[by_length]

    first_tokens = 1 + int(random.integers(batch_tokens))
    batches = _cut(order, longer[by_length], batch_tokens, first_tokens)
    batch_order = random.permutation(len(batches))
    return [batches[number] for number in batch_order]


def _cut(order: Ints, longer: Lengths, batch_tokens: int, first_tokens: int) -> list[Ints]:
    """Cut pairs into batches that are as large as the budget allows.

    Args:
        order: indices of the pairs.
        longer: length of the longer side of each pair in this order, excluding eos.
        batch_tokens: budget of a batch in padded tokens.
        first_tokens: budget of the first batch.
    """
    sizes = longer.astype(np.int64) + 1
    batches: list[Ints] = []
    start = 0
    budget = first_tokens
    while start < len(order):
        # At most this many pairs fit if none is longer than the first one.
        max_pairs = max(1, budget // int(sizes[start]))
        candidates = sizes[start : start + max_pairs]

        # Padded tokens of a batch of the first candidate, of the first two, and so on; they never decrease.
        longest_so_far = np.maximum.accumulate(candidates)
        counts = np.arange(1, len(candidates) + 1)
        padded_tokens = longest_so_far * counts
        num_fitting = int(np.searchsorted(padded_tokens, budget, side="right"))

        end = start + max(1, num_fitting)
        batches.append(order[start:end])
        start = end
        budget = batch_tokens
    return batches


def ordered_batches(corpus: Corpus, batch_tokens: int, max_tokens: int | None = None) -> Iterator[Batch]:
    """Yield batches of a dev or test set, largest first, so that running out of memory is noticed early.

    Args:
        corpus: the set, which is loaded into memory.
        batch_tokens: see `plan_window`.
        max_tokens: maximum number of tokens per side, excluding eos; longer lines are cut, with a warning.
    """
    pairs = _with_tags(corpus.read(), corpus)
    if max_tokens is not None:
        pairs = _shortened(pairs, max_tokens, corpus.name)

    src_lengths = lengths(pairs["src"])
    longer = _longer_sides(pairs)
    rows = np.arange(len(pairs))
    ascending = np.lexsort((rows, src_lengths, longer))  # the last key is the main one
    order = ascending[::-1]
    for indices in _cut(order, longer[order], batch_tokens, batch_tokens):
        yield _batch(pairs.take(indices), corpus.start)


def _shortened(pairs: Pairs, max_tokens: int, name: str) -> Pairs:
    """Return the pairs of the corpus `name` with long lines cut to `max_tokens`; log a warning if there are any."""
    is_long = _longer_sides(pairs) > max_tokens
    if not is_long.any():
        return pairs
    num_long = int(is_long.sum())
    counts = (f"{num_long:,}", f"{len(pairs):,}")
    warn_once(f"cut {name}", "%s of %s pairs of %s were cut to %d tokens per side", *counts, name, max_tokens)
    src, tgt = pairs.columns
    short_src = pc.list_slice(src, 0, max_tokens)
    short_tgt = pc.list_slice(tgt, 0, max_tokens)
    return make_pairs(short_src, short_tgt)


def _with_tags(pairs: Pairs, corpus: Corpus) -> Pairs:
    """Return the ids of pairs, with the tags of the corpus before each source."""
    src = prefix(pairs["src"], corpus.tags)
    return make_pairs(src, pairs["tgt"])


def _longer_sides(pairs: Pairs) -> Lengths:
    """Return the number of tokens of the longer side of each pair, excluding eos."""
    src, tgt = pairs.columns
    return np.maximum(lengths(src), lengths(tgt))


@dataclass(frozen=True)
class Sizes:
    """Batch sizes and number of batches of an epoch, estimated from its first window."""

    largest: Batch
    """The batch with the most padded tokens."""
    longest: Batch
    """A full batch of copies of the longest pair, because attention memory grows with the square of the length."""
    typical: list[Batch]
    """A few batches at equal distances in the order of their lengths, so that their mean time is about that of all."""
    num_batches: float
    """Approximate number of batches per epoch."""


def _alone(num_pairs: list[int]) -> list[list[int]]:
    """Return the numbers of a single process."""
    return [num_pairs]


@dataclass(frozen=True)
class TrainingBatches:
    """Training batches, determined by these values and the initial sampler state."""

    mixture: Mixture
    batch_tokens: int
    """See `plan_window`."""
    augmentation: Augment | None = None
    """Adds noise to pairs with text; None: use the stored pairs."""
    num_workers: int = 1
    """Number of processes that add noise; 1: a thread of this process."""

    def start(
        self,
        state: SamplerState = START,
        *,
        max_epochs: int | None = None,
        rank: int = 0,
        num_ranks: int = 1,
        pin: bool = False,
        gather: Callable[[list[int]], list[list[int]]] = _alone,
    ) -> Generator[Batch, None, None]:
        """Return a generator of the batches of consecutive epochs, prefetched by threads.

        Without noise, distributed processes share the same list of batches: process `rank` gets batch `rank` of each
        group of `num_ranks` batches. With noise, each process has batches of its own. In both cases, all get the same
        number of batches; in the last group of an epoch or a window, some may have no targets.

        Args:
            state: position at which to start. A batch that it divides (because batch_tokens has changed) is whole.
            max_epochs: number of epochs of the run; None: no limit.
            rank: number of this process.
            num_ranks: number of processes.
            pin: copy the batches to pinned memory, from which CUDA copies asynchronously.
            gather: function that returns the numbers of each process by rank, called by all of them at the same batch,
                in the thread that uses the generator.
        """
        share = Share(rank, num_ranks)
        if self.augmentation is None:
            planned_windows = prefetch(self._planned_windows(state, max_epochs), 1)
            return prefetch(self._share(planned_windows, share, pin), NUM_AHEAD)
        assert num_ranks == 1 or gather is not _alone, "processes need the same number of batches"
        windows = prefetch(self._own_windows(state, max_epochs, share), 1)
        own_batches = prefetch(_with_sizes(windows, pin), NUM_AHEAD)
        return _in_step(own_batches, state, gather)

    def sizes(self) -> Sizes:
        """Return the batch sizes of the first epoch."""
        if self.augmentation is None:
            window = self._read(self._first_section())
        else:
            with self._workers(self.augmentation, 1) as workers:
                window = self._read_share(self._first_section(), Share(), workers)
        pair_sizes = 1 + _longer_sides(window.pairs)
        longest_pairs = np.array([pair_sizes[indices].max() for indices in window.plan])
        nums_pairs = np.array([len(indices) for indices in window.plan])
        largest = window.plan[int((nums_pairs * longest_pairs).argmax())]
        by_length = longest_pairs.argsort(kind="stable")
        middles = (np.arange(NUM_TYPICAL) + 0.5) / NUM_TYPICAL * len(by_length)
        typical_numbers = dict.fromkeys(by_length[middles.astype(int)].tolist())

        epoch_batches = len(window.plan) * self.mixture.pairs_per_epoch / len(window.pairs)
        return Sizes(
            largest=window.batch(largest),
            longest=self._batch_of_longest(),
            typical=[window.batch(window.plan[number]) for number in typical_numbers],
            num_batches=epoch_batches,
        )

    def _batch_of_longest(self) -> Batch:
        """Return a full batch of pairs of unknown tokens that are as long as the longest source and target."""
        longest_sides = [corpus.longest() for corpus in self.mixture.corpora]
        src_length, tgt_length = np.max(longest_sides, axis=0).tolist()
        longest_pair = ([UNK] * src_length, [UNK] * tgt_length)
        size = 1 + max(src_length, tgt_length)
        num_rows = max(1, self.batch_tokens // size)
        return make_batch([longest_pair] * num_rows)

    @property
    def _window_pairs(self) -> int:
        """Approximate number of pairs per window and, with noise, process."""
        if self.augmentation is None:
            return self.mixture.window_pairs
        num_pairs = max(MIN_AUGMENTED_PAIRS, AUGMENTED_PAIRS_PER_TOKEN * self.batch_tokens)
        return min(num_pairs, self.mixture.window_pairs)

    def _first_section(self) -> "_Section":
        """Return the first window with pairs; with small weights, the first windows or epochs may have none."""
        return next(self._sections(START, None, self._window_pairs))

    def _sections(self, state: SamplerState, max_epochs: int | None, window_pairs: int) -> "Iterator[_Section]":
        """Yield the windows of the run that have pairs, without windows that end before `state`."""
        epoch = state.epoch
        num_processed = state.pairs  # in the first of these epochs
        taken = state.taken
        while max_epochs is None or epoch < max_epochs:
            num_pairs = 0  # in the windows of this epoch before the current one
            taken_after = taken
            for blocks in self.mixture.windows(epoch, taken, window_pairs):
                end = num_pairs + blocks.num_pairs
                if blocks.num_pairs and end > num_processed:
                    yield _Section(blocks, SamplerState(epoch, num_pairs, taken))
                num_pairs = end
                taken_after = blocks.taken_after
            epoch += 1
            num_processed = 0
            taken = taken_after

    # ---- without noise ----------------------------------------------------------------------------------------------

    def _planned_windows(self, state: SamplerState, max_epochs: int | None) -> "Iterator[list[_PlannedBatch]]":
        """Load the windows of the run and yield the batches of each one, without batches that end before `state`."""
        for section in self._sections(state, max_epochs, self._window_pairs):
            window = self._read(section)
            yield [batch for batch in window.planned_batches() if _place(batch.end) > _place(state)]

    def _share(self, windows: "Iterator[list[_PlannedBatch]]", share: Share, pin: bool) -> Iterator[Batch]:
        """Yield the batches of one process."""
        planned_batches = chain.from_iterable(windows)
        while group := list(islice(planned_batches, share.num_ranks)):
            # The last group may be too small; each further process gets its last batch, without targets.
            last = group[-1]
            planned = group[share.rank] if share.rank < len(group) else last
            batch = planned.window.batch(planned.indices)
            batch = replace(batch, end=last.end)
            if share.rank >= len(group):
                batch = batch.without_targets()
            if pin:
                batch = batch.pin_memory()
            yield batch

    def _read(self, section: "_Section") -> "_LoadedWindow":
        """Load the pairs of a window and plan its batches."""
        corpora = self.mixture.corpora
        parts: list[Pairs] = []
        corpus_numbers: list[Ints] = []
        for number, corpus in enumerate(corpora):
            corpus_blocks = section.blocks.blocks[number]
            if not len(corpus_blocks):
                continue
            pairs = corpus.read(corpus_blocks)
            parts.append(_with_tags(pairs, corpus))
            corpus_numbers.append(np.full(len(pairs), number))
        return self._plan(section, parts, corpus_numbers)

    def _plan(
        self, section: "_Section", parts: list[Pairs], corpus_numbers: list[Ints], rank: int = 0
    ) -> "_LoadedWindow":
        """Plan the batches of the pairs of a window.

        Args:
            section: the window.
            parts: the pairs in parts, each of one corpus.
            corpus_numbers: for each part, the number of the corpus of each pair.
            rank: number of the process to which these pairs belong.
        """
        joined = join(parts)
        src_lengths, tgt_lengths = map(lengths, joined.columns)
        seed = [self.mixture.seed, section.start.epoch, section.blocks.number]
        if rank:
            seed.append(rank)
        random = np.random.Generator(np.random.PCG64(seed))
        plan = plan_window(src_lengths, tgt_lengths, self.batch_tokens, random)
        return _LoadedWindow(section.start, joined, self.mixture.corpora, np.concatenate(corpus_numbers), plan)

    # ---- with noise -------------------------------------------------------------------------------------------------

    def _own_windows(self, state: SamplerState, max_epochs: int | None, share: Share) -> "Iterator[_LoadedWindow]":
        """Yield the windows of the run with the pairs of one process, with noise."""
        assert self.augmentation is not None
        window_pairs = self._window_pairs * share.num_ranks
        with self._workers(self.augmentation, self.num_workers) as workers:
            for section in self._sections(state, max_epochs, window_pairs):
                yield self._read_share(section, share, workers)

    @staticmethod
    def _workers(augmentation: Augment, num_workers: int) -> AugmentWorkers:
        return AugmentWorkers(AugmentTask(augmentation), num_workers)

    def _read_share(self, section: "_Section", share: Share, workers: AugmentWorkers) -> "_LoadedWindow":
        """Load the pairs of a process in a window, add noise and plan their batches."""
        # In a window with fewer pairs than processes, a process may have none.
        parts: list[Pairs] = []
        corpus_numbers = [np.zeros(0, dtype=np.int64)]
        for task, pairs in workers.map(tasks(self.mixture, section.blocks, share)):
            corpus = self.mixture.corpora[task.corpus_number]
            parts.append(_with_tags(pairs, corpus))
            corpus_numbers.append(np.full(len(pairs), task.corpus_number))
        if not parts:
            parts = [make_pairs(id_column([]), id_column([]))]
        return self._plan(section, parts, corpus_numbers, share.rank)


def _place(state: SamplerState) -> tuple[int, int]:
    """Return the epoch and the number of pairs, by which states of one run are compared."""
    return state.epoch, state.pairs


def _with_sizes(windows: "Generator[_LoadedWindow, None, None]", pin: bool) -> "Iterator[_BatchSizes | Batch]":
    """Yield the sizes of the batches of each window, then these batches."""
    with closing(windows):
        for window in windows:
            yield _BatchSizes(window.start, [len(indices) for indices in window.plan])
            for indices in window.plan:
                batch = window.batch(indices)
                yield batch.pin_memory() if pin else batch


def _in_step(
    items: "Generator[_BatchSizes | Batch, None, None]",
    state: SamplerState,
    gather: Callable[[list[int]], list[list[int]]],
) -> Generator[Batch, None, None]:
    """Yield the batches of one process, and as many without targets as it has fewer than others in a window.

    Args:
        items: result of `_with_sizes`.
        state: position at which to start; batches that end before it are left out.
        gather: see `TrainingBatches.start`.
    """
    with closing(items):
        for sizes in items:
            assert isinstance(sizes, _BatchSizes)
            batch = make_batch([([], [])])  # shape of the batches of a process that has no pairs in a window
            for number, end in enumerate(sizes.ends(gather(sizes.num_pairs))):
                if number < len(sizes.num_pairs):
                    item = next(items)
                    assert isinstance(item, Batch)
                    batch = item
                else:
                    batch = batch.without_targets()
                if _place(end) > _place(state):
                    yield replace(batch, end=end)


class _BatchSizes(NamedTuple):
    """Sizes of the batches of one process in a window."""

    start: SamplerState
    """State before the window."""
    num_pairs: list[int]
    """Number of pairs of each batch."""

    def ends(self, num_pairs_by_rank: list[list[int]]) -> Iterator[SamplerState]:
        """Yield the state after each group of batches; processes with fewer batches than others have 0 pairs there."""
        end = self.start.pairs
        for group in zip_longest(*num_pairs_by_rank, fillvalue=0):
            end += sum(group)
            yield self.start._replace(pairs=end)


class _Section(NamedTuple):
    """Part of an epoch: a window, and the state before it."""

    blocks: BlockWindow
    start: SamplerState


@dataclass(frozen=True)
class _LoadedWindow:
    """Pairs of a window, or of one process in it, and the plan of their batches."""

    start: SamplerState
    """State before the window."""
    pairs: Pairs
    corpora: Sequence[Corpus]
    corpus_B: Ints
    """Number of the corpus of each pair."""
    plan: list[Ints]
    """Indices of the pairs in each batch."""

    def planned_batches(self) -> "Iterator[_PlannedBatch]":
        """Yield the planned batches, with the sampler state after each."""
        num_pairs = self.start.pairs
        for indices in self.plan:
            num_pairs += len(indices)
            end = self.start._replace(pairs=num_pairs)
            yield _PlannedBatch(self, indices, end)

    def batch(self, indices: Ints) -> Batch:
        """Return the batch of the pairs at these indices."""
        corpus_B = self.corpus_B[indices]
        starts = np.array([corpus.start for corpus in self.corpora])
        batch = _batch(self.pairs.take(indices), starts[corpus_B])
        if len(self.corpora) == 1:
            return batch

        counts = np.bincount(corpus_B, minlength=len(self.corpora)).tolist()
        names = [corpus.name for corpus in self.corpora]
        pairs_of = dict(zip(names, counts, strict=True))
        return replace(batch, pairs_of=pairs_of)


@dataclass(frozen=True)
class _PlannedBatch:
    """A batch that is not padded yet."""

    window: _LoadedWindow
    indices: Ints
    """Indices of its pairs in the window."""
    end: SamplerState
    """Sampler state after the batch."""


def _batch(pairs: Pairs, start: int | Ints) -> Batch:
    """Return a padded batch; decoder inputs begin with `start`, an id or one id per pair."""
    src, tgt = pairs.columns
    src_lengths_B = lengths(src).astype(np.int64) + 1
    num_tgt_tokens = int(lengths(tgt).sum()) + len(tgt)
    return Batch(
        src_BS=_fill(src),
        tgt_in_BT=_fill(tgt, start),
        tgt_out_BT=_fill(tgt),
        src_lengths_B=torch.from_numpy(src_lengths_B),
        num_pairs=len(src),
        num_src_tokens=int(src_lengths_B.sum()),
        num_tgt_tokens=num_tgt_tokens,
    )


def _fill(side: Column, start: int | Ints | None = None) -> Tensor:
    """Return padded rows of ids that begin with `start` or, if it is None, end with eos."""
    ids_N, lengths_B = flat(side)
    num_rows = len(lengths_B)
    longest = int(lengths_B.max(initial=0))
    positions = np.arange(longest)
    is_token_BS = positions < lengths_B[:, None]

    shape = (num_rows, longest + 1)  # one more for `start` or eos
    ids_BS = np.full(shape, PAD, dtype=np.int64)
    if start is None:
        ids_BS[:, :-1][is_token_BS] = ids_N
        rows = np.arange(num_rows)
        ids_BS[rows, lengths_B] = EOS
    else:
        ids_BS[:, 1:][is_token_BS] = ids_N
        ids_BS[:, 0] = start
    return torch.from_numpy(ids_BS)


def prefetch(source: Iterator[T], num_ahead: int) -> Generator[T, None, None]:
    """Yield the items of an iterator; a thread computes up to `num_ahead` items in advance.

    The thread, which is the only one that uses `source`, starts with the first item, and ends when the generator is
    closed or garbage-collected, which also closes `source` if it is a generator. If the thread raises an exception, so
    does this generator, after the preceding items.
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
        if isinstance(source, Generator):
            source.close()
