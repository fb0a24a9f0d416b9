"""Files that are written whole or not at all, their checksums, and leftovers of killed processes.

While a file or folder is written, it is beside its place as `.NAME@HOST.PID.tmp`, and what it replaces for an instant
as `.NAME@HOST.PID.old`. The next process that writes there deletes those of killed processes, or restores the old one
if its place is empty.
"""

import errno
import hashlib
import json
import os
import platform
import re
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pydantic import ConfigDict, create_model

from mtformer.errors import CheckpointError, ConfigError, MtformerError

FORMAT: Final = 1
"""Format of configs, checkpoints, prepared corpora, score cards and exports; a file without the number has format 1."""
META = "meta.json"
CHECKSUMS = "checksums.json"
LEFTOVER = re.compile(r"\.(?P<name>.+)@(?P<host>[^@]*)\.(?P<pid>\d{1,9})\.(?P<kind>tmp|old)", re.DOTALL)
FOREIGN_SECONDS = 24 * 3600
"""Age at which temporary files of another machine, whose processes are unknown here, are deleted."""
MOST_BYTES = 100_000_000
"""Largest config, JSON file or tokenizer that is read."""


class DamagedError(CheckpointError):
    """A file of a checkpoint, run or export that is missing or changed.

    Args:
        path: the file.
        what: what is wrong with it.
        listing: the name of the file that lists its checksum: `META` in a checkpoint, else `CHECKSUMS`.
    """

    def __init__(self, path: Path, what: str, listing: str = META) -> None:
        remedies = {
            CHECKSUMS: "restore it from a copy, export again, or train again with --overwrite",
            "config.yaml": "restore it from a copy or export again; pass other settings on the command line",
        }
        remedy = remedies.get(path.name, "restore it from a copy, or export again")
        if listing == META:
            remedy = f"use another checkpoint, or move {path.parent} away"
        super().__init__(f"{path}: {what}; {remedy}")
        self.what = f"{path.name} is {what}"


_STRICT = ConfigDict(strict=True, extra="allow")
_LOG = create_model("LogChecksum", bytes=(int, ...), sha256=(str, ...))
_LISTING = create_model(CHECKSUMS, __config__=_STRICT, sha256=(dict[str, str], ...))
_META = create_model(
    META, __base__=_LISTING, step=(int, ...), metrics=(dict[str, float], ...), made_with=(dict[str, Any], {}),
    is_temporary=(bool, False), logs=(dict[str, _LOG], {}),  # type: ignore[valid-type]  # made here
)  # fmt: skip
"""Types and defaults of the values in checksums.json and meta.json."""


def write_meta(folder: Path, **values: Any) -> None:
    """Write meta.json: the values, SHA-256 of each file of the folder, and of all this."""
    text = _with_checksum({"format": FORMAT, **values, "sha256": file_hashes(folder, folder.iterdir())})
    (folder / META).write_text(text, encoding="utf-8")


def write_checksums(folder: Path, hashes: dict[str, str] | None = None) -> None:
    """Write checksums.json of a folder: these hashes (default: SHA-256 of each file), and SHA-256 of all this."""
    if hashes is None:
        hashes = file_hashes(folder, (path for path in folder.rglob("*") if path.name != CHECKSUMS))
    write_text(folder / CHECKSUMS, _with_checksum({"format": FORMAT, "sha256": hashes}))


def read_meta(folder: Path, listing: str = META) -> dict[str, Any]:
    """Return meta.json of a checkpoint: step, metrics, sha256 and more; raise DamagedError if it is not as saved.

    With `CHECKSUMS` as `listing`, read checksums.json of a run or export, which has only `sha256`.
    """
    path = folder / listing
    with _wrap_errors(path, listing):
        data = read_bytes(path)
    try:
        meta = parse_json(data)
        if meta.pop("checksum", None) != _checksum(meta):
            raise DamagedError(path, "changed since it was saved", listing)
        require_format(path, meta.get("format", FORMAT))
        return (_META if listing == META else _LISTING).model_validate(meta).model_dump()
    except (ValueError, AttributeError, TypeError) as error:  # no JSON, no object, or other types
        raise DamagedError(path, f"not readable ({' '.join(str(error).split()):.200})", listing) from error


