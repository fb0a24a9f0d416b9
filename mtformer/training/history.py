"""Read and append to metrics.jsonl and samples.jsonl, and truncate them when a run is resumed.

A killed run may have written lines for steps after its last checkpoint, which the resumed run writes again. Resuming
from the checkpoint of step S therefore removes all lines of later steps, an incomplete last line and, if the checkpoint
is temporary (saved after a signal), the dev line of step S, because its validation is repeated. The checkpoint contains
the sums of the current log window, so the next line is the same as without interruption. As a result, the files of a
resumed and an uninterrupted run differ only in times and `resume` lines.

Files are rewritten atomically. Checkpoints store the size and SHA-256 of both; resuming warns if that part changed.
"""

import contextlib
import hashlib
import itertools
import json
import math
from pathlib import Path
from typing import Any

from mtformer.errors import CheckpointError, log
from mtformer.files import atomic_file, parse_json, require_file, sync


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the records of a file; each has at least `kind` (train, dev or resume) and `step`.

    An incomplete last line is skipped. If the file does not exist, the list is empty.
    """
    return _parse_records(_read(path))


def read_new_records(path: Path, start: int) -> tuple[list[dict[str, Any]], int]:
    """Return the records of the complete lines from a position on, and the position after them, in bytes."""
    if not path.is_file():
        return [], start
    with path.open("rb") as file:
        file.seek(start)
        data = file.read()
    complete_lines = data[: data.rfind(b"\n") + 1]
    return _parse_records(complete_lines), start + len(complete_lines)


def _parse_records(data: bytes) -> list[dict[str, Any]]:
    records = []
    for line in data.splitlines():
        with contextlib.suppress(ValueError):
            record = parse_json(line)
            if isinstance(record, dict) and {"kind", "step"} <= record.keys():
                records.append(record)
    return records


def _read(path: Path) -> bytes:
    """Return the contents of a file, which is empty if it does not exist."""
    return path.read_bytes() if path.is_file() else b""


def append_record(path: Path, kind: str, step: int, **values: Any) -> None:
    """Append a record; raise CheckpointError if it cannot be written.

    Args:
        path: file with one JSON object per line.
        kind: kind of the record: train, dev, plan or resume.
        step: step of the record.
        **values: other values by name; NaN and infinity become null.
    """
    record: dict[str, Any] = {"kind": kind, "step": step}
    for name, value in values.items():
        record[name] = value if _is_in_json(value) else None

    line = json.dumps(record, ensure_ascii=False) + "\n"
    try:
        if path.exists():
            require_file(path)
        with path.open("a", encoding="utf-8") as file:
            file.write(line)
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be written ({error.strerror}); checkpoints are not affected. Free some space, or fix the "
            "cause, and continue with --resume"
        ) from error


def _is_in_json(value: Any) -> bool:
    """Return False for NaN and infinity, which JSON does not support."""
    return not isinstance(value, float) or math.isfinite(value)


def log_checksum(path: Path) -> dict[str, Any]:
    """Write a file to disk, because a resumed run does not repeat earlier lines; return its size and SHA-256."""
    sync(path)
    data = path.read_bytes()
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def has_changed(path: Path, saved: dict[str, Any] | None) -> bool:
    """Return True if the part of a file that `saved`, an earlier result of `log_checksum`, describes has changed."""
    if saved is None:
        return False
    saved_part = _read(path)[: saved["bytes"]]
    return hashlib.sha256(saved_part).hexdigest() != saved["sha256"]


def cut_after(path: Path, step: int, with_dev: bool, saved: dict[str, Any] | None = None) -> None:
    """Remove the lines after a step from a file, if it exists.

    Unreadable lines are removed with a warning; an incomplete last line is removed without one.

    Args:
        path: file with one JSON object per line.
        step: last step whose lines are kept.
        with_dev: keep the dev line of this step, too.
        saved: result of `log_checksum` at this step; if the part of the file that it describes has changed, a warning
            is logged. None: do not check.
    """
    if has_changed(path, saved):
        log.warning(
            "%s: changed or truncated since the checkpoint of step %d was saved; training is not affected, but reports "
            "on the steps up to %d may be wrong or incomplete; restore the file from a copy",
            *(path, step, step),
        )

    data = _read(path)
    lines = data.splitlines()
    outcomes = [_belongs(line, step, with_dev) for line in lines]
    kept_lines = list(itertools.compress(lines, outcomes))  # without those whose outcome is None
    text = b"".join(line + b"\n" for line in kept_lines)
    if text == data:
        return
    with atomic_file(path) as temporary:
        temporary.write_bytes(text)

    outcomes_of_complete_lines = outcomes if data.endswith(b"\n") else outcomes[:-1]
    num_unreadable = outcomes_of_complete_lines.count(None)
    if num_unreadable:
        log.warning("%s: removed damaged lines: %d", path, num_unreadable)
    num_later = len(lines) - len(kept_lines) - num_unreadable
    if num_later:
        log.info("%s: removed %d lines after step %d; these steps are repeated", path, num_later, step)


def _belongs(line: bytes, step: int, with_dev: bool) -> bool | None:
    """Return True if `cut_after` keeps a line, False if not, None if it cannot be parsed."""
    try:
        record = parse_json(line)
        if record["step"] == step:
            return bool(with_dev or record["kind"] != "dev")
        return bool(record["step"] < step)
    except (ValueError, TypeError, KeyError):
        return None
