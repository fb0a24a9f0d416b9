"""The prefetcher: order, limit, errors, and termination of its thread."""

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from mtformer.data.batching.batches import prefetch


def eventually(holds: Callable[[], bool]) -> bool:
    """Wait up to five seconds until a condition is true."""
    end = time.monotonic() + 5
    while not holds() and time.monotonic() < end:
        time.sleep(0.005)
    return holds()


@pytest.fixture(name="num_threads")
def count_threads() -> Callable[[], int]:
    """Counts the threads of this test; unfinished iterators of preceding tests may still have theirs."""
    before = set(threading.enumerate())
    return lambda: sum(thread.name.startswith("prefetch") for thread in set(threading.enumerate()) - before)


class Source(Iterator[int]):
    """Counts up indefinitely, or until an error is raised."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.given = 0
        self.fails_at = fails_at

    def __next__(self) -> int:
        if self.given == self.fails_at:
            raise RuntimeError("broken at the source")
        self.given += 1
        return self.given - 1


def test_items_are_in_order(num_threads: Callable[[], int]) -> None:
    items = prefetch(iter(range(100)), num_ahead=3)
    assert list(items) == list(range(100))
    assert list(items) == []
    assert eventually(lambda: num_threads() == 0)


def test_the_number_of_prefetched_items_is_limited() -> None:
    source = Source()
    with closing(prefetch(source, num_ahead=4)) as items:
        assert next(items) == 0
        # One item was taken, and four are ready.
        assert eventually(lambda: source.given == 5)
        time.sleep(0.05)
        assert source.given == 5


def test_an_error_is_raised_after_the_preceding_items() -> None:
    items = prefetch(Source(fails_at=3), num_ahead=8)
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(RuntimeError, match="broken at the source"):
        next(items)
    with pytest.raises(StopIteration):
        next(items)


def test_closing_stops_the_thread_and_the_iteration(num_threads: Callable[[], int]) -> None:
    with closing(prefetch(Source(), num_ahead=2)) as items:
        next(items)
        assert num_threads() == 1
    assert num_threads() == 0
    assert next(items, None) is None
    items.close()


def test_a_garbage_collected_prefetcher_stops_its_thread(num_threads: Callable[[], int]) -> None:
    items = prefetch(Source(), num_ahead=2)
    next(items)
    del items
    gc.collect()
    assert eventually(lambda: num_threads() == 0)