def verify(folder: Path, *names: str, listing: str = META) -> dict[str, Any]:
    """Return meta.json of a checkpoint (or what `listing` names), after comparing these files with it.

    Raises:
        DamagedError: when one is missing, cut short or changed.
        CheckpointError: when one cannot be read for another reason.
    """
    meta = read_meta(folder, listing)
    for name in names:
        path = folder / name
        with _wrap_errors(path, listing):
            actual = file_sha256(path)
        if actual not in meta["sha256"].get(name, "").split():
            raise DamagedError(path, "cut short or changed since it was saved", listing)
    return meta


def require_format(path: object, value: object, error: type[MtformerError] = CheckpointError) -> None:
    """Raise `error` if the format of a file is not the one that this version reads and writes."""
    if value != FORMAT:
        known = f"this version of mtformer reads format {FORMAT} only; install a newer version"
        raise error(f"{path}: has format {value!r:.20}; {known}")


def file_hashes(folder: Path, paths: Iterable[Path]) -> dict[str, str]:
    """Return the hash of each of these files by its path in the folder."""
    return {path.relative_to(folder).as_posix(): file_sha256(path) for path in sorted(paths) if path.is_file()}


@contextmanager
def _wrap_errors(path: Path, listing: str) -> Iterator[None]:
    """Turn an error of the system about a file of a checkpoint, run or export into a CheckpointError."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise DamagedError(path, "missing", listing) from error
    except OSError as error:
        instead = f", or move {path.parent} away to do without it" if listing == META else ""
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); repair that{instead}") from error


def _with_checksum(meta: dict[str, Any]) -> str:
    return json.dumps({**meta, "checksum": _checksum(meta)}, indent=1)


def _checksum(meta: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()


def cache_folder(chosen: str | None = None) -> Path:
    """Return the folder for files that can be made again: `chosen`, MTFORMER_CACHE, or mtformer in XDG_CACHE_HOME."""
    shared = os.environ.get("XDG_CACHE_HOME", "")  # its specification ignores a relative path
    default = Path(shared if os.path.isabs(shared) else "~/.cache", "mtformer")
    return expand_user(chosen or os.environ.get("MTFORMER_CACHE") or default)


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Name the user's file in an OSError, which may name none or a temporary one."""
    try:
        yield
    except OSError as error:
        is_temporary = error.filename is not None and LEFTOVER.fullmatch(os.path.basename(str(error.filename)))
        if is_temporary or (error.filename is None and error.errno is not None):  # without a number: of NumPy or Arrow
            error.filename, error.filename2 = str(path), None
        raise


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside `path`; on success it is synced and renamed to `path`, else removed."""
    path = Path(os.path.realpath(path))  # a link stays a link
    if path.exists() and not path.is_file():  # a pipe or device would be replaced
        raise OSError(errno.EINVAL, "exists, and is not a file", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    clear_leftovers(path.parent, path.name)
    temporary = _beside(path, "tmp")
    try:
        with naming_file(path):
            yield temporary
            sync(temporary)
            os.replace(temporary, path)
            sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path, replaces: bool = True) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; on success its files are synced and it takes the place of `path`.

    The old folder is deleted afterwards; with `replaces` off, it stays and the new one is deleted. No system renames
    over a full folder, so for an instant there is neither; if the process is killed then, `clear_leftovers` puts the
    old one back.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    clear_leftovers(path.parent, path.name)
    temporary, old = _beside(path, "tmp"), _beside(path, "old")
    temporary.mkdir()
    try:
        yield temporary
        for file in temporary.rglob("*"):
            sync(file)
        sync(temporary)
        if path.exists():
            if not replaces:
                return
            os.rename(path, old)
        os.rename(temporary, path)
        sync(path.parent)
    finally:
        if old.exists() and not path.exists():
            os.rename(old, path)
        for folder in (old, temporary):
            shutil.rmtree(folder, ignore_errors=True)


def delete_folder(path: Path) -> None:
    """Delete a folder at once: a process killed meanwhile leaves no part of it in its place."""
    temporary = _beside(path, "tmp")
    os.rename(path, temporary)
    shutil.rmtree(temporary, ignore_errors=True)  # the rest is deleted with other leftovers


def clear_leftovers(folder: Path, name: str | None = None) -> None:
    """Delete the temporary files and folders of killed processes in `folder`: all, or those of this name.

    A file or folder that was about to be replaced is restored if its place is empty. Those of a process that is alive,
    or may be alive on another machine, stay.
    """
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        found = LEFTOVER.fullmatch(path.name)
        if found is None or name not in (None, found["name"]) or _may_live(path, int(found["pid"]), found["host"]):
            continue
        target = folder / found["name"]
        if found["kind"] == "old" and not target.exists():
            os.rename(path, target)
        elif path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _beside(path: Path, kind: str) -> Path:
    return path.with_name(f".{path.name}@{platform.node()}.{os.getpid()}.{kind}")


def _may_live(path: Path, pid: int, host: str) -> bool:
    """Return True if the process that wrote a temporary file or folder may still be alive."""
    if host != platform.node() or os.name == "nt":  # on Windows `os.kill` with 0 sends Ctrl-C
        return time.time() - path.stat().st_mtime < FOREIGN_SECONDS
    if pid == os.getpid():
        return False  # of an earlier process with the same number, as in a container
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # of another user
    return True


def write_text(path: Path, text: str) -> None:
    """Write a small UTF-8 file whole or not at all."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")


