"""Run the program in processes that are forked from a server that has imported it, so that they start quickly."""

import atexit
import contextlib
import multiprocessing
import os
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

PATIENCE_SECONDS = 900.0
LOCK = threading.Lock()
"""multiprocessing polls the exit codes of all processes at each start, which is not thread-safe."""
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["mtformer.cli.train", "mtformer.cli.eval", "mtformer.experiment.train"])


class Program:
    """A running call of `mtformer` that uses one thread and writes stderr to a file."""

    def __init__(self, *arguments: object, stderr: Path, **environment: str) -> None:
        self.stderr = stderr
        environment = {**os.environ, **environment}
        self._process = context.Process(target=_run, args=([*map(str, arguments)], stderr, environment))
        with LOCK, pytest.MonkeyPatch.context() as patch:
            patch.setenv("OMP_NUM_THREADS", "1")  # read by the server, which starts with the first process
            self._process.start()
        atexit.register(self._process.kill)  # in case a test fails: at exit, multiprocessing waits for its processes

    @property
    def exit_code(self) -> int | None:
        with LOCK:
            return self._process.exitcode

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # the process has already exited
            os.kill(self.pid, number)

    def wait(self) -> int:
        """Wait for the process and return its exit code."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (code := self.exit_code) is None:
            assert time.monotonic() < deadline
            time.sleep(0.006)
        return code


def start_several(number: int, *arguments: object, folder: Path) -> list[Program]:
    """Start processes that train together, like torchrun; write their stderr to files in a folder."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": str(number), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if number > 1:
        common["TORCHELASTIC_RUN_ID"] = "none"
    return [
        Program(*arguments, stderr=folder / f"stderr.{rank}", RANK=str(rank), LOCAL_RANK=str(rank), **common)
        for rank in range(number)
    ]


def _run(arguments: list[str], stderr: Path, environment: dict[str, str]) -> None:
    from mtformer.cli.app import main

    os.environ.update(environment)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    sys.argv = ["mtformer", *arguments]
    main()
