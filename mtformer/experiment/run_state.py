"""State of a run: state.json, and a lock that the system releases when a process dies.

The lock is `.NAME.lock` beside the run directory, because `--overwrite` renames the directory itself.
"""

import contextlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal, get_args

from filelock import FileLock, Timeout

from mtformer.errors import CheckpointError, InterruptedRunError
from mtformer.files import read_json, require_text, write_text
from mtformer.run_dir import RunDir

StateName = Literal["new", "running", "finished", "interrupted", "failed", "killed"]
LOOKING_SECONDS = 1.0
"""Readers of a state hold the lock for an instant; a training that starts waits this long for it."""
log = logging.getLogger("mtformer")


@dataclass(frozen=True)
class RunState:
    """State of a run."""

    state: StateName
    """new: not started; killed: its process ended without writing a state."""
    error: str | None = None
    """Error of a failed run in one line."""
    started: str | None = None
    """Start of the first process, ISO 8601."""
    resumed: str | None = None
    """Start of the latest process, if it is another one."""
    ended: str | None = None
    """End of the latest process."""


@contextlib.contextmanager
def lock_run(run: RunDir) -> Iterator[None]:
    """Keep other processes from training in this run directory; raise CheckpointError if one does already."""
    require_text(run.path)
    run.lock.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(run.lock)
    try:
        lock.acquire(timeout=LOOKING_SECONDS)
    except Timeout as error:
        raise CheckpointError(
            f"{run.path}: another process trains here now; wait for it, stop it, or name another place with --run-dir"
        ) from error
    try:
        yield
    finally:
        if not run.path.exists():  # after a failed start
            run.lock.unlink(missing_ok=True)
        lock.release()


@contextlib.contextmanager
def record_state(run: RunDir) -> Iterator[None]:
    """Write the state of a training in the context to state.json, and how it ended."""
    now, first = _now(), _saved(run).get("started")
    starts = {"started": first or now, "resumed": now if first else None}
    _write(run, "running", starts)
    try:
        yield
    except BaseException as error:
        is_requested = isinstance(error, InterruptedRunError | KeyboardInterrupt)
        with contextlib.suppress(OSError):  # a full disk is reported by the error itself
            _write(run, "interrupted" if is_requested else "failed", starts, None if is_requested else _line(error))
        raise
    _write(run, "finished", starts)


def read_state(run: RunDir) -> RunState:
    """Return the state of a run; `new` if state.json is missing or damaged."""
    saved = _saved(run)
    state: StateName = saved.get("state", "new")
    if _is_held(run.lock):
        state = "running"
    elif state == "running":
        state = "killed"
    return RunState(state, **{name: saved.get(name) for name in ("error", "started", "resumed", "ended")})


def _saved(run: RunDir) -> dict[str, Any]:
    """Return the contents of state.json; empty if it is missing or damaged."""
    saved: Any = {}
    with contextlib.suppress(OSError, ValueError):
        saved = read_json(run.state)
    return saved if isinstance(saved, dict) and saved.get("state") in get_args(StateName) else {}


def _is_held(path: Path) -> bool:
    if not path.exists():
        return False
    try:
        with FileLock(path, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # of another user
        return False


def _write(run: RunDir, state: StateName, starts: dict[str, str | None], error: str | None = None) -> None:
    values = {"state": state, **starts, "ended": None if state == "running" else _now(), "error": error}
    write_text(run.state, json.dumps(values, indent=1, ensure_ascii=False) + "\n")


def _line(error: BaseException) -> str:
    return " ".join((str(error) or type(error).__name__).split())


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
