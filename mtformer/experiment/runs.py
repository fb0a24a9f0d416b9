"""The runs below a folder, one row each: how far, how good, how quick, and what differs in their configs.

A row is made of whatever can be read: a run of another version, a half-made one and a bundle have one too.
"""

import json
import os
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from mtformer.config.fields import key_metadata
from mtformer.config.loading import load_config
from mtformer.config.schema import TrainingConfig
from mtformer.config.writing import leaves
from mtformer.config.yaml_text import dotted, read_yaml
from mtformer.decoding.weights import default_weights
from mtformer.errors import CheckpointError, ConfigError, MtformerError
from mtformer.experiment.state import StateName, read_state
from mtformer.experiment.sweep import short_keys
from mtformer.rundir import LOWER_IS_BETTER, SWEEP, RunDir
from mtformer.training.history import read_records

COLUMNS = {
    "name": "name",
    "state": "state",
    "step": "step",
    "best": "best",
    "at": "best_step",
    "weights": "weights",
    "tokens/s": "tokens_per_second",
    "time": "seconds",
}
"""What a table has besides what differs in the configs: its headers, and their fields of a row."""
LARGEST_FIRST = ("step", "best_step", "tokens_per_second")
DEFAULT_METRIC = TrainingConfig().best_metric
RECENT = 20
"""Log lines that the speed is taken from."""


@dataclass(frozen=True)
class RunRow:
    """What is known of a run; None is what is not."""

    name: str
    """The path below the folder that was searched."""
    path: Path
    state: str
    """As in `read_state`, or: bundle; half-made (without config.yaml); unfinished (of an older version, which kept no
    state); waiting (of a sweep, not begun); unreadable."""
    note: str | None = None
    """old config: of another version; damaged config: not even YAML."""
    problem: str | None = None
    """What could not be read of it, or what made it fail, in one line."""
    step: int | None = None
    max_steps: int | None = None
    metric: str | None = None
    """`training.best_metric`."""
    best: float | None = None
    best_step: int | None = None
    weights: str | None = None
    """Weights that the run stands for, where it has averaged ones: average or best, and how the average compares."""
    tokens_per_second: float | None = None
    """Median of the last log lines."""
    seconds: float | None = None
    """That its steps took, validations not counted."""
    config: dict[str, Any] = field(default_factory=dict)
    """Values by dotted key."""
    is_whole: bool = False
    """The config is one of this version, with all of its values."""

    def to_dict(self, keys: Sequence[str]) -> dict[str, Any]:
        """Plain values; of the config only these keys."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "is_whole"}
        return {**values, "path": str(self.path), "config": {key: self.config.get(key) for key in keys}}


def list_runs(folder: Path) -> list[RunRow]:
    """All runs and bundles in a folder and below it, by name; raises CheckpointError when there is no such folder."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder; name the one that holds the runs")
    rows = {row.path: row for row in _walk(folder)}
    named = (
        replace(row, name=str(row.path.relative_to(folder)) if row.path != folder else row.name)
        for row in rows.values()
    )
    return sorted(named, key=lambda row: natural(row.name))


