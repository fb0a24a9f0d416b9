"""Follow metrics.jsonl and send its values to a tracker.

metrics.jsonl is the record of a run, and trackers are copies of it. For each tracker, RUN/trackers/NAME.json has the
identifier of the run there and the last step that was sent. A resumed run therefore continues the same run in the
tracker and sends no step twice, although it writes the lines after its last checkpoint again. A step may have several
lines (train, plan, dev); they are sent together, when a later step follows or training has finished.

In training, each tracker has a thread, so that a slow or broken one neither delays nor ends the training.
"""

import threading
from pathlib import Path
from typing import Any

from mtformer.config.schema import Config, TrackerName
from mtformer.errors import CheckpointError, MtformerError, log
from mtformer.files import read_json, write_json
from mtformer.run_dir import RunDir
from mtformer.training.history import read_new_records
from mtformer.training.trackers import START_OF_STEPS, TrackedRun, Tracker, open_tracker

SECONDS_AT_END = 60.0
"""Time that a finished training waits for a tracker to receive the last steps."""
SECONDS_AT_STOP = 5.0
"""Time that an interrupted training waits; its resumed run, or `mtformer track`, sends the rest."""


class Follower:
    """Sends the steps of a run that a tracker does not have yet."""

    def __init__(self, name: TrackerName, run: RunDir, config: Config) -> None:
        self.name = name
        self.num_sent = 0
        """Number of steps that were sent."""
        self._run = run
        self._config = config
        self._tracker: Tracker | None = None
        self._last_step = START_OF_STEPS
        """Last step that the tracker has."""
        self._position = 0
        """Number of bytes of metrics.jsonl that were read."""
        self._step = START_OF_STEPS
        """Step of the values that were read and not sent."""
        self._values: dict[str, float] = {}
        """Values of this step by name, such as `train/loss`."""

    @property
    def _memory(self) -> Path:
        """File with the identifier of the run and the last step that was sent."""
        return self._run.trackers / f"{self.name}.json"

    def open(self, again: bool = False) -> None:
        """Open the run in the tracker; errors are those of its package.

        Args:
            again: Create a new run there, and send all steps to it.
        """
        run_id = None
        if not again and self._memory.exists():
            run_id, self._last_step = _read_memory(self._memory)
        self._tracker = open_tracker(self.name, TrackedRun(self._run, self._config, run_id, self._last_step))
        self._save()

    def send(self, with_last: bool) -> None:
        """Send all new steps; the last one, whose validation may follow, only if `with_last`."""
        last_step_before = self._last_step
        try:
            records, self._position = read_new_records(self._run.metrics, self._position)
            for record in records:
                self._add(record)
            if with_last:
                self._send_step()
        finally:
            if self._last_step != last_step_before:
                self._save()

    def close(self) -> None:
        """End the run in the tracker."""
        if self._tracker is not None:
            self._tracker.close()

    def _add(self, record: dict[str, Any]) -> None:
        """Add the values of a line to those of its step; send the step before it if it is complete."""
        step = record["step"]
        if step <= self._last_step:
            return
        if step != self._step:
            self._send_step()
            self._step = step
        for name, value in record.items():
            if name not in ("kind", "step") and isinstance(value, int | float):
                self._values[f"{record['kind']}/{name}"] = value

    def _send_step(self) -> None:
        if not self._values:
            return
        assert self._tracker is not None
        self._tracker.log(self._step, self._values)
        self._values = {}
        self._last_step = self._step
        self.num_sent += 1

    def _save(self) -> None:
        assert self._tracker is not None
        self._memory.parent.mkdir(exist_ok=True)
        write_json(self._memory, {"id": self._tracker.run_id, "step": self._last_step})


def _read_memory(path: Path) -> tuple[str, int]:
    """Return the identifier of the run in the tracker, and the last step that was sent."""
    try:
        values = read_json(path)
        return str(values["id"]), int(values["step"])
    except (ValueError, LookupError, TypeError) as error:
        raise CheckpointError(f"{path}: damaged; send all steps to a new run with --again") from error


class FollowerThread:
    """A thread that follows a run in training; after an error, it logs one warning and ends."""

    def __init__(self, name: TrackerName, run: RunDir, config: Config) -> None:
        self._follower = Follower(name, run, config)
        self._run = run
        self._wake = threading.Event()
        self._is_ended = False
        self._is_finished = False
        self._has_warned = False
        self._thread = threading.Thread(target=self._follow, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def notify(self) -> None:
        """Let the thread send the lines that were written since the last call."""
        self._wake.set()

    def end(self, is_finished: bool) -> None:
        """Send the rest and wait for it, for a limited time.

        Args:
            is_finished: True if training has finished; else the last step, which may be incomplete, is not sent.
        """
        self._is_finished = is_finished
        self._is_ended = True
        self._wake.set()
        self._thread.join(SECONDS_AT_END if is_finished else SECONDS_AT_STOP)
        if self._thread.is_alive():
            self._warn("does not answer")

    def _follow(self) -> None:
        try:
            self._follower.open()
            while True:
                self._wake.wait()
                self._wake.clear()
                is_ended = self._is_ended  # read before the file, which is complete then
                self._follower.send(with_last=is_ended and self._is_finished)
                if is_ended:
                    self._follower.close()
                    return
        except (Exception, SystemExit) as error:  # errors of a tracker must not end the training
            self._warn(describe_error(error))

    def _warn(self, problem: str) -> None:
        """Log a warning, unless there was one."""
        if self._has_warned:
            return
        self._has_warned = True
        log.warning(
            "tracker %s: %s; training continues without it, and `mtformer track %s --to %s` sends the rest",
            *(self._follower.name, problem, self._run.path, self._follower.name),
        )


def describe_error(error: BaseException) -> str:
    """Return an error of a tracker in one line, with the name of its class unless the error is ours."""
    if isinstance(error, MtformerError):
        return str(error)
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message:.300}" if message else type(error).__name__
