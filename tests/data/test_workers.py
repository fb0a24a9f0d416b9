"""Process pools."""

import os
import signal
from functools import partial

import pytest

from mtformer.data.workers import ITEMS_ALONE, Workers
from mtformer.errors import DataError


def _add(offset: int, number: int, num_threads: int) -> int:
    if number == 13:
        raise DataError("unlucky")
    if number == 14:
        os.kill(os.getpid(), signal.SIGKILL)
    return number + offset


@pytest.mark.parametrize("num_processes", [1, 2])
def test_results_are_in_order(num_processes: int) -> None:
    with Workers(partial(_add, 100), num_processes) as workers:
        assert list(workers.map(range(10))) == [(number, number + 100) for number in range(10)]
        assert list(workers.map([1])) == [(1, 101)]
        with pytest.raises(DataError, match="unlucky"):
            list(workers.map(range(10, 14)))


def test_a_killed_process_raises_an_error() -> None:
    with Workers(partial(_add, 0), 2) as workers, pytest.raises(DataError, match="a worker process was killed"):
        list(workers.map([1, 1, 1, 1, 14, 2, 3, 4]))


def _who(number: int, num_threads: int) -> int:
    return os.getpid()


def test_processes_share_the_work_and_exit_afterwards() -> None:
    with Workers(_who, 2) as workers:
        assert [pid for _, pid in workers.map(range(ITEMS_ALONE))] == [os.getpid()] * ITEMS_ALONE
        assert workers._processes == []
        assert len({pid for _, pid in workers.map(range(6))} - {os.getpid()}) == 2
        processes = list(workers._processes)
        assert all(process.is_alive() for process in processes)
    assert not any(process.is_alive() for process in processes)
