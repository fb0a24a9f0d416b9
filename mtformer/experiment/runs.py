"""Read run directories, including damaged and incomplete ones, and list the runs below a folder."""

import json
import os
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtformer.config.fields import key_metadata
from mtformer.config.loading import LoadedConfig, leaves, load_config
from mtformer.config.schema import Config, EvaluationConfig
from mtformer.config.yaml_text import dotted
from mtformer.decoding.weights import are_others, default_weights
from mtformer.errors import CheckpointError, ConfigError, DataError, MtformerError
from mtformer.experiment.run_state import RunState, read_state
from mtformer.experiment.sweep import short_keys
from mtformer.files import read_json, read_meta, unsealed
from mtformer.formatting import format_duration
from mtformer.run_dir import CT2_WEIGHTS, SCORES, SWEEP, RunDir, lower_is_better
from mtformer.training.history import has_changed, read_records

if TYPE_CHECKING:  # it imports torch
    from mtformer.evaluation.card import ScoreCard

COLUMNS = {
    "name": "name",
    "state": "state",
    "step": "step",
    "best dev": "best",
    "at": "best_step",
    "test BLEU": "test",
    "weights": "weights",
    "tokens/s": "tokens_per_second",
    "time": "seconds",
}
"""Fields of `RunRow` by column header, in the order of the table; columns for the settings that differ follow."""
LARGEST_FIRST = ("step", "best_step", "test", "tokens_per_second")
RECENT = 20  # number of most recent log lines over which the median speed is computed
Record = dict[str, Any]


class RunContents:
    """Contents of a run directory or bundle; each part is read on first use. The default name is that of the folder."""

    def __init__(self, path: Path, name: str | None = None) -> None:
        self.run = RunDir(path)
        self.name = name or path.name or str(path)
        self.unread: list[str] = []
        """One-line messages about parts that exist but cannot be read; reports add their own."""

    @cached_property
    def loaded(self) -> LoadedConfig | None:
        """The config with its origins; None if it is missing or cannot be read."""
        if not self.run.config.is_file():
            return None
        try:
            return load_config(self.run.config)
        except ConfigError as error:
            self.unread.append(str(error).splitlines()[0])
            return None

    @property
    def config(self) -> Config | None:
        """The config; None if it is missing or cannot be read."""
        return self.loaded.config if self.loaded is not None else None

    @property
    def evaluation(self) -> EvaluationConfig:
        """The `evaluation` section of the config, or its default."""
        return self.config.evaluation if self.config is not None else EvaluationConfig()

    @property
    def max_steps(self) -> int | None:
        """Number of training steps: planned for `max_minutes`, or set in the config."""
        if self.config is None:
            return None
        training, plans = self.config.training, self.points("plan", "max_steps")
        return int(plans[-1][1]) if plans and training.max_minutes is not None else training.max_steps

    @cached_property
    def state(self) -> RunState:
        """State of the run."""
        return read_state(self.run)

    @cached_property
    def records(self) -> list[Record]:
        """Records of metrics.jsonl."""
        self.unread += changed_logs(self.run, self.run.metrics)
        return read_records(self.run.metrics)

    @property
    def step(self) -> int:
        """Step of the last record of metrics.jsonl or of the latest checkpoint, whichever is later."""
        logged = [record["step"] for record in self.records[-1:] if is_number(record["step"])]
        return max(logged + self.run.steps()[-1:], default=0)

    @cached_property
    def samples(self) -> list[Record]:
        """Dev translations from each validation: `step`, and `samples` as a list of [source, reference, hypothesis]."""
        self.unread += changed_logs(self.run, self.run.samples)
        return [one for one in read_records(self.run.samples) if _is_sample(one)]

    @cached_property
    def data_report(self) -> dict[str, Any] | None:
        """Report on the training data; None if it is missing or invalid."""
        path = self.run.data_report
        if not path.exists():
            return None
        try:
            return unsealed(read_json(path))
        except (OSError, ValueError, TypeError) as error:
            self.unread.append(f"{path}: cannot be read ({error})")
            return None

    @cached_property
    def scores(self) -> "dict[str, ScoreCard]":
        """Score cards by test set name."""
        from mtformer.evaluation.card import read_card

        cards = {}
        for file in sorted(self.run.evaluations.glob(f"*/{SCORES}")):
            try:
                cards[file.parent.name] = read_card(file.parent)
            except DataError as error:
                self.unread.append(str(error))
        return cards

    @cached_property
    def made_with(self) -> dict[str, Any]:
        """Device, precision and package versions recorded in the latest checkpoint; empty without checkpoints."""
        steps = self.run.steps()
        return dict(read_meta(self.run.checkpoint(steps[-1]))["made_with"]) if steps else {}

    @property
    def training_seconds(self) -> float:
        """Training time of the logged steps in seconds, without validation."""
        points = [(0, 0.0), *self.points("train", "seconds_per_step")]
        return sum((after[0] - before[0]) * after[1] for before, after in pairwise(points))

    def points(self, kind: str, key: str) -> list[tuple[int, float]]:
        """Return (step, value of `key`) for each record of this kind in which the value is a finite number."""
        of_kind = [record for record in self.records if record["kind"] == kind]
        return [(one["step"], float(one[key])) for one in of_kind if is_number(one.get(key)) and is_number(one["step"])]

    def best(self, key: str) -> tuple[int, float] | None:
        """Return (step, value) of the best validation on the last dev data, the earliest if tied, or None."""
        sign, points = 1 if lower_is_better(key) else -1, self.points("dev", key)
        resumes = [one for one in self.records if one["kind"] == "resume" and is_number(one["step"])]
        last = {one["step"]: one.get("changes") for one in resumes}  # earlier ones of the same step were discarded
        steps = [step for step, changes in last.items() if isinstance(changes, dict) and "dev data" in changes]
        latest = [point for point in points if point[0] > max(steps, default=-1)] or points
        return min(latest, key=lambda point: (sign * point[1], point[0]), default=None)


