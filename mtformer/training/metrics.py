"""Log metrics of a run to metrics.jsonl, which trackers follow."""

from types import TracebackType
from typing import Any

from mtformer.config.schema import Config
from mtformer.run_dir import RunDir
from mtformer.training.follower import FollowerThread
from mtformer.training.history import append_record


class Metrics:
    """Context manager that logs to metrics.jsonl (one JSON object per line), and lets `training.trackers` follow it.

    In processes other than the main one, nothing is written.
    """

    def __init__(self, run: RunDir, config: Config, is_main: bool) -> None:
        self._run = run
        self._config = config
        self._is_main = is_main
        self._followers: list[FollowerThread] = []

    def __enter__(self) -> "Metrics":
        if self._is_main:
            for name in dict.fromkeys(self._config.training.trackers):
                self._followers.append(FollowerThread(name, self._run, self._config))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for follower in self._followers:
            follower.end(is_finished=error is None)

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Append a record of kind train, dev, plan or resume; raise CheckpointError if it cannot be written."""
        if not self._is_main:
            return
        append_record(self._run.metrics, kind, step, **values)
        for follower in self._followers:
            follower.notify()
