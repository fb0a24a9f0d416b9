"""Atomic writes, locks, checksums, and cleanup of the leftovers of killed processes.

A file or folder is first written next to its destination as `.NAME@HOST.PID.tmp`; a folder that is replaced is briefly
renamed to `.NAME@HOST.PID.old`. The next process that writes there deletes leftovers of killed processes, or
restores the old folder if the destination does not exist.
"""

import errno
import hashlib
import json
import os
import platform
import re
import shutil
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout
from pydantic import ConfigDict, create_model

from mtformer.errors import CheckpointError, ConfigError, MtformerError, log

FORMAT: Final = 1
"""Format of configs, checkpoints, prepared corpora, score cards and exports; a file without a format has format 1."""
FORMAT_LINE = re.compile(rb"^format:", re.MULTILINE)
"""Line with the format in a saved config."""
META = "meta.json"
"""Name of the file of a checkpoint with its step, metrics and checksums."""
CHECKSUMS = "checksums.json"
"""Name of the file of a run or export with its checksums."""
TEACHER = "teacher.json"
"""Record of `distill` in NEW/corpus, with the checksum of the translations."""
MADE_FROM = "made_from.json"
"""Record of `adapt` in NEW/corpus, with the checksums of the text."""
LEFTOVER = re.compile(r"\.(?P<name>.+)@(?P<host>[^@]*)\.(?P<pid>\d{1,9})\.(?P<kind>tmp|old)\w*", re.DOTALL)
"""Name of a temporary file or folder, see above."""
FOREIGN_SECONDS = 24 * 3600
"""Age at which temporary files from another machine, whose processes cannot be checked, are deleted."""
MOST_BYTES = 100_000_000
"""Maximum size of a config, JSON file or tokenizer in bytes."""
UNSUPPORTED = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM)
"""Error numbers of drives, such as mounted cloud drives, that lack locks, file modes, or the renaming of folders."""
HASHED_BYTES = 1 << 20
"""Number of bytes of a file that are read at a time to compute its checksum."""


_log_once = cache(log.warning)


class DamagedError(CheckpointError):
    """Raised for a missing or changed file; `listing` is the file with its checksum, `META` in a checkpoint."""

    def __init__(self, path: Path, problem: str, listing: str = META) -> None:
        super().__init__(f"{path}: {problem}; {_remedy(path, listing)}")
        self.what = f"{path.name} is {problem}"


def _remedy(path: Path, listing: str) -> str:
    """Return what to do about a damaged file, by its name or by the file with its checksum."""
    if listing == META:
        return f"use another checkpoint, or move {path.parent} away"
    if path.name in REMEDIES:
        return REMEDIES[path.name]
    return REMEDIES_OF_LISTINGS.get(listing, "restore it from a copy, or export again")


REMEDIES = {
    CHECKSUMS: "restore it from a copy, export again, or train again with --overwrite",
    "config.yaml": "restore it from a copy or export again; pass other settings on the command line",
}
"""Remedy for a damaged file of a run or export."""
REMEDIES_OF_LISTINGS = {
    TEACHER: "restore it from a copy, or delete distilled.tsv and repeat `mtformer distill` to translate again",
    MADE_FROM: "restore it from a copy, or repeat `mtformer adapt` with another --run-dir",
}
"""Remedy for a damaged file whose checksum is in the named file."""
_SHA256 = re.compile("[0-9a-f]{64}")
"""A SHA-256 as hexadecimal digits."""
_STRICT = ConfigDict(strict=True, extra="allow")
_LOG = create_model("LogChecksum", bytes=(int, ...), sha256=(str, ...))
_LISTING = create_model(CHECKSUMS, __config__=_STRICT, sha256=(dict[str, str], ...))
_META = create_model(
    META, __base__=_LISTING, step=(int, ...), metrics=(dict[str, float], ...), made_with=(dict[str, Any], {}),
    is_temporary=(bool, False), logs=(dict[str, _LOG], {}),  # type: ignore[valid-type]  # made here
)  # fmt: skip
"""Schema of meta.json; `_LISTING` is that of checksums.json."""


