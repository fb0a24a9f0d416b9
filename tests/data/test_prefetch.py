"""The prefetcher: order, limit, errors, and the end of its thread."""

import gc
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from mtformer.data.batching.prefetch import Prefetcher


def eventually(holds: Callable[[], bool]) -> bool:
    """Waits up to five seconds."""
    end = time.monotonic() + 5
    while not holds() and time.monotonic() < end:
        time.sleep(0.005)
    return holds()


def num_threads() -> int:
    return sum(thread.name == "prefetch" for thread in threading.enumerate())


class Source(Iterator[int]):
    """Counts without end, or until something goes wrong."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.given = 0
        self.fails_at = fails_at

    def __next__(self) -> int:
        if self.given == self.fails_at:
            raise RuntimeError("broken at the source")
        self.given += 1
        return self.given - 1


def test_everything_in_order_then_the_end() -> None:
    items = Prefetcher(iter(range(100)), num_ahead=3)
    assert list(items) == list(range(100))
    assert list(items) == []
    assert eventually(lambda: num_threads() == 0)


def test_the_limit_of_items_ahead() -> None:
    source = Source()
    with Prefetcher(source, num_ahead=4) as items:
        assert next(items) == 0
        # One is taken, four are ready, and one waits for the queue.
        assert eventually(lambda: source.given == 6)
        time.sleep(0.05)
        assert source.given == 6


def test_an_error_comes_after_the_items_before_it() -> None:
    items = Prefetcher(Source(fails_at=3), num_ahead=8)
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(RuntimeError, match="broken at the source"):
        next(items)
    with pytest.raises(StopIteration):
        next(items)


def test_closing_ends_the_thread_and_the_items() -> None:
    with Prefetcher(Source(), num_ahead=2) as items:
        next(items)
        assert num_threads() == 1
    assert num_threads() == 0
    assert next(items, None) is None
    items.close()


def test_a_collected_prefetcher_ends_its_thread() -> None:
    items = Prefetcher(Source(), num_ahead=2)
    next(items)
    del items
    gc.collect()
    assert eventually(lambda: num_threads() == 0)