def require_file(path: str | Path, or_pipe: bool = False) -> None:
    """Raise OSError for a missing file, and for a pipe or device, which may never end; the null device is empty."""
    status = os.stat(path)
    is_null = stat.S_ISCHR(status.st_mode) and status.st_rdev == os.stat(os.devnull).st_rdev
    if not (
        is_null
        or stat.S_ISREG(status.st_mode)
        or stat.S_ISDIR(status.st_mode)
        or (or_pipe and stat.S_ISFIFO(status.st_mode))
    ):
        raise OSError(errno.EINVAL, "a pipe or device, not a file", str(path))


def read_bytes(path: str | Path, most: int = MOST_BYTES) -> bytes:
    """Return the bytes of a small regular file; raise OSError if it is another kind of file or has more than `most`."""
    require_file(path)
    with open(path, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"larger than {most:,} bytes", str(path))
    return data


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text; raise ValueError if it is not JSON or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json(path: Path) -> Any:
    """Return the value of a small JSON file; raise OSError if it cannot be read, ValueError if it is not JSON."""
    return parse_json(read_bytes(path))


def expand_user(path: str | Path) -> Path:
    """Return a path with the home folder for `~`; raise ConfigError if that is unknown, or the path is not UTF-8."""
    require_text(path)
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{path}: unknown home folder; write the whole path") from error


def require_text(value: object, place: str = "") -> None:
    """Raise ConfigError for a path or other text with NUL or half a surrogate pair, as of bytes that are not UTF-8."""
    if re.search("[\0\ud800-\udfff]", str(value)):
        raise ConfigError(f"{place}{str(value)!a:.60}: is not UTF-8 text; write or name it otherwise")


def file_sha256(path: str | Path) -> str:
    """Return the SHA-256 of a regular file's bytes, hexadecimal."""
    require_file(path)
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    if os.name == "nt":  # Windows opens no folders, and syncs only files opened for writing
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
