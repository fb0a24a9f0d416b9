"""Kill a process before each of its disk operations."""

import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

STAGES = {
    *("open", "write", "__exit__", "fsync", "close", "mkdir", "rename", "replace", "unlink", "rmdir"),
    *("serialize_file", "write_record", "write_end_of_file"),  # functions of safetensors and torch
}
"""Names of functions that change files, in Python's C code and in libraries."""


def killed_at_each_stage(prepare: Callable[[], None], act: Callable[[], object]) -> Iterator[str]:
    """Run `prepare`, then kill a process that runs `act` right before its first, second, ... disk operation.

    Yield the name of the operation after each kill, and "none" once the process has finished.
    """
    number = 0
    while True:
        prepare()
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            _act(act, number, writer)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            name = pipe.read()
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        assert code in (0, -signal.SIGKILL), name
        yield name if code else "none"
        if code == 0:
            return
        number += 1


def _act(act: Callable[[], object], number: int, writer: int) -> None:
    """Run `act` and exit the process."""
    # Other tests may have set up logging, and a killed process would never release its lock.
    logging.getLogger("mtformer").handlers.clear()
    count = 0

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        if event == "c_call" and argument.__name__ in STAGES:
            if count == number:
                sys.setprofile(None)
                os.write(writer, argument.__qualname__.encode())
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1

    try:
        threading.setprofile(profile)  # for threads that `act` starts
        sys.setprofile(profile)
        act()
        sys.setprofile(None)
    except BaseException:
        sys.setprofile(None)
        os.write(writer, traceback.format_exc().encode())
        os._exit(1)
    os._exit(0)
