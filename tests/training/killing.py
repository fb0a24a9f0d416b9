"""Kills a process at each single thing that it does to the disk."""

import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

STAGES = {
    *("open", "write", "__exit__", "fsync", "close", "mkdir", "rename", "replace", "unlink", "rmdir"),
    *("serialize_file", "write_record", "write_end_of_file"),  # of safetensors and torch
}
"""Names of the functions of Python's C code and of libraries that change what is on the disk."""


def killed_at_each_stage(prepare: Callable[[], None], act: Callable[[], object]) -> Iterator[str]:
    """Prepare, and kill a process that acts right before its first stage; again, before its second stage; and so on.

    Yield the name of the stage after each kill, and "none" when the process has finished.
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
    """Does not return."""
    # Other tests may have set up the program's log; it writes under a lock that a killed process would keep for good.
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
        sys.setprofile(profile)
        act()
        sys.setprofile(None)
    except BaseException:
        sys.setprofile(None)
        os.write(writer, traceback.format_exc().encode())
        os._exit(1)
    os._exit(0)
