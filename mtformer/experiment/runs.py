"""Read run directories, including damaged and incomplete ones, and list the runs below a folder."""

import json
import os
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
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
    "tokens seen": "tokens",
    "time": "seconds",
    "tokens/s": "tokens_per_second",
}
"""Fields of `RunRow` by column header, in the order of the table; columns for the settings that differ follow."""
LARGEST_FIRST = ("step", "best_step", "test", "tokens", "tokens_per_second")
"""Fields of `RunRow` that are sorted in descending order."""
RECENT = 20
"""Number of most recent log lines over which the median speed is computed."""
LARGEST_NUMBER = 1e300
"""Numbers from here on are not figures: a float cannot hold them, or not their sums."""
Record = dict[str, Any]
"""Line of metrics.jsonl or samples.jsonl."""
NaturalKey = list[tuple[bool, int, str]]
"""Sort key of a text, see `natural`."""
SortKey = tuple[int, float, NaturalKey]
"""Sort key of a value, see `_value_order`."""


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
            self.run.require_version()
            return load_config(self.run.config)
        except (CheckpointError, ConfigError) as error:
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
        training = self.config.training
        plans = self.points("plan", "max_steps")
        if plans and training.max_minutes is not None:
            _, planned_steps = plans[-1]
            return int(planned_steps)
        return training.max_steps

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
        last_record = self.records[-1:]
        last_checkpoint = self.run.steps()[-1:]
        logged = [record["step"] for record in last_record if is_number(record["step"])]
        return max(logged + last_checkpoint, default=0)

    @cached_property
    def samples(self) -> list[Record]:
        """Dev translations from each validation: `step`, and `samples` as a list of [source, reference, hypothesis]."""
        self.unread += changed_logs(self.run, self.run.samples)
        return [record for record in read_records(self.run.samples) if _is_sample(record)]

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

        cards: dict[str, ScoreCard] = {}
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
        if not steps:
            return {}
        meta = read_meta(self.run.checkpoint(steps[-1]))
        return dict(meta["made_with"])

    @property
    def training_seconds(self) -> float:
        """Training time in seconds, without validation; 0 if no step was logged."""
        return self.seconds_until(self.step)

    def seconds_until(self, step: float) -> float:
        """Return the training time in seconds from the start until a step, without validation; 0 if it is unknown."""
        return _total(self.points("train", "seconds_per_step"), step)

    @property
    def training_tokens(self) -> float:
        """Number of source and target tokens seen in training, without padding; 0 if no step was logged."""
        seconds_per_step = dict(self.points("train", "seconds_per_step"))
        tokens_per_step: list[tuple[int, float]] = []
        for step, tokens_per_second in self.points("train", "tokens_per_second"):
            if step in seconds_per_step:
                tokens_per_step.append((step, tokens_per_second * seconds_per_step[step]))
        return _total(tokens_per_step, self.step)

    def points(self, kind: str, key: str) -> list[tuple[int, float]]:
        """Return (step, value of `key`) for each record of this kind in which the value is a finite number."""
        points: list[tuple[int, float]] = []
        for record in self._records_of_kind(kind):
            value: Any = record.get(key)
            if is_number(value):
                points.append((record["step"], float(value)))
        return points

    def _records_of_kind(self, kind: str) -> list[Record]:
        """Return the records of a kind with a valid step."""
        return [record for record in self.records if record["kind"] == kind and is_number(record["step"])]

    def best(self, key: str) -> tuple[int, float] | None:
        """Return (step, value) of the best validation on the last dev data, the earliest if tied, or None."""
        points = self.points("dev", key)
        start = self._start_of_dev_data()
        points_on_last_data = [(step, value) for step, value in points if step > start]
        sign = 1 if lower_is_better(key) else -1

        def order(point: tuple[int, float]) -> tuple[float, int]:
            step, value = point
            return sign * value, step

        return min(points_on_last_data or points, key=order, default=None)

    def _start_of_dev_data(self) -> int:
        """Return the last step at which a resume changed the dev data; -1 if there is none."""
        resumes = self._records_of_kind("resume")
        # If a run was resumed several times at the same step, only the last time counts.
        changes_by_step = {record["step"]: record.get("changes") for record in resumes}

        start = -1
        for step, changes in changes_by_step.items():
            if isinstance(changes, dict) and "dev data" in changes:
                start = max(start, step)
        return start


