"""Helpers for the attacks: running the program with given streams, and checking its error messages."""

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from forked import LOCK, PATIENCE_SECONDS, context

Attacks = Callable[[int], int]
"""Function (number of attacks in the sample) -> number of attacks in this session."""
Passed = Callable[[str, int, int], None]
"""Function (attack, number passed, number tried) that records the counts and fails unless all passed."""


def is_good_error(exit_code: int, stderr: str) -> bool:
    """Return True for a user error: exit code 2, with the error message as the last line and no traceback."""
    lines = stderr.strip().split("\n")
    return exit_code == 2 and lines[-1].startswith("error: ") and is_calm(stderr)


def is_calm(stderr: str) -> bool:
    """Return True if stderr contains neither a traceback nor an internal error."""
    return "Traceback" not in stderr and "this is a bug" not in stderr


def run_with_streams(
    *arguments: object, stdin: str | None = os.devnull, stdout: str | None = os.devnull, stderr: str | None = None
) -> int:
    """Run the program in a forked process with these files as its streams (None: closed), and return its exit code."""
    process = context.Process(target=_run, args=([*map(str, arguments)], [stdin, stdout, stderr], dict(os.environ)))
    with LOCK, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        process.start()
    process.join(PATIENCE_SECONDS)
    if process.exitcode is None:
        process.kill()
        raise AssertionError(f"hangs: {arguments}")
    return process.exitcode


def _run(arguments: list[str], streams: Sequence[str | None], environment: dict[str, str]) -> None:
    from mtformer.cli.app import main

    os.environ.update(environment)
    for descriptor, path in enumerate(streams):
        if path is None:
            os.close(descriptor)
        else:
            flags = os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND
            opened = os.open(path, flags)
            os.dup2(opened, descriptor)
            if opened != descriptor:
                os.close(opened)
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        # A closed stream is None, as when Python starts.
        stream = None if streams[descriptor] is None else open(descriptor, mode, 1, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
    sys.argv = ["mtformer", *arguments]
    try:
        main()
    except SystemExit as end:
        os._exit(int(end.code or 0))  # multiprocessing would write to the streams again
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def tree(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files in a folder and its subfolders, by path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def names(folder: Path) -> list[str]:
    """Return the paths of all files and folders in a folder, to find files left by a killed process."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
