"""Trackers, which show the values of metrics.jsonl: TensorBoard, Weights & Biases, Trackio and MLflow.

Each class is a thin adapter to a package that is imported only when it is used; `training.follower` decides what is
sent. Project names, servers and logins come from the packages' own environment variables and commands.
"""

import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from mtformer.config.loading import leaves
from mtformer.config.schema import Config, TrackerName
from mtformer.config.yaml_text import dotted
from mtformer.errors import ConfigError
from mtformer.run_dir import RunDir

PROJECT = "mtformer"
"""Project or experiment in which runs are shown, if the environment names none."""
INSTALL = {"tensorboard": "'mtformer[tensorboard]'"}
"""Names for `pip install` of the packages of trackers; others are packages of the same name."""
PARAMETERS_AT_ONCE = 100
"""Number of parameters that MLflow accepts in one request."""
PARAMETER_LENGTH = 500
"""Number of characters of a parameter that all versions of MLflow accept."""
START_OF_STEPS = -1
"""Last step that was sent before anything is sent."""


@dataclass(frozen=True)
class TrackedRun:
    """A run, and what a tracker already has of it."""

    run: RunDir
    config: Config
    run_id: str | None = None
    """Identifier of the run in the tracker; None: a new one is created."""
    last_step: int = START_OF_STEPS
    """Last step that the tracker has."""

    def settings(self) -> dict[str, Any]:
        """Return the values of the config by dotted key."""
        return {dotted(path): value for path, value in leaves(self.config).items()}


class Tracker(Protocol):
    """A run that is open in a tracker."""

    run_id: str
    """Identifier of the run in the tracker, with which it is resumed."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send the values of a step; steps are sent in ascending order, and each one once."""

    def close(self) -> None:
        """Send what is buffered, and end the run in the tracker."""


class _TensorBoard:
    """Event files in RUN/tensorboard."""

    def __init__(self, module: Any, tracked: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = tracked.run.tensorboard
        # TensorBoard hides earlier values from this step on, such as those that a killed process wrote.
        purge_step = tracked.last_step + 1 if folder.exists() else None
        self.run_id = folder.name
        self._writer = SummaryWriter(str(folder), purge_step=purge_step)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()  # a killed process must not lose steps that count as sent

    def close(self) -> None:
        self._writer.close()


class _WandbLike:
    """A run in a module with the interface of wandb: `init`, `log` and `finish`."""

    def __init__(self, module: Any, tracked: TrackedRun) -> None:
        name = tracked.run.path.resolve().name
        self.run_id = tracked.run_id or uuid.uuid4().hex[:12]
        identity: dict[str, Any]
        if module.__name__ == "wandb":
            tracked.run.trackers.mkdir(exist_ok=True)
            identity = {
                "id": self.run_id,
                "name": name,
                "dir": str(tracked.run.trackers.resolve()),
                "allow_val_change": True,
            }
        else:
            identity = {"name": f"{name}-{self.run_id}"}  # Trackio identifies runs by name
        project = os.environ.get(f"{module.__name__.upper()}_PROJECT", PROJECT)
        self._run = module.init(project=project, config=tracked.settings(), resume="allow", **identity)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class _Mlflow:
    """A run in MLflow. All calls are from the same thread, because the active run belongs to a thread."""

    def __init__(self, module: Any, tracked: TrackedRun) -> None:
        self._mlflow = module
        is_new = tracked.run_id is None
        has_experiment = {"MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"} & os.environ.keys()
        if is_new and not has_experiment:
            module.set_experiment(PROJECT)
        run = module.start_run(run_id=tracked.run_id, run_name=tracked.run.path.resolve().name)
        self.run_id = run.info.run_id
        if is_new:  # parameters cannot be changed
            self._log_settings(tracked.settings())

    def _log_settings(self, settings: Mapping[str, Any]) -> None:
        keys = list(settings)
        for start in range(0, len(keys), PARAMETERS_AT_ONCE):
            batch = keys[start : start + PARAMETERS_AT_ONCE]
            self._mlflow.log_params({key: str(settings[key])[:PARAMETER_LENGTH] for key in batch})

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._mlflow.log_metrics(dict(values), step=step)

    def close(self) -> None:
        self._mlflow.end_run()


_TRACKERS: dict[str, Callable[[Any, TrackedRun], Tracker]] = {
    "tensorboard": _TensorBoard,
    "wandb": _WandbLike,
    "trackio": _WandbLike,
    "mlflow": _Mlflow,
}
"""Adapter of each tracker."""


def require_tracker(name: TrackerName) -> Any:
    """Return the module of a tracker; raise ConfigError if it is not installed."""
    remedy = f"pip install {INSTALL.get(name, name)}"
    try:
        module = import_module(name)
    except ImportError as error:
        raise ConfigError(f"training.trackers: {name} needs the package {name}: {remedy}") from error
    spec = getattr(module, "__spec__", None)
    if spec is not None and spec.origin is None:  # a folder, such as the one in which the package keeps its runs
        folder = os.path.abspath(next(iter(module.__path__)))
        raise ConfigError(f"training.trackers: {name} needs the package {name}, and {folder} is none: {remedy}")
    return module


def open_tracker(name: TrackerName, tracked: TrackedRun) -> Tracker:
    """Create or resume a run in a tracker; errors are those of its package."""
    module = require_tracker(name)
    return _TRACKERS[name](module, tracked)
