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
from mtformer.config.loading import find_config, load_config, read_tree
from mtformer.config.schema import Config
from mtformer.config.section import Count, Section
from mtformer.config.validation import validated
from mtformer.config.yaml_text import DEFAULT, read_yaml
from mtformer.errors import ConfigError
from mtformer.files import beside, expand_user
from mtformer.run_dir import RunDir

LONGEST_NAME = 120
"""Maximum length of a run name in characters. File systems allow 255 bytes; files next to a run have longer names."""
HASH_LENGTH = 8
"""Number of characters of the hash in a longer name."""
SEED = "training.seed"
"""Config key of the axis `seeds`."""
NAME = "name"
"""The only key in a variant that is not a config key."""
SAFE_NAME = re.compile(r"(?!.*\.(log|json)$)[A-Za-z0-9][A-Za-z0-9._+=-]*")
"""Name of a variant; `a.log` is the log of the run `a`."""


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
        has_sections = isinstance(grid, dict) and any(isinstance(values, dict) for values in grid.values())
        if has_sections:
            raise ValueError("write dotted keys, such as model.dropout, each with a list of values")
        return grid

    @model_validator(mode="after")
    def _variants_have_names(self) -> "SweepFile":
        for number, variant in enumerate(self.variants, 1):
            name = variant.get(NAME)
            if not isinstance(name, str) or not SAFE_NAME.fullmatch(name):
                raise ValueError(
                    f"variant {number} of list needs a name of letters, digits and ._+=- (in quotes if it is a "
                    "number), which does not end with .log or .json"
                )
        return self