def write_meta(folder: Path, **values: Any) -> None:
    """Write meta.json with these values, the SHA-256 of each file in the folder, and a checksum of meta.json itself."""
    hashes = file_hashes(folder, folder.iterdir())
    text = _with_checksum({"format": FORMAT, **values, "sha256": hashes})
    (folder / META).write_text(text, encoding="utf-8")


def write_checksums(folder: Path, hashes: dict[str, str] | None = None, **values: Any) -> None:
    """Write checksums.json with hashes (default: the SHA-256 of each file), other values, and its own checksum."""
    if hashes is None:
        paths = [path for path in folder.rglob("*") if path.name != CHECKSUMS]
        hashes = file_hashes(folder, paths)
    write_listing(folder / CHECKSUMS, hashes, **values)


def write_listing(path: Path, hashes: dict[str, str], **values: Any) -> None:
    """Write a JSON file with the SHA-256 of files of its folder, other values, and a checksum of the file itself."""
    write_text(path, _with_checksum({"format": FORMAT, **values, "sha256": hashes}))


def read_meta(folder: Path, listing: str = META) -> dict[str, Any]:
    """Return the contents of meta.json: step, metrics, sha256 and more; raise DamagedError if it is damaged.

    If `listing` is `CHECKSUMS`, read checksums.json of a run or export, which has `sha256` and, in a bundle, `adapted`;
    other names are those of files that `write_listing` wrote.
    """
    path = folder / listing
    with _wrap_errors(path, listing):
        data = read_bytes(path)
    try:
        meta = parse_json(data)
        if meta.pop("checksum", None) != json_sha256(meta):
            raise DamagedError(path, "changed since it was saved", listing)
        require_format(path, meta.get("format", FORMAT))
        schema = _META if listing == META else _LISTING
        return schema.model_validate(meta).model_dump()
    except (ValueError, AttributeError, TypeError) as error:  # not JSON, not an object, or wrong types
        reason = " ".join(str(error).split())
        raise DamagedError(path, f"not readable ({reason:.200})", listing) from error


def verify(folder: Path, *names: str, listing: str = META) -> dict[str, Any]:
    """Compare files with the checksums in meta.json (or `listing`) and return its contents.

    Raise DamagedError if a file is missing, truncated or changed, CheckpointError if it cannot be read.
    """
    meta = read_meta(folder, listing)
    for name in names:
        path = folder / name
        with _wrap_errors(path, listing):
            actual = file_sha256(path)
        # While `write_config` replaces a config, both the old and the new one are valid.
        expected = meta["sha256"].get(name, "").split()
        if actual not in expected:
            raise DamagedError(path, "truncated or changed since it was saved", listing)
    return meta


def verify_all(folder: Path, listing: str, *, without: Iterable[str] = ()) -> dict[str, Any]:
    """Like `verify`, for all files that a listing names.

    Args:
        folder: folder of the files and of the listing.
        listing: name of the listing, see `read_meta`.
        without: names of files that are not verified.
    """
    excluded = set(without)
    names = [name for name in read_meta(folder, listing)["sha256"] if name not in excluded]
    return verify(folder, *names, listing=listing)


FileState = tuple[int, int, int]
"""Size, modification time and inode number of a file."""


def file_state(path: str | Path) -> FileState:
    """Return the state of a file, which differs after it is written to or replaced."""
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns, status.st_ino


@contextmanager
def unchanged(*paths: Path) -> Iterator[None]:
    """Raise CheckpointError at the end of the context if a file was written to, replaced or deleted inside it.

    Use it around the verification of a file and the call that opens it again by its path, such as that of a library.
    """
    before = [_state_or_none(path) for path in paths]
    yield
    for path, state in zip(paths, before, strict=True):
        if _state_or_none(path) != state:
            raise CheckpointError(f"{path}: changed while it was being read; run the command again")


def _state_or_none(path: Path) -> FileState | None:
    try:
        return file_state(path)
    except OSError:  # reported by the call that reads the file
        return None


