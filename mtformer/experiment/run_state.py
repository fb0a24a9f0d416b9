"""State of a run: state.json, and a lock that the operating system releases when the process dies.

The lock file `.NAME.lock` is next to the run directory, because `--overwrite` renames the directory itself.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from filelock import FileLock, Timeout

from mtformer.errors import CheckpointError, InterruptedRunError
from mtformer.files import locked, read_json, require_text, supports_locks, utc_now, write_json
from mtformer.run_dir import RunDir

StateName = Literal["new", "running", "finished", "interrupted", "failed", "killed"]
LOCK_SECONDS = 1.0
"""Time that a new training process waits for the lock, because processes that read the state hold it briefly."""


@dataclass(frozen=True)
class RunState:
    """State of a run."""

    state: StateName
    """new: not started; killed: the process ended without writing a state."""
    error: str | None = None
    """Error of a failed run, in one line."""
    started: str | None = None
    """Start time of the first process, in ISO 8601 format."""
    ended: str | None = None
    """End time of the latest process."""


@contextlib.contextmanager
def lock_run(run: RunDir) -> Iterator[None]:
    """Prevent other processes from training in this run directory; raise CheckpointError if one already does."""
    require_text(run.path)
    refusal = f"{run.path}: another process is training here; wait for it or stop it, or use another --run-dir"
    with locked(run.lock, CheckpointError(refusal), LOCK_SECONDS):
        try:
            yield
        finally:
            if not run.path.exists():  # after a failed start
                run.lock.unlink(missing_ok=True)


@contextlib.contextmanager
def record_state(run: RunDir) -> Iterator[None]:
    """Write state.json when training starts and ends, that is, on entering and leaving this context."""
    now = utc_now()
    first_start = _saved(run).get("started")
    starts = {"started": first_start or now, "resumed": now if first_start else None}
    _write(run, "running", starts)
    try:
        yield
    except BaseException as error:
        with contextlib.suppress(OSError):  # if the disk is full, the original error says so
            if isinstance(error, InterruptedRunError | KeyboardInterrupt):
                _write(run, "interrupted", starts)
            else:
                message = str(error) or type(error).__name__
                _write(run, "failed", starts, " ".join(message.split()))
        raise
    _write(run, "finished", starts)


def read_state(run: RunDir) -> RunState:
    """Return the state of a run, which is `new` if state.json is missing or damaged."""
    saved = _saved(run)
    state: StateName = saved.get("state", "new")
    if _is_held(run.lock):
        state = "running"
    elif state == "running":
        state = "killed"
    return RunState(state, saved.get("error"), saved.get("started"), saved.get("ended"))


def _saved(run: RunDir) -> dict[str, Any]:
    """Return the contents of state.json, or an empty dict if it is missing or damaged."""
    saved: Any = {}
    with contextlib.suppress(OSError, ValueError):
        saved = read_json(run.state)
    if isinstance(saved, dict) and saved.get("state") in get_args(StateName):
        return saved
    return {}


def _is_held(path: Path) -> bool:
    """Return True if a process holds the lock file."""
    if not path.exists():
        return False
    try:
        if not supports_locks(path):
            return False
        with FileLock(path, timeout=0):
            return False
    except OSError as error:  # an error other than `Timeout`: the file belongs to another user
        return isinstance(error, Timeout)


def _write(run: RunDir, state: StateName, starts: dict[str, str | None], error: str | None = None) -> None:
    end = None if state == "running" else utc_now()
    values = {"state": state, **starts, "ended": end, "error": error}
    write_json(run.state, values, indent=1)
