"""Process pools."""

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from multiprocessing import resource_tracker, spawn
from pathlib import Path
from typing import Any

import pytest

from mtformer.cluster import workers as workers_module
from mtformer.cluster.cores import num_cores
from mtformer.cluster.workers import ITEMS_ALONE, Workers
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


def _negate(number: int, num_threads: int) -> int:
    return -number


def _die_once(mark: Path, number: int, num_threads: int) -> int:
    if number == 14 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return -number


def test_the_items_of_a_killed_process_are_computed_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    numbers = [1, 1, 1, 1, 2, 14, 3, 4, 5, 6]
    with Workers(partial(_die_once, tmp_path / "mark"), 2) as workers:
        assert list(workers.map(numbers)) == [(number, -number) for number in numbers]
    assert caplog.text.count("a worker process was killed; its work is repeated") == 1


def _stay_once(mark: Path, number: int, num_threads: int) -> int:
    """Like `_die_once`; the process of the number 15 ignores SIGTERM and does not end, unless there is the mark."""
    if number == 15 and not mark.exists():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        mark.with_name("pid").write_text(str(os.getpid()))
        time.sleep(3600)
    while number == 14 and not mark.with_name("pid").exists():
        time.sleep(0.01)
    return _die_once(mark, number, num_threads)


def test_all_processes_of_a_broken_pool_end(tmp_path: Path) -> None:
    """The pool terminates them, but not one that starts at this moment, for which the program would wait at its end."""
    with Workers(partial(_stay_once, tmp_path / "mark"), 2) as workers:
        assert [result for _, result in workers.map([1, 1, 1, 1, 15, 14])] == [-1, -1, -1, -1, -15, -14]
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 60
    try:
        while any(child.pid == pid for child in multiprocessing.active_children()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _die_of_a_long_text(mark: Path, text: str, num_threads: int) -> int:
    return _die_once(mark, 14, num_threads) if text.startswith("x") else len(text)


def test_no_thread_waits_for_the_processes_of_a_broken_pool(tmp_path: Path) -> None:
    """A thread of the pool writes long items to a pipe, from which a killed process does not read anymore."""
    texts = ["", "", "", "", *["x" * 4_000_000] * 6]
    with Workers(partial(_die_of_a_long_text, tmp_path / "mark"), 2) as workers:
        assert [result for _, result in workers.map(texts)] == [0] * 4 + [-14] * 6
    deadline = time.monotonic() + 60
    while any(thread.name == "QueueFeederThread" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


MORTAL = """#!/bin/sh
if mkdir "{mark}" 2>/dev/null; then kill -9 $$; fi
exec "{python}" "$@"
"""
"""Python interpreter that is killed when it is first used, before it reads its arguments."""


def test_a_process_that_is_killed_before_it_reads_a_large_function(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The parent would wait forever if it wrote the function to a pipe, whose other end it has opened itself."""
    tables = {number: -number for number in range(100_000)}
    (tmp_path / "python").write_text(MORTAL.format(mark=tmp_path / "mark", python=sys.executable))
    (tmp_path / "python").chmod(0o755)
    executable = spawn.get_executable()
    resource_tracker.ensure_running()  # is not to be killed
    spawn.set_executable(str(tmp_path / "python"))
    try:
        with Workers(partial(_look_up, tables), 2) as workers:
            assert [result for _, result in workers.map([1, 2, 3, 4, 5])] == [-1, -2, -3, -4, -5]
    finally:
        spawn.set_executable(executable)
    assert caplog.text.count("a worker process was killed; its work is repeated") == 1


def _look_up(tables: dict[int, int], number: int, num_threads: int) -> int:
    return tables[number]


class DisturbedPool(ProcessPoolExecutor):
    """Breaks while it starts a process for the number 14, and raises the error that this may have in Python 3.11."""

    has_failed = False

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        if args == (14,) and not DisturbedPool.has_failed:
            DisturbedPool.has_failed = True
            with pytest.raises(BrokenProcessPool):
                super().submit(os._exit, 1).result()
            raise ValueError("bad value(s) in fds_to_keep")
        return super().submit(fn, *args, **kwargs)


def test_a_process_that_is_killed_while_another_one_starts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(workers_module, "ProcessPoolExecutor", DisturbedPool)
    numbers = [1, 1, 1, 1, 2, 14, 3, 4]
    with Workers(_negate, 2) as workers:
        assert list(workers.map(numbers)) == [(number, -number) for number in numbers]
    assert DisturbedPool.has_failed
    assert caplog.text.count("a worker process was killed; its work is repeated") == 1


def test_a_process_that_cannot_be_started_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot_start(*_: object) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(ProcessPoolExecutor, "_spawn_process", cannot_start)
    with Workers(_negate, 2) as workers, pytest.raises(OSError, match="Resource temporarily unavailable"):
        list(workers.map(range(6)))


def _meet(events: dict[str, threading.Event], name: str, num_threads: int) -> str:
    """Wait for the item that is named by the first letter; fail if it is `x`."""
    if name == "x":
        raise DataError("unlucky")
    assert events[name].wait(30)
    return name


def test_programs_are_returned_when_they_end() -> None:
    events = {name: threading.Event() for name in "abc"}
    read = list[str]()

    def items() -> Iterator[str]:
        for name in "abxc":
            read.append(name)
            yield name

    found = list[str]()
    with Workers(partial(_meet, events), 2, starts_programs=True) as workers:
        events["b"].set()
        for item, future in workers.as_completed(items()):
            found.append(item)
            if item == "x":
                assert str(future.exception()) == "unlucky"
            else:
                assert future.result() == item
            if item == "b":
                assert read == ["a", "b"]  # an item is read when a process is free
            if item == "c":
                events["a"].set()
            events["c"].set()
    assert found == ["b", "x", "c", "a"]


def test_the_end_of_the_context_waits_for_the_programs() -> None:
    events = {name: threading.Event() for name in "ab"}
    events["a"].set()
    with Workers(partial(_meet, events), 2, starts_programs=True) as workers:
        assert next(workers.as_completed("ab"))[0] == "a"
        threading.Timer(0.2, events["b"].set).start()
    assert events["b"].is_set()


def _who(folder: Path, number: int, num_threads: int) -> int:
    """Return the process ID when two worker processes have written theirs to the folder."""
    if num_threads == 1:
        (folder / str(os.getpid())).touch()
        while len(list(folder.iterdir())) < 2:
            time.sleep(0.01)
    return os.getpid()


def test_processes_share_the_work_and_exit_afterwards(tmp_path: Path) -> None:
    with Workers(partial(_who, tmp_path), 2) as workers:
        assert [pid for _, pid in workers.map(range(ITEMS_ALONE))] == [os.getpid()] * ITEMS_ALONE
        assert workers._pool is None
        pids = {pid for _, pid in workers.map(range(6))}
        assert len(pids) == 2
        assert pids == {process.pid for process in multiprocessing.active_children()}
    assert multiprocessing.active_children() == []


def _wait(number: int, num_threads: int) -> None:
    print("started", flush=True)
    time.sleep(60)


SCRIPT = """
from tests.test_workers import Workers, _wait
if __name__ == "__main__":
    with Workers(_wait, 1) as workers:
        workers._submit(1).result()
"""


@pytest.mark.process
def test_processes_exit_if_the_main_process_is_killed(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen([sys.executable, tmp_path / "main.py"], stdout=subprocess.PIPE, env=environment) as main:
        assert main.stdout is not None
        assert main.stdout.readline() == b"started\n"
        main.kill()
        start = time.monotonic()
        assert main.stdout.read() == b""  # returns when all processes that have this file open have exited
    assert time.monotonic() - start < 30


def test_the_number_of_cores_is_that_of_the_process() -> None:
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("requires Linux")
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert num_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert num_cores() == len(allowed)


INTERRUPTED = """
import os, signal
from pathlib import Path
from mtformer.cluster.workers import Workers

if __name__ == "__mp_main__" and not Path("sent").exists():  # a worker process that is starting
    Path("sent").touch()
    os.killpg(0, signal.SIGINT)

def double(number, num_threads):
    return 2 * number

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
    try:
        with Workers(double, 2) as workers:
            for _, result in workers.map(range(20)):
                print(result, flush=True)
    except KeyboardInterrupt:
        print("interrupted")
"""


@pytest.mark.process
def test_processes_that_are_interrupted_while_they_start_show_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(INTERRUPTED)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    result = subprocess.run(
        [sys.executable, tmp_path / "main.py"],
        capture_output=True, text=True, env=environment, cwd=tmp_path, start_new_session=True, timeout=120,
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-1] == "interrupted"