def require_format(path: object, value: object, error: type[MtformerError] = CheckpointError) -> None:
    """Raise an error if the format of a file differs from the format of this version.

    Args:
        path: the file, or a place in it, for the message.
        value: format of the file.
        error: class of the error.
    """
    if value != FORMAT:
        known = f"this version of mtformer reads format {FORMAT} only; install a newer version"
        raise error(f"{path}: has format {value!r:.20}; {known}")


def require_saved_config(path: Path) -> None:
    """Raise CheckpointError if version 0.1 saved this config of a run or bundle.

    Later versions write a format in the config and in checksums.json, so a damaged config is not taken for an old one.
    """
    with _wrap_errors(path, CHECKSUMS):
        contents = read_bytes(path)
    if not FORMAT_LINE.search(contents) and not _has_format(path.with_name(CHECKSUMS)):
        raise CheckpointError(
            f"{path.parent}: was written by version 0.1 of mtformer, which this version cannot read ({path.name} has "
            "no format); use version 0.1, or train the model again with this version"
        )


def _has_format(listing: Path) -> bool:
    """Return True if a file with checksums has a format."""
    try:
        values = read_json(listing)
    except (OSError, ValueError):
        return False
    return isinstance(values, dict) and "format" in values


def file_hashes(folder: Path, paths: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 of each file by its path relative to the folder."""
    files = [path for path in sorted(paths) if path.is_file()]
    return {path.relative_to(folder).as_posix(): file_sha256(path) for path in files}


@contextmanager
def _wrap_errors(path: Path, listing: str) -> Iterator[None]:
    """Convert an OSError about a file of a checkpoint, run or export to a CheckpointError."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise DamagedError(path, "missing", listing) from error
    except OSError as error:
        instead = f", or move {path.parent} away to continue without it" if listing == META else ""
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); fix the cause{instead}") from error


def _with_checksum(meta: dict[str, Any]) -> str:
    return json.dumps(sealed(meta), indent=1)


def sealed(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a small JSON file with their checksum, which `unsealed` verifies."""
    return {**values, "checksum": json_sha256(values)}


def unsealed(value: Any) -> dict[str, Any]:
    """Return the contents of a JSON file without its checksum; raise ValueError if they have changed.

    Files of version 0.3 have no checksum, and are returned as they are.
    """
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    values = dict(value)
    checksum = values.pop("checksum", None)
    # If only the name of the checksum is damaged, the file must not look like one of version 0.3.
    has_nameless_checksum = any(isinstance(item, str) and _SHA256.fullmatch(item) for item in values.values())
    if checksum is None and not has_nameless_checksum:
        return values
    if checksum != json_sha256(values):
        raise ValueError("changed since it was saved")
    return values


def json_sha256(value: Any) -> str:
    """Return the SHA-256 of a value as JSON, as hexadecimal digits."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def utc_now() -> str:
    """Return the time in ISO 8601 format, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def cache_folder(chosen: str | None = None) -> Path:
    """Return the cache folder: `chosen`, `MTFORMER_CACHE`, or `mtformer` in `XDG_CACHE_HOME` or `~/.cache`."""
    caches = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(caches):  # relative paths are ignored, as the XDG specification requires
        caches = "~/.cache"
    default = Path(caches, "mtformer")
    return expand_user(chosen or os.environ.get("MTFORMER_CACHE") or default)


@contextmanager
def locked(path: Path, refusal: MtformerError, timeout: float = 0.0) -> Iterator[None]:
    """Hold a lock file, which the system releases when a process dies.

    Args:
        path: the lock file, whose folder is created.
        refusal: error that is raised if another process holds the lock.
        timeout: seconds to wait for the lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock: AbstractContextManager[Any] = nullcontext()
    if supports_locks(path):
        try:
            lock = FileLock(path).acquire(timeout=timeout)
        except Timeout as error:
            raise refusal from error
    else:
        _log_once("%s: this drive has no locks; let only one process at a time write there", path.parent)
    with lock:
        yield


def supports_locks(path: Path) -> bool:
    """Return True if the drive of a lock file, which is created, has locks; mounted cloud drives may have none."""
    if os.name == "nt":
        return True
    import fcntl

    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_UN)  # changes nothing, because this descriptor holds no lock
        except OSError as error:
            if error.errno not in (*UNSUPPORTED, errno.ENOLCK):
                raise
            return False
    return True


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Set the file name of an OSError to `path` if it has none, or to the final name of a temporary file.

    A file in a temporary folder gets its name in the final folder.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None:
            if error.errno is not None:  # no errno: raised by NumPy or Arrow, with its own message
                error.filename = str(path)
        else:
            final_name = _final_name(str(error.filename))
            if final_name != str(error.filename):
                error.filename = final_name
                error.filename2 = None
        raise