def read_run(path: Path) -> RunRow:
    """The row of one run, whatever is wrong with it."""
    run, row = RunDir(path), RunRow(path.name or str(path), path, "unreadable")
    try:
        row = _with_config(row, run)
        state = read_state(run)
        what: str = state.state
        if what not in get_args(StateName):
            raise ValueError(f"{run.state.name}: no such state: {what}")
        if run.is_bundle:
            what = "bundle"
        elif what == "new" and not run.config.is_file():
            what = "half-made"
        elif what == "new" and state.step:  # an older version kept no state
            what = "finished" if state.max_steps is not None and state.step >= state.max_steps else "unfinished"
        row = replace(row, state=what, problem=state.error or row.problem, max_steps=state.max_steps)
        return row if run.is_bundle else _with_figures(replace(row, step=state.step), run)
    except (MtformerError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:  # files of any content
        return replace(row, problem=row.problem or " ".join(f"{path}: {error}".split()))


def differing_keys(rows: Sequence[RunRow]) -> list[str]:
    """The dotted keys whose values are not the same in all runs that have a config; those of the data last."""
    known = [row for row in rows if row.config]
    whole = {key for row in known if row.is_whole for key in row.config}
    keys = dict.fromkeys(key for row in sorted(known, key=lambda row: not row.is_whole) for key in row.config)

    def differs(key: str) -> bool:
        # What an older version did not have, or a run that has not begun does not say, is no difference.
        asked = (row for row in known if key in row.config or (row.is_whole and key in whole))
        return key_metadata(key).has_effect and len({_comparable(key, row.config.get(key)) for row in asked}) > 1

    return sorted((key for key in keys if differs(key)), key=lambda key: key.startswith("data."))


def sort_runs(rows: Sequence[RunRow], by: str, keys: Sequence[str]) -> list[RunRow]:
    """The rows by a column or by a key of the config, dotted or short; the best, furthest and fastest first.

    Raises:
        ConfigError: when there is no such column or key.
    """
    column = COLUMNS.get(by, by)
    if column in COLUMNS.values():
        signs = [(row, getattr(row, column), _sign(row, column)) for row in rows]
    else:
        full = {short: key for key, short in short_keys(keys).items()} | {key: key for key in keys}
        if by not in full:
            raise ConfigError(
                f"--sort {by}: no such column; there are {', '.join([*COLUMNS, *short_keys(keys).values()])}"
            )
        signs = [(row, row.config.get(full[by]), 1) for row in rows]
    known = [(row, value, sign) for row, value, sign in signs if value is not None]
    ordered = sorted(known, key=lambda one: _order(one[1], one[2]))
    return [row for row, _, _ in ordered] + [row for row, value, _ in signs if value is None]


def natural(text: str) -> list[tuple[bool, int, str]]:
    """A key to sort names by: `seed=10` comes after `seed=2`."""
    return [(not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", text)]


def _sign(row: RunRow, column: str) -> int:
    if column == "best":
        return 1 if row.metric in LOWER_IS_BETTER else -1
    return -1 if column in LARGEST_FIRST else 1


def _order(value: Any, sign: int) -> tuple[bool, float, list[tuple[bool, int, str]]]:
    """Numbers first."""
    is_number = isinstance(value, int | float)
    return not is_number, sign * value if is_number else 0.0, [] if is_number else natural(str(value))


def without_folder(key: str, value: Any) -> Any:
    """Return the name of the file that a value names: the same name in another folder is no difference."""
    return os.path.basename(value) if isinstance(value, str) and key_metadata(key).path else value


def _comparable(key: str, value: Any) -> str:
    return json.dumps(without_folder(key, value) if value not in ([], {}) else None, sort_keys=True, default=str)


def _walk(folder: Path) -> Iterator[RunRow]:
    """Rows of the runs that lie there, and of those that a sweep has not begun, or could not prepare."""
    for place, folders, files in os.walk(folder):
        here = RunDir(place)
        if {here.config.name, here.metrics.name, here.state.name}.intersection(files) or here.checkpoints.is_dir():
            folders.clear()
            yield read_run(here.path)
            continue
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if SWEEP in files:
            yield from _of_sweep(here.path, folders)


def _of_sweep(folder: Path, begun: Sequence[str]) -> Iterator[RunRow]:
    """Rows of what is in sweep.json and has no folder."""
    try:
        runs = json.loads((folder / SWEEP).read_text(encoding="utf-8"))["runs"]
        planned = [
            RunRow(one["name"], folder / one["name"], "waiting", problem=one["error"], config=dict(one["values"]))
            for one in runs
        ]
    except (OSError, ValueError, TypeError, KeyError) as error:
        yield RunRow(SWEEP, folder / SWEEP, "unreadable", f"{folder / SWEEP}: {error}")
        return
    for row in planned:
        if row.name not in begun:
            yield replace(row, state="failed") if row.problem else row


def _with_config(row: RunRow, run: RunDir) -> RunRow:
    """What its config.yaml says, of a version that may be another one."""
    if not run.config.is_file():
        return row
    try:
        values = leaves(load_config(run.config).config)
        config = {dotted(path): value for path, value in values.items()}
        return replace(row, config=config, is_whole=True, metric=config["training.best_metric"])
    except ConfigError as error:
        problem = str(error).splitlines()[0]
    try:
        tree = read_yaml(run.config.read_text(encoding="utf-8"), str, lambda path, line: None)
    except (ConfigError, UnicodeDecodeError):
        return replace(row, problem=problem, note="damaged config")
    config = dict(_leaves(tree if isinstance(tree, dict) else {}))
    return replace(
        row,
        config=config,
        metric=config.get("training.best_metric", DEFAULT_METRIC),
        problem=problem,
        note="old config",
    )


def _leaves(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
            yield from _leaves({str(index): item for index, item in enumerate(value)}, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _with_figures(row: RunRow, run: RunDir) -> RunRow:
    """What its metrics.jsonl says."""
    records = read_records(run.metrics)
    train = [record for record in records if record["kind"] == "train"]
    speeds = [speed for record in train if isinstance(speed := record.get("tokens_per_second"), int | float)]
    found = [(record[row.metric or ""], record["step"]) for record in records if _knows(record, row.metric)]
    seconds, last = 0.0, 0
    for record in train:
        seconds += record.get("seconds_per_step", 0.0) * (record["step"] - last)
        last = record["step"]
    sign = 1 if row.metric in LOWER_IS_BETTER else -1
    best, best_step = min(found, key=lambda one: (sign * one[0], one[1]), default=(None, None))
    speed = statistics.median(speeds[-RECENT:]) if speeds else None
    row = replace(row, best=best, best_step=best_step, tokens_per_second=speed, seconds=seconds if train else None)
    return replace(row, weights=_weights(run, row.metric or DEFAULT_METRIC))


def _weights(run: RunDir, metric: str) -> str | None:
    default = default_weights(run, metric) if run.averaged.is_dir() else None
    if default is None:
        return None
    name = "average" if default.is_average else "best"
    if default.gain is None:
        return f"{name} (not validated)" if default.is_average else f"{name} (average not validated)"
    return f"average {default.gain:+.2f}" if default.is_average else f"best (average {default.gain:+.2f})"


def _knows(record: dict[str, Any], metric: str | None) -> bool:
    return record["kind"] == "dev" and isinstance(record.get(metric or ""), int | float)
