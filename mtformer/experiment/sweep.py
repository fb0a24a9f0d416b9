"""Sweeps: a base config and axes, expanded to named runs whose configs are all validated.

    config: base.yaml                                  # relative to this file
    run_dir: runs/study                                # default: runs/ and the name of this file
    set: {training.max_steps: 1000}                    # for all runs
    grid:                                              # all combinations of values
      model.positions: [sinusoidal, rotary]
    list:                                              # variants of several keys
      - {name: small, model.d_model: 128, model.d_ff: 512}
      - {name: large, model.d_model: 256, model.d_ff: 1024}
    seeds: [1, 2, 3]                                   # training.seed

Each variant of `list` is combined with each combination of `grid` and each seed.
"""

import contextlib
import itertools
import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field, field_validator, model_validator

from mtformer.config.annotations import fields
from mtformer.config.loading import load_config, read_tree
from mtformer.config.schema import Config
from mtformer.config.section import Count, Section
from mtformer.config.validation import validated
from mtformer.config.yaml_text import DEFAULT, read_yaml
from mtformer.errors import ConfigError
from mtformer.files import beside, expand_user
from mtformer.run_dir import RunDir

LONGEST_NAME = 120
"""Maximum length of a run name in characters. File systems allow 255 bytes; files next to a run have longer names."""
SEED = "training.seed"
NAME = "name"  # the only key in a variant that is not a config key
SAFE_NAME = re.compile(r"(?!.*\.(log|json)$)[A-Za-z0-9][A-Za-z0-9._+=-]*")  # a.log is the log of the run a


class SweepFile(Section):
    """The contents of a sweep file."""

    config: str
    """Base config, relative to the sweep file."""
    run_dir: str | None = None
    """Folder of the runs; default: `runs/` and the name of the sweep file."""
    common: dict[str, Any] = Field({}, alias="set")
    """Values for all runs."""
    grid: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field({})
    """Lists of values by key."""
    variants: list[dict[str, Any]] = Field([], alias="list")
    """Variants, each with a `name` and values by key."""
    seeds: list[Count] = Field([])
    """Values of training.seed."""

    @field_validator("grid", mode="before")
    @classmethod
    def _grid_has_dotted_keys(cls, grid: Any) -> Any:
        if isinstance(grid, dict) and any(isinstance(values, dict) for values in grid.values()):
            raise ValueError("write dotted keys, such as model.dropout, each with a list of values")
        return grid

    @model_validator(mode="after")
    def _variants_have_names(self) -> "SweepFile":
        for number, variant in enumerate(self.variants, 1):
            name = variant.get(NAME)
            if not isinstance(name, str) or not SAFE_NAME.fullmatch(name):
                raise ValueError(f"variant {number} of list needs a name: letters, digits, ._+=- (quoted; not .log)")
        return self


@dataclass(frozen=True)
class PlannedRun:
    """Run of a sweep, with a validated config."""

    name: str
    run: RunDir
    values: dict[str, Any]
    """Values of the axes, by dotted key."""
    overrides: tuple[str, ...]
    config: Config


@dataclass(frozen=True)
class Sweep:
    """Expanded sweep file."""

    path: Path
    config: Path
    """Base config."""
    folder: Path
    """Folder of the run directories."""
    common: tuple[str, ...]
    """Overrides for all runs."""
    runs: list[PlannedRun]

    def arguments(self, run: PlannedRun) -> list[str]:
        """Return the arguments of `mtformer` that start or resume this run."""
        return ["train", str(self.config), "--run-dir", str(run.run.path), "--resume", "auto", *run.overrides]

    def command_line(self, run: PlannedRun) -> str:
        """Return the shell command that starts or resumes this run."""
        return shlex.join(["mtformer", *self.arguments(run)])


class _Option(NamedTuple):
    """One alternative of an axis."""

    axis: str
    """Key of the sweep file."""
    label: str
    """Part of the run's name."""
    values: Mapping[str, Any]
    """Values by dotted key."""


