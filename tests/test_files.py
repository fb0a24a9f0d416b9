"""Leftovers of killed processes are deleted or restored, files of running ones are kept, and damage is detected."""

import errno
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mtformer import files
from mtformer.errors import CheckpointError, DataError, explain_write_errors
from mtformer.files import (
    FOREIGN_SECONDS,
    META,
    DamagedError,
    atomic_file,
    atomic_folder,
    clear_leftovers,
    read_meta,
    verify,
    write_meta,
    write_text,
)
from mtformer.run_dir import RunDir

HERE = platform.node()


@pytest.fixture
def live() -> Iterator[int]:
    """ID of a running process."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid


@pytest.fixture
def dead() -> int:
    """ID of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process.pid


def leave(folder: Path, name: str, host: str, pid: int, kind: str, is_file: bool = False) -> Path:
    """Create the leftover of a process that was killed while writing `name`."""
    path = folder / f".{name}@{host}.{pid}.{kind}"
    if not is_file:
        path.mkdir()
    (path if is_file else path / "half").write_text("half")
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.process
@pytest.mark.parametrize("is_file", [False, True])
def test_only_leftovers_of_dead_processes_are_deleted(tmp_path: Path, live: int, dead: int, is_file: bool) -> None:
    stays = {leave(tmp_path, "a", HERE, live, kind, is_file).name for kind in ("tmp", "old")}
    for kind in ("tmp", "old"):
        leave(tmp_path, "b", HERE, dead, kind, is_file)
    (tmp_path / "b").mkdir()
    for name in (".b.tmp", f".b.{dead}.tmp", f"b@{HERE}.{dead}.tmp", f".b@{HERE}.{dead}.bak"):  # not names of leftovers
        (tmp_path / name).touch()
        stays.add(name)
    clear_leftovers(tmp_path)
    assert set(names(tmp_path)) == {"b", *stays}


@pytest.mark.process
def test_old_file_is_restored_if_the_target_is_missing(tmp_path: Path, dead: int, live: int) -> None:
    leave(tmp_path, "a", HERE, dead, "old")
    leave(tmp_path, "b", HERE, live, "old")
    clear_leftovers(tmp_path)
    assert names(tmp_path) == [f".b@{HERE}.{live}.old", "a"]
    assert names(tmp_path / "a") == ["half"]


def test_leftovers_with_our_own_process_id_are_deleted(tmp_path: Path) -> None:
    """In a container, each program may have the same process ID."""
    leave(tmp_path, "a", HERE, os.getpid(), "tmp")
    clear_leftovers(tmp_path)
    assert names(tmp_path) == []


@pytest.mark.process
def test_leftovers_from_other_machines_are_kept_for_a_day(tmp_path: Path, dead: int) -> None:
    young, old = (leave(tmp_path, name, "elsewhere", dead, "tmp") for name in ("young", "old"))
    long_ago = time.time() - FOREIGN_SECONDS - 60
    os.utime(old, (long_ago, long_ago))
    clear_leftovers(tmp_path)
    assert names(tmp_path) == [young.name]


@pytest.mark.process
def test_writing_deletes_leftovers_of_the_same_name_only(tmp_path: Path, dead: int) -> None:
    for name in ("text", "folder", "other"):
        leave(tmp_path, name, HERE, dead, "tmp")
    write_text(tmp_path / "text", "new")
    with atomic_folder(tmp_path / "folder") as folder:
        (folder / "file").touch()
    assert names(tmp_path) == [f".other@{HERE}.{dead}.tmp", "folder", "text"]


def test_atomic_folder_replaces_or_keeps_the_old_folder(tmp_path: Path) -> None:
    for content in ("one", "two"):
        with atomic_folder(tmp_path / "x") as folder:
            (folder / content).touch()
        assert names(tmp_path / "x") == [content]
    with pytest.raises(FileNotFoundError), atomic_folder(tmp_path / "x") as folder:
        (folder / "three").rename(folder / "four")
    assert names(tmp_path) == ["x"]
    assert names(tmp_path / "x") == ["two"]


def test_new_files_are_synced_before_renames_and_deletions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    sync, rename, rmtree = files.sync, os.rename, shutil.rmtree

    def record(what: str, path: Path) -> None:
        order.append(f"{what} {path.name.split('@')[0]}{path.suffix if '@' in path.name else ''}")

    monkeypatch.setattr(files, "sync", lambda path: (record("sync", path), sync(path)))
    monkeypatch.setattr(os, "rename", lambda src, dst: (record("rename", Path(src)), rename(src, dst)))
    monkeypatch.setattr(shutil, "rmtree", lambda path, **rest: (record("delete", path), rmtree(path, **rest)))
    (tmp_path / "x").mkdir()
    with atomic_folder(tmp_path / "x") as folder:
        (folder / "file").touch()
    assert order == [
        *("sync file", "sync .x.tmp"),
        *("rename x", "rename .x.tmp", f"sync {tmp_path.name}"),
        *("delete .x.old", "delete .x.tmp"),  # .x.tmp no longer exists
    ]


