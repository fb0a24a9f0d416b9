"""Fakes of the packages of trackers, which keep what they get by run and step."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any


@dataclass
class Server:
    """Values that a tracker has received."""

    runs: dict[str, list[tuple[int, dict[str, float]]]] = field(default_factory=dict)
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    opened: list[dict[str, Any]] = field(default_factory=list)
    """Arguments with which runs were opened."""
    ended: list[str] = field(default_factory=list)
    on_log: Callable[[], object] = lambda: None
    """Function that is called before values are stored."""

    def log(self, run: str, values: dict[str, float], step: int) -> None:
        self.on_log()
        steps = [known for known, _ in self.runs[run]]
        assert not steps or step > steps[-1], "a step came twice, or too late"
        self.runs[run].append((step, values))

    def figures(self, run: str) -> dict[tuple[str, int], float]:
        """Return the values of a run by name and step."""
        return {(name, step): value for step, values in self.runs[run] for name, value in values.items()}


def like_wandb(name: str, key: str, server: Server) -> ModuleType:
    """Return a module with the interface of wandb, whose runs have the identifier `key`."""
    module = ModuleType(name)

    def init(**arguments: Any) -> Any:
        server.opened.append(arguments)
        run = arguments[key]
        assert arguments["resume"] == "allow"
        server.runs.setdefault(run, [])
        server.settings[run] = arguments["config"]
        return SimpleNamespace(
            log=lambda values, step: server.log(run, values, step), finish=lambda: server.ended.append(run)
        )

    module.init = init  # type: ignore[attr-defined]
    return module


def like_mlflow(server: Server) -> ModuleType:
    """Return a module with the interface of MLflow, which has one active run."""
    module, active = ModuleType("mlflow"), list[str]()

    def start_run(run_id: str | None = None, run_name: str | None = None) -> Any:
        server.opened.append({"id": run_id, "name": run_name})
        active[:] = [run_id or f"run{len(server.runs)}"]
        server.runs.setdefault(active[0], [])
        return SimpleNamespace(info=SimpleNamespace(run_id=active[0]))

    def log_params(values: dict[str, Any]) -> None:
        known = server.settings.setdefault(active[0], {})
        assert len(values) <= 100
        assert not known.keys() & values.keys(), "parameters cannot be changed"
        known.update(values)

    functions = {
        "set_experiment": lambda name: None,
        "start_run": start_run,
        "log_params": log_params,
        "log_metrics": lambda values, step: server.log(active[0], values, step),
        "end_run": lambda: server.ended.append(active[0]),
    }
    for name, function in functions.items():
        setattr(module, name, function)
    return module


def fake(name: str, server: Server) -> ModuleType:
    if name == "mlflow":
        return like_mlflow(server)
    return like_wandb(name, "id" if name == "wandb" else "name", server)