def plan_sweep(path: Path, overrides: Sequence[str] = ()) -> Sweep:
    """Read a sweep file, expand its axes and validate the config of each run.

    `overrides` apply to all runs and replace values under `set`. Raise ConfigError if the file or a config is invalid.
    """
    file = _read(path)
    base = beside(path, file.config)
    if not base.exists():
        raise ConfigError(f"{path}: config: no such file: {base} (the name is relative to {path})")
    try:
        axes = list(_axes(file))
        _check_axes(axes)
        _check_keys([_Option("set", "", file.common), *itertools.chain.from_iterable(axes)], overrides)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error
    folder = expand_user(file.run_dir or os.path.join("runs", path.stem))
    shared = (*itertools.starmap(_override, file.common.items()), *overrides)
    runs = []
    for options in itertools.product(*axes):
        name = ",".join(option.label for option in options)
        if len(name) > LONGEST_NAME:
            name = f"{name[: LONGEST_NAME - 9]}-{sha256(name.encode()).hexdigest()[:8]}"
        values = {key: value for option in options for key, value in option.values.items()}
        own = (*shared, *itertools.starmap(_override, values.items()))
        try:
            config = load_config(base, own).config
        except ConfigError as error:
            raise ConfigError(f"{path}: run {name}: {str(error).splitlines()[0]}") from error
        runs.append(PlannedRun(name, RunDir(folder / name), values, own, config))
    return Sweep(path, base, folder, shared, runs)


def short_keys(keys: Iterable[str]) -> dict[str, str]:
    """Return the shortest unique suffix of each dotted key: `dropout`, but `model.seed` beside `data.seed`."""
    suffixes = {key: [key.split(".", n)[-1] for n in range(key.count("."), -1, -1)] for key in keys}  # shortest first
    counts = Counter(itertools.chain.from_iterable(suffixes.values()))
    return {key: next(one for one in own if counts[one] == 1 or one == key) for key, own in suffixes.items()}


def _read(path: Path) -> SweepFile:
    """Return the contents of a sweep file; raise ConfigError with a line for each error."""
    tree, origins = read_tree(str(path), "sweep")
    if not isinstance(tree, dict):
        keys = ", ".join(fields(SweepFile))
        raise ConfigError(f"{path}: a sweep must be a mapping with the keys {keys}, not {tree!r:.40}")
    return validated(tree, origins, SweepFile)


def _axes(file: SweepFile) -> Iterator[list[_Option]]:
    """Yield the alternatives of each axis, in the order of their labels in run names."""
    short = short_keys([*file.grid, *([SEED] if file.seeds else [])])
    if file.variants:
        unnamed = [{key: value for key, value in one.items() if key != NAME} for one in file.variants]
        yield [_Option("list", one[NAME], own) for one, own in zip(file.variants, unnamed, strict=True)]
    for key, values in file.grid.items():
        yield [_Option("grid", _label(short[key], value), {key: value}) for value in values]
    if file.seeds:
        yield [_Option("seeds", _label(short[SEED], seed), {SEED: seed}) for seed in file.seeds]


def _label(key: str, value: Any) -> str:
    """Return `key=value` with characters that are safe in file names."""
    if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, dict | list) for item in value)):
        raise ValueError(f"grid: {key}: a nested value needs a name; make it a variant under list")
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if isinstance(value, str | list):
        text = re.sub(r"[^A-Za-z0-9._+]+", "-", text).strip("-.")
    return f"{key}={text}"


def _check_axes(axes: Sequence[Sequence[_Option]]) -> None:
    """Raise ValueError if there is no axis, or two options have the same name."""
    if not axes:
        raise ValueError("has no axis; add grid, list or seeds")
    for axis in axes:
        labels = Counter(option.label.lower() for option in axis)  # some file systems ignore case
        for option in axis:
            if labels[option.label.lower()] > 1:
                raise ValueError(f"{option.axis}: duplicate run name {option.label}; use list to name the runs")


def _check_keys(options: Sequence[_Option], overrides: Sequence[str]) -> None:
    """Raise ValueError if a key is set more than once."""
    axes: dict[str, str] = {}
    for option in options:
        for key in _leaf_keys(option.values):
            for other, axis in axes.items():
                if axis != option.axis and _overlap(key, other):
                    by = axis if key == other else f"{other} in {axis}"
                    raise ValueError(f"{option.axis}: {key} is also set by {by}; remove one of them")
            axes[key] = option.axis
    for override in overrides:
        key = override.partition("=")[0].strip()
        for one, axis in axes.items():
            if axis != "set" and _overlap(key, one):
                raise ValueError(f"override '{override}': {one} is an axis of the sweep ({axis}); remove one of them")


def _overlap(one: str, other: str) -> bool:
    """Return True if two dotted keys are equal, or one contains the other."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def _leaf_keys(values: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """Yield the dotted keys of values, of which some may be sections."""
    for key, value in values.items():
        yield from _leaf_keys(value, f"{before}{key}.") if isinstance(value, dict) else [before + key]


def _override(key: str, value: Any) -> str:
    """Return `key=value` with the value as a line of YAML that `read_yaml` reads back unchanged."""
    text = json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) and value == value.strip() and value.isprintable():
        with contextlib.suppress(ConfigError):
            text = value if read_yaml(value, lambda line: DEFAULT)[0] == value else text
    return f"{key}={text}"
