"""metrics.jsonl and samples.jsonl: written line by line, read by those who look at a run, cut by a resumed run.

A run that is killed may have written lines for steps after its last checkpoint. It takes these steps again, and would
write the lines again. So resuming from the checkpoint of step S first cuts off all lines of later steps, a last line
that the kill or a full disk cut in the middle, and, when the checkpoint is a temporary one (saved because the run was
asked to stop), the dev line of S itself: the validation of that step comes anew. The sums of the log window in progress
lie in the checkpoint, so the next line is the one that a run without a stop would have written. In the end the files of
both runs differ in times and in `resume` lines only.

A file is written anew whole, or not at all. Each checkpoint has the size and SHA-256 of both files at the time it was
saved; a resumed run warns when what they held then has changed.
"""

import contextlib
import hashlib
import json
import logging
from pathlib import Path
from typing import Any

from mtformer.errors import CheckpointError
from mtformer.files import atomic_file

log = logging.getLogger("mtformer")


def read_records(path: Path) -> list[dict[str, Any]]:
    """The objects of the file, in order: `kind` is train, dev or resume, `step` the step.

    There are none when there is no file yet; a last line that is being written, or that a kill cut, is left out.
    """
    records = []
    for line in path.read_bytes().splitlines() if path.is_file() else []:
        with contextlib.suppress(ValueError):
            record = json.loads(line)
            if isinstance(record, dict) and {"kind", "step"} <= record.keys():
                records.append(record)
    return records


def append_record(path: Path, kind: str, step: int, **values: Any) -> None:
    """Writes one more line; raises CheckpointError when the disk refuses."""
    finite = {name: None if value != value else value for name, value in values.items()}  # JSON has no NaN
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, "step": step, **finite}, ensure_ascii=False) + "\n")
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be written ({error.strerror}); the checkpoints are kept. Free some space, or mend what "
            "else it may be, and go on with --resume"
        ) from error


def log_checksum(path: Path) -> dict[str, Any]:
    """Return the size and SHA-256 of the file, for `warn_if_changed`."""
    data = path.read_bytes()
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def warn_if_changed(path: Path, saved: dict[str, Any], step: int) -> None:
    """Log a warning if the file no longer starts with the bytes it had when the checkpoint of `step` was saved."""
    data = path.read_bytes()[: saved["bytes"]] if path.is_file() else b""
    if hashlib.sha256(data).hexdigest() != saved["sha256"]:
        log.warning(
            "%s: changed or cut short since the checkpoint of step %d was saved; training is not affected, but reports "
            "of the steps up to %d may be wrong or incomplete; restore the file from a copy",
            *(path, step, step),
        )


def cut_after(path: Path, step: int, with_dev: bool) -> None:
    """Leaves only the lines up to this step in the file, if there is one; of this step the dev line only if asked.

    Lines that cannot be read are removed with a warning; a last line without its end is what a kill leaves.
    """
    if not path.is_file():
        return
    data = path.read_bytes()
    lines = data.splitlines()
    belongs = [_belongs(line, step, with_dev) for line in lines]
    text = b"".join(line + b"\n" for line, is_kept in zip(lines, belongs, strict=True) if is_kept)
    if text == data:
        return
    with atomic_file(path) as temporary:
        temporary.write_bytes(text)
    num_unreadable = (belongs if data.endswith(b"\n") else belongs[:-1]).count(None)
    if num_unreadable:
        log.warning("%s: damaged lines removed: %d", path, num_unreadable)
    num_later = len(lines) - belongs.count(True) - num_unreadable
    if num_later:
        log.info("%s: %d lines from after step %d cut off; these steps come again", path, num_later, step)


def _belongs(line: bytes, step: int, with_dev: bool) -> bool | None:
    """Return whether `cut_after` keeps a line; None if it cannot be read."""
    try:
        record = json.loads(line)
        return bool(record["step"] < step or (record["step"] == step and (with_dev or record["kind"] != "dev")))
    except (ValueError, TypeError, KeyError):
        return None