def changed_logs(run: RunDir, *paths: Path) -> list[str]:
    """Return a message for each file that has changed since the latest checkpoint was saved."""
    steps = run.steps()
    if not steps:
        return []
    logs = read_meta(run.checkpoint(steps[-1]))["logs"]
    what = f"changed or truncated since the checkpoint of step {steps[-1]} was saved, so its figures may be wrong"
    return [f"{path}: {what}; restore it from a copy" for path in paths if has_changed(path, logs.get(path.name))]


def is_number(value: object) -> bool:
    """Return True for a JSON number that fits in a float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _is_sample(record: Record) -> bool:
    rows = record.get("samples")
    has_rows = isinstance(rows, list) and all(isinstance(row, list) and [*map(type, row)] == [str] * 3 for row in rows)
    return has_rows and is_number(record["step"])


@dataclass
class RunRow:
    """A row in the table of runs; None: unknown."""

    name: str
    """Path relative to the folder that is searched."""
    path: Path
    state: str
    """State as in `RunState`, or bundle, incomplete (no config.yaml), waiting (planned by a sweep) or unreadable."""
    note: str | None = None
    """Text shown after the state, such as "damaged config"."""
    problem: str | None = None
    """Error of the run, or message about a part that cannot be read, in one line."""
    step: int | None = None
    max_steps: int | None = None
    metric: str | None = None
    """`training.best_metric`."""
    best: float | None = None
    best_step: int | None = None
    test_set: str | None = None
    """First test set of the config that has scores."""
    test: float | None = None
    """BLEU on this test set."""
    weights: str | None = None
    """Weights that commands use (average or best) and the gain of the average, if the run has averaged weights."""
    tokens_per_second: float | None = None
    """Median over the most recent log lines."""
    seconds: float | None = None
    """Training time in seconds, without validation."""
    config: dict[str, Any] = field(default_factory=dict)
    """Config values by dotted key; empty without a readable config."""

    def to_dict(self, keys: Sequence[str]) -> dict[str, Any]:
        """Return the fields as plain values, with only these keys of the config."""
        return {**vars(self), "path": str(self.path), "config": {key: self.config.get(key) for key in keys}}

    def cells(self) -> list[str]:
        """Return the cells of the row, in the order of `COLUMNS`."""
        of = f"/{self.max_steps}" if self.max_steps is not None else ""
        return [
            self.name,
            self.state if self.note is None else f"{self.state}, {self.note}",
            "" if self.step is None else f"{self.step}{of}",
            "" if self.best is None else f"{self.metric} {self.best:.2f}",
            "" if self.best_step is None else f"{self.best_step}",
            "" if self.test is None else f"{self.test_set} {self.test:.2f}",
            self.weights or "",
            "" if self.tokens_per_second is None else f"{self.tokens_per_second:.0f}",
            "" if self.seconds is None else format_duration(self.seconds),
        ]


def list_runs(folder: Path) -> list[RunRow]:
    """Return the runs and bundles below a folder, sorted by name; raise CheckpointError if the folder is missing."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder; give the folder of the runs")
    rows = {row.path: row for row in _walk(folder)}.values()
    for row in rows:
        if row.path != folder:
            row.name = str(row.path.relative_to(folder))
    return sorted(rows, key=lambda row: natural(row.name))