def _total(values_per_step: Sequence[tuple[int, float]], end: float) -> float:
    """Return the sum over the steps until `end` of a value that log lines have per step.

    Args:
        values_per_step: step of each log line, and the mean of the value since the line before it.
        end: a step; steps after the last log line count like those before it.
    """
    total = 0.0
    last_step = 0.0
    value = 0.0
    for step, value in values_per_step:
        if step >= end:
            break
        total += (step - last_step) * value
        last_step = step
    return total + max(0.0, end - last_step) * value


def changed_logs(run: RunDir, *paths: Path) -> list[str]:
    """Return a message for each file that has changed since the latest checkpoint was saved."""
    steps = run.steps()
    if not steps:
        return []

    logs = read_meta(run.checkpoint(steps[-1]))["logs"]
    changed = [path for path in paths if has_changed(path, logs.get(path.name))]
    problem = f"changed or truncated since the checkpoint of step {steps[-1]} was saved, so its figures may be wrong"
    return [f"{path}: {problem}; restore it from a copy" for path in changed]


def is_number(value: object) -> bool:
    """Return True for a JSON number that fits in a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < LARGEST_NUMBER


def _is_sample(record: Record) -> bool:
    samples = record.get("samples")
    if not isinstance(samples, list) or not is_number(record["step"]):
        return False
    return all(_is_triple_of_text(sample) for sample in samples)


def _is_triple_of_text(sample: object) -> bool:
    if not isinstance(sample, list) or len(sample) != 3:
        return False
    return all(isinstance(text, str) for text in sample)


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
    tokens: float | None = None
    """Source and target tokens seen in training, without padding."""
    tokens_per_second: float | None = None
    """Median over the most recent log lines."""
    seconds: float | None = None
    """Training time in seconds, without validation."""
    config: dict[str, Any] = field(default_factory=dict)
    """Config values by dotted key; empty without a readable config."""

    def to_dict(self, keys: Sequence[str]) -> dict[str, Any]:
        """Return the fields as plain values, with only these keys of the config."""
        config = {key: self.config.get(key) for key in keys}
        return {**vars(self), "path": str(self.path), "config": config}

    def cells(self) -> list[str]:
        """Return the cells of the row, in the order of `COLUMNS`."""
        cells = dict.fromkeys(COLUMNS.values(), "")
        cells["name"] = self.name
        cells["state"] = self.state
        if self.note is not None:
            cells["state"] += f", {self.note}"
        if self.step is not None:
            limit = "" if self.max_steps is None else f"/{self.max_steps}"
            cells["step"] = f"{self.step}{limit}"
        if self.best is not None:
            cells["best"] = f"{self.metric} {self.best:.2f}"
        if self.best_step is not None:
            cells["best_step"] = f"{self.best_step}"
        if self.test is not None:
            cells["test"] = f"{self.test_set} {self.test:.2f}"
        if self.weights is not None:
            cells["weights"] = self.weights
        if self.tokens is not None:
            cells["tokens"] = f"{self.tokens:,.0f}"
        if self.tokens_per_second is not None:
            cells["tokens_per_second"] = f"{self.tokens_per_second:,.0f}"
        if self.seconds is not None:
            cells["seconds"] = format_duration(self.seconds)
        return list(cells.values())


def list_runs(folder: Path) -> list[RunRow]:
    """Return the runs and bundles below a folder, sorted by name; raise CheckpointError if the folder is missing."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder; give the folder of the runs")
    rows_by_path = {row.path: row for row in _walk(folder)}
    for path, row in rows_by_path.items():
        if path != folder:
            row.name = str(path.relative_to(folder))
    return sorted(rows_by_path.values(), key=lambda row: natural(row.name))