@dataclass(frozen=True)
class PlannedRun:
    """Run of a sweep, with a validated config."""

    name: str
    run: RunDir
    values: dict[str, Any]
    """Values of the axes, by dotted key."""
    overrides: tuple[str, ...]
    """Overrides of the base config, which the command of the run has."""
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

    Args:
        path: sweep file.
        overrides: overrides for all runs, which replace values under `set`.

    Raise ConfigError if the file or a config is invalid.
    """
    path = find_config(path)
    file = _read(path)
    base = beside(path, file.config)
    if not base.exists():
        raise ConfigError(f"{path}: config: no such file: {base} (the name is relative to {path}); check the name")
    try:
        axes = list(_axes(file))
        _check_axes(axes)
        common_values = _Option("set", "", file.common)
        _check_keys([common_values, *itertools.chain.from_iterable(axes)], overrides)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error

    default_folder = os.path.join("runs", path.stem)
    folder = expand_user(file.run_dir or default_folder)
    common = (*_overrides(file.common), *overrides)
    runs: list[PlannedRun] = []
    for options in itertools.product(*axes):
        name = _run_name(options)
        values: dict[str, Any] = {}
        for option in options:
            values |= option.values

        # The config is read as by the command of the run, which has the values as overrides.
        run_overrides = (*common, *_overrides(values))
        try:
            config = load_config(base, run_overrides).config
        except ConfigError as error:
            first_line = str(error).splitlines()[0]
            raise ConfigError(f"{path}: run {name}: {first_line}") from error
        run = RunDir(folder / name)
        runs.append(PlannedRun(name, run, values, run_overrides, config))
    return Sweep(path, base, folder, common, runs)


def _run_name(options: Sequence[_Option]) -> str:
    """Return the name of a run: the labels of its options. The end of a long name is replaced by a hash."""
    name = ",".join(option.label for option in options)
    if len(name) <= LONGEST_NAME:
        return name
    name_hash = sha256(name.encode()).hexdigest()[:HASH_LENGTH]
    num_kept = LONGEST_NAME - len(f"-{name_hash}")
    return f"{name[:num_kept]}-{name_hash}"


def short_keys(keys: Iterable[str]) -> dict[str, str]:
    """Return the shortest unique suffix of each dotted key: `dropout`, but `model.seed` beside `data.seed`."""
    suffixes = {key: _suffixes(key) for key in keys}
    counts = Counter(itertools.chain.from_iterable(suffixes.values()))
    short: dict[str, str] = {}
    for key, suffixes_of_key in suffixes.items():
        unique = (suffix for suffix in suffixes_of_key if counts[suffix] == 1)
        short[key] = next(unique, key)
    return short


def _suffixes(key: str) -> list[str]:
    """Return the suffixes of a dotted key, the shortest first: `c`, `b.c`, `a.b.c`."""
    parts = key.split(".")
    starts = reversed(range(len(parts)))
    return [".".join(parts[start:]) for start in starts]


def _read(path: Path) -> SweepFile:
    """Return the contents of a sweep file; raise ConfigError with a line for each error."""
    tree, origins = read_tree(str(path), "sweep")
    if not isinstance(tree, dict):
        keys = ", ".join(fields(SweepFile))
        raise ConfigError(f"{path}: a sweep must be a mapping with the keys {keys}, not {tree!r:.40}")
    return validated(tree, origins, SweepFile)


def _axes(file: SweepFile) -> Iterator[list[_Option]]:
    """Yield the alternatives of each axis, in the order of their labels in run names."""
    keys = [*file.grid, SEED] if file.seeds else file.grid
    short = short_keys(keys)
    if file.variants:
        yield [_variant_option(variant) for variant in file.variants]
    for key, values in file.grid.items():
        yield _options("grid", key, short[key], values)
    if file.seeds:
        yield _options("seeds", SEED, short[SEED], file.seeds)


def _options(axis: str, key: str, short_key: str, values: Sequence[Any]) -> list[_Option]:
    """Return an option for each value of a key."""
    return [_Option(axis, _label(short_key, value), {key: value}) for value in values]


def _variant_option(variant: Mapping[str, Any]) -> _Option:
    values = dict(variant)
    name = values.pop(NAME)
    return _Option("list", name, values)


def _label(key: str, value: Any) -> str:
    """Return `key=value` with characters that are safe in file names."""
    items = value if isinstance(value, list) else []
    is_nested_list = any(isinstance(item, dict | list) for item in items)
    if isinstance(value, dict) or is_nested_list:
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
                raise ValueError(
                    f"{option.axis}: duplicate run name {option.label}; leave one out, or give the runs names as "
                    "variants under list"
                )


def _check_keys(options: Sequence[_Option], overrides: Sequence[str]) -> None:
    """Raise ValueError if a key is set more than once."""
    axis_of_key: dict[str, str] = {}
    for option in options:
        for key in _leaf_keys(option.values):
            _require_unset(key, option.axis, axis_of_key)
            axis_of_key[key] = option.axis

    for override in overrides:
        overridden_key = override.partition("=")[0].strip()
        for key, axis in axis_of_key.items():
            if axis != "set" and _overlap(overridden_key, key):
                raise ValueError(f"override '{override}': {key} is an axis of the sweep ({axis}); remove one of them")


def _require_unset(key: str, axis: str, axis_of_key: Mapping[str, str]) -> None:
    """Raise ValueError if another axis sets this key, a key inside it, or a key that contains it."""
    for other_key, other_axis in axis_of_key.items():
        if other_axis != axis and _overlap(key, other_key):
            setter = other_axis if key == other_key else f"{other_key} in {other_axis}"
            raise ValueError(f"{axis}: {key} is also set by {setter}; remove one of them")


def _overlap(first_key: str, second_key: str) -> bool:
    """Return True if two dotted keys are equal, or one contains the other."""
    shorter, longer = sorted((f"{first_key}.", f"{second_key}."), key=len)
    return longer.startswith(shorter)


def _leaf_keys(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of values, of which some may be sections."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _leaf_keys(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def _overrides(values: Mapping[str, Any]) -> list[str]:
    """Return `key=value` for each value, which is a line of YAML that `read_yaml` reads back unchanged."""
    return [f"{key}={_yaml_line(value)}" for key, value in values.items()]


def _yaml_line(value: Any) -> str:
    """Return a value as YAML: text without quotes where possible, and everything else as JSON."""
    may_be_plain = isinstance(value, str) and value == value.strip() and value.isprintable()
    if may_be_plain:
        with contextlib.suppress(ConfigError):
            read_back, _ = read_yaml(value, lambda line: DEFAULT)
            if read_back == value:
                return value
    return json.dumps(value, ensure_ascii=False)