def summarize(path: Path) -> RunRow:
    """Return the row of a run; fields that cannot be read are left unset."""
    contents = RunContents(path)
    row = RunRow(contents.name, path, "unreadable")
    try:
        _fill(row, contents)
    except (MtformerError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:  # damaged files
        row.problem = row.problem or " ".join(f"{path}: {error}".split())
    return row


def _fill(row: RunRow, contents: RunContents) -> None:
    if contents.config is not None:
        row.config = {dotted(path): value for path, value in leaves(contents.config).items()}
        row.metric, row.max_steps = contents.config.training.best_metric, contents.max_steps
    elif contents.unread:
        row.problem, row.note = contents.unread[0], "damaged config"
    state = contents.state
    row.state, row.problem = state.state, state.error or row.problem
    if contents.run.is_bundle:
        row.state = "bundle"
        return
    if state.state == "new" and not contents.run.config.is_file():
        row.state = "incomplete"
    row.step = contents.step
    speeds = [speed for _, speed in contents.points("train", "tokens_per_second")[-RECENT:]]
    row.tokens_per_second = statistics.median(speeds) if speeds else None
    if any(record["kind"] == "train" for record in contents.records):
        row.seconds = contents.training_seconds
    if row.metric is not None:
        row.best_step, row.best = contents.best(row.metric) or (None, None)
    row.problem = row.problem or next(iter(contents.unread), None)
    if row.metric is not None:
        row.weights = _weights(contents.run, row.metric)
    _fill_test(row, contents)


def differing_keys(configs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the keys whose values differ between configs (by dotted key; empty ones do not count), `data` last."""
    known = [config for config in configs if config]
    keys = dict.fromkeys(key for config in known for key in config if key_metadata(key).has_effect)
    differing = [key for key in keys if len({_comparable(key, config.get(key)) for config in known}) > 1]
    return sorted(differing, key=lambda key: key.startswith("data."))


def sort_runs(rows: Sequence[RunRow], by: str, keys: Sequence[str]) -> list[RunRow]:
    """Return the rows sorted by a column or by a config key (dotted or short), best, furthest or fastest first.

    Raise ConfigError if there is no such column or key.
    """
    column, short = COLUMNS.get(by, by), short_keys([*keys, *COLUMNS])
    key = next((key for key in keys if by in (key, short[key])), None)
    if column not in COLUMNS.values() and key is None:
        names = [*COLUMNS, *(short[key] for key in keys)]
        raise ConfigError(f"--sort {by}: no such column; the columns are {', '.join(names)}")

    def order(row: RunRow) -> tuple[int, float, list[tuple[bool, int, str]]]:
        """Return a sort key: numbers, then text, then missing values."""
        value = getattr(row, column) if column in COLUMNS.values() else row.config.get(key or "")
        if value is None:
            return 2, 0.0, []
        is_descending = column in LARGEST_FIRST or (column == "best" and not lower_is_better(row.metric or ""))
        if isinstance(value, int | float):
            return 0, -value if is_descending else value, []
        return 1, 0.0, natural(str(value))

    return sorted(rows, key=order)


def natural(text: str) -> list[tuple[bool, int, str]]:
    """Return a sort key in natural order: `seed=10` comes after `seed=2`."""
    return [(not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", text)]


def without_folder(key: str, value: Any) -> Any:
    """Return a config value; for a path, only the file name, so that files are compared by name and not by folder."""
    return os.path.basename(value) if isinstance(value, str) and key_metadata(key).path else value


def _comparable(key: str, value: Any) -> str:
    return json.dumps(without_folder(key, value) if value not in ([], {}) else None, sort_keys=True, default=str)


def _walk(folder: Path) -> Iterator[RunRow]:
    """Yield rows of the runs in a folder, and of planned sweep runs that have no folder yet."""
    for place, folders, files in os.walk(folder):
        here = RunDir(place)
        if {here.config.name, here.metrics.name, here.state.name}.intersection(files) or here.checkpoints.is_dir():
            is_export = here.is_bundle or (here.path / CT2_WEIGHTS).is_file()
            is_export &= RunDir(here.path.parent).checkpoints.is_dir()
            if not is_export or here.path == folder:  # an export is not a run beside its own
                yield summarize(here.path)
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != here.checkpoints.name)
        if SWEEP in files:
            yield from _of_sweep(here.path, folders)


def _of_sweep(folder: Path, started: Sequence[str]) -> Iterator[RunRow]:
    """Yield rows of the runs in sweep.json that have no folder yet."""
    try:
        for one in read_json(folder / SWEEP)["runs"]:
            name, problem = one["name"], one["error"]
            if name not in started:
                yield RunRow(name, folder / name, "failed" if problem else "waiting", problem=problem)
    except (OSError, ValueError, TypeError, KeyError) as error:
        yield RunRow(SWEEP, folder / SWEEP, "unreadable", f"{folder / SWEEP}: {error}")


def _fill_test(row: RunRow, contents: RunContents) -> None:
    """Set the first test set that has scores, and its BLEU; unlike `scores`, this does not import torch."""
    names = [*contents.config.data.test] if contents.config is not None else []
    scored = sorted(file.parent.name for file in contents.run.evaluations.glob(f"*/{SCORES}"))
    for name in [name for name in [*names, *scored] if name in scored][:1]:
        card = read_json(contents.run.evaluation(name) / SCORES)
        value = next((score["value"] for score in card["scores"] if score["name"] == "bleu"), None)
        row.test_set, row.test = (name, value) if is_number(value) else (None, None)
        if row.metric and are_others(contents.run, [one["sha256"] for one in card["checkpoints"]], row.metric):
            row.note = "test scores of other weights"


def _weights(run: RunDir, metric: str) -> str | None:
    default = default_weights(run, metric) if run.averaged.is_dir() else None
    if default is None:
        return None
    gain = "not validated" if default.gain is None else f"{default.gain:+.2f}"
    if default.folder != run.averaged:
        return f"best (average {gain})"
    return "average" if default.gain is None else f"average {gain}"