def summarize(path: Path) -> RunRow:
    """Return the row of a run; fields that cannot be read are left unset."""
    contents = RunContents(path)
    row = RunRow(contents.name, path, "unreadable")
    try:
        _fill(row, contents)
    except (MtformerError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:  # damaged files
        message = " ".join(f"{path}: {error}".split())  # in one line
        row.problem = row.problem or message
    return row


def _fill(row: RunRow, contents: RunContents) -> None:
    """Set the fields of a row in an order in which a damaged file leaves as many of them set as possible."""
    if contents.config is not None:
        row.config = {dotted(path): value for path, value in leaves(contents.config).items()}
        row.metric = contents.config.training.best_metric
        row.max_steps = contents.max_steps
    elif contents.unread:
        row.problem = contents.unread[0]
        row.note = "damaged config"

    row.state = contents.state.state
    row.problem = contents.state.error or row.problem
    if contents.run.is_bundle:
        row.state = "bundle"
        return
    if row.state == "new" and not contents.run.config.is_file():
        row.state = "incomplete"

    _fill_training(row, contents)
    if contents.unread:
        row.problem = row.problem or contents.unread[0]
    if row.metric is not None:
        row.weights = _weights(contents.run, row.metric)
    _fill_test(row, contents)


def _fill_training(row: RunRow, contents: RunContents) -> None:
    """Set the fields that are computed from metrics.jsonl."""
    row.step = contents.step
    speeds = [speed for _, speed in contents.points("train", "tokens_per_second")]
    if speeds:
        row.tokens_per_second = statistics.median(speeds[-RECENT:])
    if any(record["kind"] == "train" for record in contents.records):
        row.seconds = contents.training_seconds
        row.tokens = contents.training_tokens

    best = contents.best(row.metric) if row.metric is not None else None
    if best is not None:
        row.best_step, row.best = best


def _fill_test(row: RunRow, contents: RunContents) -> None:
    """Set the first test set that has scores, and its BLEU; unlike `scores`, this does not import torch."""
    files = contents.run.evaluations.glob(f"*/{SCORES}")
    scored = sorted(file.parent.name for file in files)
    if not scored:
        return

    # In the order of the config; test sets that it no longer has follow.
    test_sets = [*contents.config.data.test] if contents.config is not None else []
    test_set = next(name for name in (*test_sets, *scored) if name in scored)
    card = read_json(contents.run.evaluation(test_set) / SCORES)
    for score in card["scores"]:
        if score["name"] == "bleu":
            if is_number(score["value"]):
                row.test_set = test_set
                row.test = score["value"]
            break

    hashes = [checkpoint["sha256"] for checkpoint in card["checkpoints"]]
    if row.metric and are_others(contents.run, hashes, row.metric):
        row.note = "test scores of other weights"


def _weights(run: RunDir, metric: str) -> str | None:
    """Return the text of `RunRow.weights`."""
    if not run.averaged.is_dir():
        return None
    default = default_weights(run, metric)
    if default is None:
        return None

    is_average = default.folder == run.averaged
    if default.gain is not None:
        gain = f"{default.gain:+.2f}"
        return f"average {gain}" if is_average else f"best (average {gain})"
    return "average" if is_average else "best (average not validated)"


def differing_keys(configs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the keys whose values differ between configs (by dotted key; empty ones do not count), `data` last."""
    known_configs = [config for config in configs if config]
    keys = dict.fromkeys(chain.from_iterable(known_configs))
    differing = []
    for key in keys:
        values = {_comparable(key, config.get(key)) for config in known_configs}
        if len(values) > 1 and key_metadata(key).has_effect:
            differing.append(key)
    return sorted(differing, key=lambda key: key.startswith("data."))


def sort_runs(rows: Sequence[RunRow], by: str, keys: Sequence[str]) -> list[RunRow]:
    """Return the rows sorted by a column or by a config key, best, furthest or fastest first.

    Args:
        rows: the rows.
        by: header or field of a column (see `COLUMNS`), or a config key, dotted or short.
        keys: dotted config keys by which the rows can be sorted.

    Raise ConfigError if there is no such column or key.
    """
    column = COLUMNS.get(by, by)
    if column in COLUMNS.values():
        return sorted(rows, key=lambda row: _column_order(row, column))

    short = short_keys([*keys, *COLUMNS])
    for key in keys:
        if by in (key, short[key]):
            return sorted(rows, key=lambda row: _value_order(row.config.get(key), is_descending=False))

    names = [*COLUMNS, *(short[key] for key in keys)]
    raise ConfigError(f"--sort {by}: no such column; the columns are {', '.join(names)}")


def _column_order(row: RunRow, column: str) -> SortKey:
    """Return the sort key of a row by a column, given its field in `RunRow`."""
    is_descending = column in LARGEST_FIRST
    if column == "best":
        is_descending = not lower_is_better(row.metric or "")
    return _value_order(getattr(row, column), is_descending)


def _value_order(value: Any, is_descending: bool) -> SortKey:
    """Return a sort key: numbers, then text, then missing values."""
    if value is None:
        return 2, 0.0, []
    if isinstance(value, int | float):
        return 0, -value if is_descending else value, []
    return 1, 0.0, natural(str(value))


def natural(text: str) -> NaturalKey:
    """Return a sort key in natural order: `seed=10` comes after `seed=2`."""
    key: NaturalKey = []
    for part in re.split(r"(\d+)", text):
        is_text = not part.isdecimal()
        number = 0 if is_text else int(part)
        key.append((is_text, number, part))
    return key


def without_folder(key: str, value: Any) -> Any:
    """Return a config value; for a path, only the file name, so that files are compared by name and not by folder."""
    is_path = isinstance(value, str) and key_metadata(key).path
    return os.path.basename(value) if is_path else value


def _comparable(key: str, value: Any) -> str:
    if value in ([], {}):  # an empty collection is like a missing one
        value = None
    return json.dumps(without_folder(key, value), sort_keys=True, default=str)


def _walk(folder: Path) -> Iterator[RunRow]:
    """Yield rows of the runs in a folder, of planned sweep runs that have no folder yet, and of unreadable folders."""
    errors: list[OSError] = []
    for path, folders, files in os.walk(folder, onerror=errors.append):
        run = RunDir(path)
        try:
            has_row = _is_run(run, files) and (run.path == folder or not _is_export_of_run(run))
        except OSError as error:  # the names in the folder can be listed, but its files cannot be opened
            errors.append(error)
            folders.clear()
            continue
        if has_row:
            yield summarize(run.path)

        # Assigning to the slice tells `os.walk` which folders to enter, and in which order.
        visible = [name for name in folders if not name.startswith(".")]
        folders[:] = sorted(name for name in visible if name != run.checkpoints.name)
        if SWEEP in files:
            yield from _rows_of_sweep(run.path, folders)

    for unread in errors:
        yield _unreadable_folder(unread)


def _unreadable_folder(error: OSError) -> RunRow:
    """Return the row of a folder that cannot be read; the error names it, or a file in it."""
    path = Path(str(error.filename))
    if not os.path.isdir(path):
        path = path.parent
    return RunRow(path.name, path, "unreadable", problem=f"{path}: {error.strerror}")


def _is_run(run: RunDir, files: Sequence[str]) -> bool:
    """Return True if a folder with these files is a run or a bundle."""
    names = {run.config.name, run.metrics.name, run.state.name}
    return not names.isdisjoint(files) or run.checkpoints.is_dir()


def _is_export_of_run(run: RunDir) -> bool:
    """Return True for an export in the folder of its run, which is not another run."""
    is_export = run.is_bundle or (run.path / CT2_WEIGHTS).is_file()
    return is_export and RunDir(run.path.parent).checkpoints.is_dir()


def _rows_of_sweep(folder: Path, started: Sequence[str]) -> Iterator[RunRow]:
    """Yield rows of the runs in sweep.json that have no folder yet."""
    try:
        for run in read_json(folder / SWEEP)["runs"]:
            name = run["name"]
            problem = run["error"]
            if name not in started:
                state = "failed" if problem else "waiting"
                yield RunRow(name, folder / name, state, problem=problem)
    except (OSError, ValueError, TypeError, KeyError) as error:
        file = folder / SWEEP
        yield RunRow(SWEEP, file, "unreadable", f"{file}: {error}")
