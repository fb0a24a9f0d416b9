"""A simulated mounted drive, as in notebooks: no locks, memory maps or file modes, and folders cannot be renamed."""

import errno
import fcntl
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from mtformer import files, weights


def limit(folder: Path, monkeypatch: pytest.MonkeyPatch, number: int = errno.ENOTSUP) -> None:
    """Let the calls that such drives lack fail for all paths below a folder."""
    rename, flock, fsync, chmod, load_file = os.rename, fcntl.flock, os.fsync, os.chmod, weights.load_file

    def is_inside(path: Any) -> bool:
        name = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else os.path.abspath(path)
        return Path(name).is_relative_to(folder)

    def refuse(path: Any) -> None:
        if is_inside(path):
            raise OSError(number, os.strerror(number), None if isinstance(path, int) else str(path))

    def limited_rename(source: Any, target: Any, **named: Any) -> None:
        if os.path.isdir(source):
            refuse(source)
        rename(source, target, **named)

    def limited_flock(file: Any, operation: int) -> None:
        refuse(file if isinstance(file, int) else file.fileno())
        flock(file, operation)

    def limited_fsync(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            refuse(descriptor)
        fsync(descriptor)

    def limited_chmod(path: Any, mode: int, **named: Any) -> None:
        refuse(path)
        chmod(path, mode, **named)

    def limited_load(path: Path) -> Any:
        if is_inside(path):
            raise OSError(errno.ENODEV, "No such device")
        return load_file(path)

    files._log_once.cache_clear()
    monkeypatch.setattr(os, "rename", limited_rename)
    monkeypatch.setattr(fcntl, "flock", limited_flock)
    monkeypatch.setattr(os, "fsync", limited_fsync)
    monkeypatch.setattr(os, "chmod", limited_chmod)
    monkeypatch.setattr(shutil, "copymode", lambda source, target, **_: limited_chmod(target, os.stat(source).st_mode))
    monkeypatch.setattr(weights, "load_file", limited_load)