def test_atomic_file_replaces_or_keeps_the_old_file(tmp_path: Path) -> None:
    write_text(tmp_path / "x", "one")
    with pytest.raises(TypeError), atomic_file(tmp_path / "x") as temporary, temporary.open("w") as file:
        file.writelines(["two", 3])  # type: ignore[list-item]  # on purpose
    assert names(tmp_path) == ["x"]
    assert (tmp_path / "x").read_text() == "one"
    (tmp_path / "x").chmod(0o600)
    write_text(tmp_path / "x", "two")
    assert ((tmp_path / "x").stat().st_mode & 0o777, (tmp_path / "x").read_text()) == (0o600, "two")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = RunDir(tmp_path).checkpoint(5)
    folder.mkdir(parents=True)
    (folder / "weights").write_bytes(b"1234")
    write_meta(folder, step=5, metrics={"bleu": 12.34}, made_with={"note": "\u00e9"}, is_temporary=False)
    return folder


def test_meta_is_read_back(checkpoint: Path) -> None:
    meta = verify(checkpoint, "weights")
    assert meta["metrics"] == {"bleu": 12.34}
    assert meta["made_with"] == {"note": "\u00e9"}
    assert meta.keys() == {"format", "step", "metrics", "made_with", "is_temporary", "logs", "sha256"}


def test_every_flipped_bit_of_meta_is_detected(checkpoint: Path) -> None:
    data = (checkpoint / META).read_bytes()
    run = RunDir(checkpoint.parent.parent)
    assert run.steps() == run.regular_steps() == run.best_steps("bleu") == [5]
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 << (place % 8)
        (checkpoint / META).write_bytes(changed)
        if _is_same(changed, data):
            continue
        with pytest.raises(DamagedError) as error:
            read_meta(checkpoint)
        assert str(error.value).startswith(f"{checkpoint / META}: ")
        assert "\n" not in str(error.value)
        assert run.steps() == run.regular_steps() == run.best_steps("bleu") == []


def _is_same(one: bytes, other: bytes) -> bool:
    """Return True if both are the same JSON value, for example if a space was replaced with a line end."""
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return False


def test_other_folder_names_are_not_checkpoints(checkpoint: Path) -> None:
    run = RunDir(checkpoint.parent.parent)
    for name in ("damaged-step-00000006", "step-7", "step-x", "averaged"):
        (run.checkpoints / name).mkdir()
    assert run.checkpoint_folders() == [checkpoint]


def test_a_file_not_listed_in_meta_is_damaged(checkpoint: Path) -> None:
    (checkpoint / "other").touch()
    with pytest.raises(DamagedError, match=r"other: truncated or changed since it was saved; use another"):
        verify(checkpoint, "other")


def test_unreadable_files_are_not_reported_as_damaged(checkpoint: Path) -> None:
    (checkpoint / "weights").unlink()
    (checkpoint / "weights").symlink_to("weights")
    with pytest.raises(CheckpointError, match=r"weights: cannot be read \(Too many levels") as error:
        verify(checkpoint, "weights")
    assert not isinstance(error.value, DamagedError)


def test_a_full_disk_is_reported_for_numpy_errors() -> None:
    line = r"^data cannot be written: No space left on device \(600 requested and 506 written\); free some space, or x$"
    with pytest.raises(DataError, match=line), explain_write_errors("data", "x"):
        raise OSError("600 requested and 506 written")


def test_a_full_disk_error_names_the_target_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for name in (None, files._beside(path, "tmp")):
        with pytest.raises(OSError, match="No space left on device") as error, atomic_file(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
        assert error.value.filename == str(path)
    with pytest.raises(FileNotFoundError) as missing, atomic_file(path):
        (tmp_path / "another").read_bytes()
    assert missing.value.filename == str(tmp_path / "another")


def test_a_full_disk_error_names_the_target_folder(tmp_path: Path) -> None:
    """Data that is in memory is written when a file is closed, and this error has no name."""
    path = tmp_path / "folder"
    inside = files._beside(path, "tmp") / "part" / "file"
    for name, target in ((None, path), (inside, path / "part" / "file")):
        with pytest.raises(OSError, match="No space left on device") as error, atomic_folder(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
        assert error.value.filename == str(target)
    with pytest.raises(FileNotFoundError) as missing, atomic_folder(path):
        (tmp_path / "another").read_bytes()
    assert missing.value.filename == str(tmp_path / "another")


def test_null_device_is_read_as_an_empty_file() -> None:
    assert files.read_bytes(os.devnull) == b""