def _final_name(path: str) -> str:
    """Return a path with the final names of temporary files and folders in it."""
    names = []
    for name in path.split(os.sep):
        leftover = LEFTOVER.fullmatch(name)
        names.append(name if leftover is None else leftover["name"])
    return os.sep.join(names)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path`; on success it is synced and renamed to `path`, otherwise deleted."""
    path = Path(os.path.realpath(path))  # do not replace a symbolic link
    if path.exists() and not path.is_file():  # would replace a pipe or device
        raise OSError(errno.EINVAL, "exists, and is not a file", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    clear_leftovers(path.parent, path.name)
    temporary = _beside(path, "tmp")

    try:
        with naming_file(path):
            yield temporary
            if path.exists():
                with _if_supported():
                    shutil.copymode(path, temporary)
            sync(temporary)
            os.replace(temporary, path)
            sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder next to `path`; on success it is synced and renamed to `path`, otherwise deleted.

    An existing folder is deleted afterwards. A rename cannot replace a non-empty folder, so `path` does not exist for a
    moment; if the process is killed then, `clear_leftovers` restores the old folder.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    clear_leftovers(path.parent, path.name)
    temporary = _beside(path, "tmp")
    old = _beside(path, "old")
    temporary.mkdir()

    try:
        with naming_file(path):
            yield temporary
            for file in temporary.rglob("*"):
                sync(file)
            sync(temporary)

            if path.exists():
                move_folder(path, old)
            move_folder(temporary, path)
            sync(path.parent)
    finally:
        if old.exists() and not path.exists():
            move_folder(old, path)
        for folder in (old, temporary):
            shutil.rmtree(folder, ignore_errors=True)


def move_folder(source: Path, target: Path) -> None:
    """Rename a folder; on a drive that cannot rename folders, copy it.

    A process that is killed while it copies leaves an incomplete folder, which the checksums reveal.
    """
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        _log_once("%s: this drive cannot rename folders, so they are copied, which takes longer", target.parent)
        _copy_folder(source, target)
        shutil.rmtree(source, ignore_errors=True)


def _copy_folder(source: Path, target: Path) -> None:
    """Copy a folder without the modes of its files, which the drive may not support."""
    target.mkdir()
    for path in sorted(source.rglob("*")):
        copy = target / path.relative_to(source)
        if path.is_dir():
            copy.mkdir()
        else:
            shutil.copyfile(path, copy)
            sync(copy)


@contextmanager
def _if_supported() -> Iterator[None]:
    """Ignore the error of a drive that does not support what is done inside the context."""
    try:
        yield
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise


def delete_folder(path: Path) -> None:
    """Delete a folder atomically: it is renamed first, so a killed process leaves no incomplete folder at `path`."""
    temporary = _beside(path, "tmp")
    try:
        os.rename(path, temporary)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        temporary = path  # an incomplete folder may be left, which the checksums reveal
    shutil.rmtree(temporary, ignore_errors=True)  # remaining files are deleted with other leftovers


def clear_leftovers(folder: Path, name: str | None = None) -> None:
    """Delete the temporary files and folders of killed processes in `folder`, optionally only for one name.

    A folder that was about to be replaced is restored if its destination does not exist. Files of processes that are
    running, or may be running on another machine, are kept.
    """
    if not folder.is_dir():
        return

    for path in sorted(folder.iterdir()):
        leftover = LEFTOVER.fullmatch(path.name)
        if leftover is None or name not in (None, leftover["name"]):
            continue
        if _may_live(path, int(leftover["pid"]), leftover["host"]):
            continue

        target = folder / leftover["name"]
        if leftover["kind"] == "old" and not target.exists():
            move_folder(path, target)
        elif path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _beside(path: Path, kind: str) -> Path:
    return path.with_name(f".{path.name}@{platform.node()}.{os.getpid()}.{kind}")


def _may_live(path: Path, pid: int, host: str) -> bool:
    """Return True if the process that wrote a temporary file or folder may still be running."""
    if host != platform.node() or os.name == "nt":  # on Windows, `os.kill` with 0 sends Ctrl-C
        return time.time() - path.stat().st_mtime < FOREIGN_SECONDS
    if pid == os.getpid():
        return False  # an earlier process with the same ID, as in a container
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # a process of another user
    return True


def write_text(path: Path, text: str) -> None:
    """Write a small UTF-8 file atomically."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")


def write_json(path: Path, value: Any, indent: int | None = None) -> None:
    """Write a small JSON file atomically.

    Args:
        path: the file.
        value: its contents.
        indent: number of spaces per level; None: write a single line.
    """
    write_text(path, json.dumps(value, indent=indent, ensure_ascii=False) + "\n")


def require_file(path: str | Path, or_pipe: bool = False) -> None:
    """Raise OSError for a missing file, a pipe or a device; the null device counts as an empty file."""
    status = os.stat(path)
    is_null_device = stat.S_ISCHR(status.st_mode) and status.st_rdev == os.stat(os.devnull).st_rdev
    if is_null_device:
        return

    allowed_kinds = [stat.S_IFREG, stat.S_IFDIR]  # opening a folder raises an error of its own
    if or_pipe:
        allowed_kinds.append(stat.S_IFIFO)
    if stat.S_IFMT(status.st_mode) not in allowed_kinds:
        raise OSError(errno.EINVAL, "a pipe or device, not a file", str(path))


def read_bytes(path: str | Path, most: int = MOST_BYTES) -> bytes:
    """Return the contents of a file; raise OSError if it is not a regular file, or is larger than `most` bytes."""
    require_file(path)
    with open(path, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"larger than {most:,} bytes", str(path))
    return data


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; raise ValueError if the text is not valid JSON or is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json(path: Path) -> Any:
    """Parse a small JSON file; raise OSError if it cannot be read, ValueError if it is not valid JSON."""
    return parse_json(read_bytes(path))


def expand_user(path: str | Path) -> Path:
    """Replace `~` with the home folder; raise ConfigError if that is unknown, or the path is not UTF-8."""
    require_text(path)
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{path}: the home folder is unknown; give the full path") from error


def beside(file: str | Path, name: str) -> Path:
    """Return the path of `name`, which is relative to the folder of `file`; `..` follows links, as elsewhere."""
    path = Path(file).parent / expand_user(name)
    normalized = Path(os.path.normpath(path))
    is_same = os.path.realpath(normalized) == os.path.realpath(path)  # not if the folder before `..` is a link
    return normalized if is_same else path


def require_text(value: object, place: str = "") -> None:
    """Raise ConfigError for text with NUL or an unpaired surrogate, which Python uses for bytes that are not UTF-8.

    In a locale such as C, Python may use it for all bytes that are not ASCII (if its UTF-8 mode is off).
    """
    if not re.search("[\0\ud800-\udfff]", str(value)):
        return
    encoding = sys.getfilesystemencoding()
    if encoding == "utf-8":
        problem = "not UTF-8 text; use another value or name"
    else:
        problem = f"not text in the encoding of the locale, {encoding}; set LC_ALL=C.UTF-8, or use another name"
    raise ConfigError(f"{place}{str(value)!a:.60}: {problem}")


def file_sha256(path: str | Path) -> str:
    """Return the SHA-256 of a regular file as hexadecimal digits."""
    require_file(path)
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(HASHED_BYTES):
            digest.update(block)
    return digest.hexdigest()


def sync(path: Path) -> None:
    """Wait until a file, or the list of files in a folder, is written to disk."""
    if os.name == "nt":  # Windows cannot open folders, and syncs only files opened for writing
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with _if_supported():
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
