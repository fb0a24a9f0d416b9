"""All that is there of a run, whatever its age and state; what cannot be read is told in a line and left out."""

import contextlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mtformer.config.loading import LoadedConfig, load_config
from mtformer.config.schema import Config, EvaluationConfig
from mtformer.errors import CheckpointError, ConfigError
from mtformer.experiment.state import RunState, read_state
from mtformer.rundir import LOWER_IS_BETTER, SCORES, RunDir, read_meta
from mtformer.training.history import read_records

Record = dict[str, Any]


@dataclass(frozen=True)
class ReadRun:
    """A run as far as it can be read."""

    name: str
    """Tells it apart from the other runs of a report."""
    run: RunDir
    state: RunState
    loaded: LoadedConfig | None
    """None: this version cannot read its config."""
    records: list[Record] = field(default_factory=list)
    """The lines of metrics.jsonl."""
    samples: list[Record] = field(default_factory=list)
    """Dev translations by validation: `step` and `samples`, which are lists of source, reference and hypothesis."""
    data_report: dict[str, Any] | None = None
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)
    """scores.json by the name of the test set."""
    made_with: dict[str, Any] = field(default_factory=dict)
    """Device, precision and versions, as the newest checkpoint tells them."""
    unread: list[str] = field(default_factory=list)
    """What there is and could not be read, a line each; report parts add theirs."""

    @property
    def config(self) -> Config | None:
        return self.loaded.config if self.loaded is not None else None

    @property
    def evaluation(self) -> EvaluationConfig:
        """The section, or the default one."""
        return self.config.evaluation if self.config is not None else EvaluationConfig()

    def points(self, kind: str, key: str) -> list[tuple[int, float]]:
        """(step, value) of a figure of the records of this kind, where it is finite."""
        of_kind = [record for record in self.records if record["kind"] == kind]
        return [(one["step"], float(one[key])) for one in of_kind if is_number(one.get(key)) and is_number(one["step"])]

    def best(self, key: str) -> tuple[int, float] | None:
        """Step and value of the best validation by this metric, the earlier one when equal; None without any."""
        sign = 1 if key in LOWER_IS_BETTER else -1
        return min(self.points("dev", key), key=lambda point: (sign * point[1], point[0]), default=None)


def is_number(value: object) -> bool:
    """A finite number, as JSON may hold it."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def read_run(path: Path, name: str) -> ReadRun:
    """Reads what lies in a run directory or bundle; raises CheckpointError when it is neither."""
    run, unread = RunDir.open(path, verified=False), list[str]()
    loaded = None
    try:
        loaded = load_config(run.config)
    except ConfigError as error:
        unread.append(f"this version cannot read the config: {str(error).splitlines()[0]}")
    folders = sorted(folder for folder in run.evaluations.glob("*") if folder.is_dir())
    scores = {folder.name: _json(folder / SCORES, unread) for folder in folders}
    return ReadRun(
        name=name,
        run=run,
        state=read_state(run),
        loaded=loaded,
        records=read_records(run.metrics),
        samples=[one for one in read_records(run.samples) if _is_sample(one)],
        data_report=_json(run.data_report, unread),
        scores={test: one for test, one in scores.items() if one is not None},
        made_with=_made_with(run),
        unread=unread,
    )


def run_names(paths: Sequence[Path]) -> list[str]:
    """The last parts of each path, as few as tell all of them apart; numbered where the same run is given twice."""
    parts = [path.resolve().parts for path in paths]
    depth = next((n for n in range(1, 1 + max(map(len, parts))) if len({p[-n:] for p in parts}) == len(parts)), 1)
    names = ["/".join(part.strip("/") for part in p[-depth:]) or "/" for p in parts]
    return [f"{name} ({n})" if names.count(name) > 1 else name for n, name in enumerate(names, start=1)]


def _is_sample(record: Record) -> bool:
    rows = record.get("samples")
    return isinstance(rows, list) and all(
        isinstance(row, list) and len(row) == 3 and all(isinstance(text, str) for text in row) for row in rows
    )


def _json(path: Path, unread: list[str]) -> dict[str, Any] | None:
    """The object in a file; None when there is no such file, or, told in a line, no object in it."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(value, dict):
            return value
        unread.append(f"{path}: holds no JSON object")
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        unread.append(f"{path}: cannot be read ({error})")
    return None


def _made_with(run: RunDir) -> dict[str, Any]:
    for step in reversed(run.steps()):
        with contextlib.suppress(CheckpointError):
            made_with = read_meta(run.checkpoint(step)).get("made_with")
            return made_with if isinstance(made_with, dict) else {}
    return {}
