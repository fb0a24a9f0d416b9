"""Find target lines that are shifted against their source lines, by the correlation of line lengths.

Long sentences have long translations, in all languages and scripts. In each window of WINDOW pairs, the rank
correlation (Spearman) of the numbers of characters is computed for the pairs as they are, and for pairs in which the
target is up to MAX_SHIFT lines further down or up. For normally distributed values with correlation r, the logarithm of
the likelihood of n pairs increases by -n/2 log(1 - r^2) against independent values; ranks are nearly as good, and one
extreme line does not decide. A shift is found where the sum of these gains over consecutive windows is high, that is,
also if it begins in the middle of a file.

Notation: W windows' rows, K distances from -MAX_SHIFT to MAX_SHIFT.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mtformer.data.store.pairs import Ints

Floats = NDArray[np.float64]

MAX_SHIFT = 5
"""Maximum number of lines by which targets are shifted."""

WINDOW = 50
"""Number of pairs of a window."""

MIN_WINDOW = 20
"""Minimum number of pairs of the last window of a file, and of a file that is examined."""

SMALL_FILE = 2 * WINDOW
"""Maximum number of pairs of a file that is examined from each `START_STEP`th row to its end, instead of in windows."""

START_STEP = 5
"""Distance in rows of the places where a shift may start in a small file."""

MAX_CORRELATION = 0.999
"""Higher correlations, as in generated text, count as this one."""

PENALTY = 2.0
"""Gain (in nats) that each window must exceed, so that the sum of the gains of unrelated lines does not grow."""

FALSE_ALARMS = 0.001
"""Approximate probability with which a shift is reported in unrelated lines. The gain of a window exceeds g with a
probability of about exp(-g - PENALTY) for each distance, from which the minimum gain follows."""


@dataclass(frozen=True)
class Shift:
    """Shifted target lines."""

    distance: int
    """Number of lines by which the target is below its source; negative if it is above."""
    first: int
    """Index of the first shifted row, about."""
    last: int
    """Index after the last shifted row, about."""
    gain: float
    """Sum of the gains of its windows in nats."""


@dataclass
class _Run:
    """Consecutive windows with the same shift, whose gains are summed."""

    first: int
    last: int
    context: tuple[Ints, Ints]
    """Lengths of the sources and targets around its start."""
    context_first: int
    """Index of the first row of the context."""
    gain: float = 0.0


class ShiftDetector:
    """Finds the clearest shift in the lengths of source and target lines, which are added in order."""

    def __init__(self) -> None:
        self._first = 0
        """Index of the first row of the buffers."""
        self._src = np.zeros(0, np.int64)
        self._tgt = np.zeros(0, np.int64)
        self._next = MAX_SHIFT
        """Index of the first row of the next window."""
        self._runs: dict[int, _Run] = {}
        """The current run of each distance."""
        self._best: dict[int, _Run] = {}
        """The run of each distance with the highest gain."""

    def add(self, src_lengths: Ints, tgt_lengths: Ints) -> None:
        """Add the lengths of the next rows."""
        self._src = np.concatenate([self._src, src_lengths])
        self._tgt = np.concatenate([self._tgt, tgt_lengths])
        while self._first + len(self._src) >= self._next + WINDOW + MAX_SHIFT:
            self._add_window(WINDOW)

        # The last two windows are kept, because a shift may start inside of one.
        surplus = self._next - 2 * WINDOW - 2 * MAX_SHIFT - self._first
        if surplus > 0:
            self._src = self._src[surplus:]
            self._tgt = self._tgt[surplus:]
            self._first += surplus

    def starts(self) -> set[int]:
        """Return the first rows of the windows in which a shift that may be found starts."""
        runs = [*self._runs.values(), *self._best.values()]
        return {run.first for run in runs}

    def find(self) -> Shift | None:
        """Return the clearest shift after the last row; None if there is none."""
        if self._first + len(self._src) <= SMALL_FILE:
            return _find_in_small_file(self._src, self._tgt)
        size = self._first + len(self._src) - MAX_SHIFT - self._next
        if size >= MIN_WINDOW:
            self._add_window(size)
        if not self._best:
            return None

        distance, run = max(self._best.items(), key=lambda item: item[1].gain)
        if run.gain < _min_gain(self._next // WINDOW):
            return None
        first = _exact_start(run, distance)
        is_at_end = run.last >= self._next
        last = self._first + len(self._src) if is_at_end else run.last
        return Shift(distance, first, last, run.gain)

    def _add_window(self, size: int) -> None:
        """Add a window of the next `size` rows to the runs."""
        start = self._next - self._first
        src_W = self._src[start : start + size]
        tgt = self._tgt[start - MAX_SHIFT : start + size + MAX_SHIFT]
        gains_K = _gains(_window_likelihoods(src_W, tgt))
        for index, gain in enumerate(gains_K.tolist()):
            distance = index - MAX_SHIFT
            if distance:
                self._extend(distance, gain, size)
        self._next += size

    def _extend(self, distance: int, gain: float, size: int) -> None:
        """Extend the run of a distance by the next window, or end it if its sum is no longer positive."""
        run = self._runs.get(distance)
        if run is None:
            if gain <= 0:
                return
            start = max(0, self._next - WINDOW - MAX_SHIFT - self._first)
            end = self._next + size + MAX_SHIFT - self._first
            context = (self._src[start:end].copy(), self._tgt[start:end].copy())
            run = _Run(self._next, self._next, context, self._first + start)
            self._runs[distance] = run

        run.gain += gain
        run.last = self._next + size
        if run.gain <= 0:
            del self._runs[distance]
            return
        best = self._best.get(distance)
        if best is None or run.gain > best.gain:
            self._best[distance] = replace(run)


def _min_gain(num_windows: int) -> float:
    """Return the gain that a shift must exceed in a file with this number of windows."""
    num_chances = num_windows * 2 * MAX_SHIFT
    return math.log(num_chances / FALSE_ALARMS) - PENALTY


def _find_in_small_file(src: Ints, tgt: Ints) -> Shift | None:
    """Return the clearest shift from some row to the end of a small file, without leaving out its first rows."""
    num_rows = len(src)
    starts = range(0, num_rows - MIN_WINDOW + 1, START_STEP)
    if not starts:
        return None

    best_gain = _min_gain(len(starts))
    best: Shift | None = None
    for start in starts:
        gains_K = _gains(_suffix_likelihoods(src[start:], tgt[start:]))
        distance = int(np.argmax(gains_K)) - MAX_SHIFT
        gain = float(gains_K.max())
        if distance and gain > best_gain:
            best_gain = gain + PENALTY  # of two starts with nearly the same gain, the first one counts
            best = Shift(distance, start, num_rows, gain)

    if best is None:
        return None
    first = _exact_start(_Run(best.first, num_rows, (src, tgt), 0), best.distance)
    return replace(best, first=first)


def _suffix_likelihoods(src: Ints, tgt: Ints) -> Floats:
    """Return the likelihood of each distance in the last rows of a file, each in the rows that have a partner."""
    num_rows = len(src)
    likelihoods: list[float] = []
    for distance in range(-MAX_SHIFT, MAX_SHIFT + 1):
        first = max(0, -distance)
        end = min(num_rows, num_rows - distance)
        src_ranks = _ranks(src[first:end])
        tgt_ranks = _ranks(tgt[first + distance : end + distance])
        likelihoods.append(float(_likelihoods(src_ranks, tgt_ranks[np.newaxis])[0]))
    return np.array(likelihoods)


def _window_likelihoods(src_W: Ints, tgt: Ints) -> Floats:
    """Return the likelihood of each distance in a window.

    Args:
        src_W: lengths of the source lines of a window.
        tgt: lengths of the target lines, with MAX_SHIFT more at both ends.
    """
    tgt_KW = np.lib.stride_tricks.sliding_window_view(_ranks(tgt), len(src_W))
    return _likelihoods(_ranks(src_W), tgt_KW)


def _likelihoods(src_W: Floats, tgt_KW: Floats) -> Floats:
    """Return the gain in likelihood by the correlation of the source ranks with each row of target ranks."""
    src_W = src_W - src_W.mean()
    tgt_KW = tgt_KW - tgt_KW.mean(axis=1, keepdims=True)
    # `@` is not used, because BLAS threads spin between calls and occupy the cores.
    products_K = np.einsum("kw,w->k", tgt_KW, src_W)
    squares_K = np.einsum("kw,kw->k", tgt_KW, tgt_KW) * np.einsum("w,w->", src_W, src_W)
    correlations_K = products_K / np.sqrt(np.maximum(squares_K, 1e-9))
    correlations_K = np.clip(correlations_K, 0, MAX_CORRELATION)
    return -len(src_W) / 2 * np.log1p(-(correlations_K**2))


def _gains(likelihoods_K: Floats) -> Floats:
    """Return the gain of each distance against all other distances, so that periodic lengths have no gain."""
    best = int(np.argmax(likelihoods_K))
    second = np.delete(likelihoods_K, best).max()
    gains_K = likelihoods_K - likelihoods_K[best] - PENALTY
    gains_K[best] += likelihoods_K[best] - second
    return gains_K


def _ranks(values: Ints) -> Floats:
    """Return the rank of each value; equal values have their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    mean_ranks: Floats = ends - (counts - 1) / 2
    return mean_ranks[inverse]


def _exact_start(run: _Run, distance: int) -> int:
    """Return the row from which on the shifted pairs fit better than the pairs as they are."""
    src_lengths, tgt_lengths = run.context
    src = _ranks(src_lengths)
    tgt = _ranks(tgt_lengths)
    rows = np.arange(MAX_SHIFT, len(src) - MAX_SHIFT)
    straight = (src[rows] - tgt[rows]) ** 2
    shifted = (src[rows] - tgt[rows + distance]) ** 2
    sums_from_row = np.cumsum((straight - shifted)[::-1])[::-1]
    row = int(rows[np.argmax(sums_from_row)]) + run.context_first
    is_whole_file = run.first <= MAX_SHIFT and row <= WINDOW // 2  # the first rows are in no window
    return 0 if is_whole_file else row
