"""A sweep: one base config and axes, multiplied out into named runs whose configs are all validated.

    config: base.yaml                                  # from this file's folder
    run_dir: runs/study                                # default: runs/ and this file's name
    set: {training.max_steps: 1000}                    # in all runs
    grid:                                              # each value of one key with each of the others
      model.positions: [sinusoidal, rotary]
    list:                                              # variants of several keys
      - {name: small, model.d_model: 128, model.d_ff: 512}
      - {name: large, model.d_model: 256, model.d_ff: 1024}
    random:                                            # so many draws
      count: 10
      keys:
        training.learning_rate: {min: 0.0005, max: 0.01, log: true}
        model.dropout: {min: 0.1, max: 0.4, step: 0.05}
        model.activation: {choice: [relu, swiglu]}
    seeds: [1, 2, 3]                                   # training.seed

Every variant of `list` comes with every combination of `grid`, every draw of `random` and every seed.
"""

import itertools
import json
import math
import os
import random
import re
import shlex
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, ValidationError, field_validator, model_validator

from mtformer.config.fields import fields
from mtformer.config.loading import load_config
from mtformer.config.mistakes import describe_mistakes
from mtformer.config.origins import Origin, Origins, nearest_origin
from mtformer.config.schema import Config
from mtformer.config.section import Count, Positive, Section
from mtformer.config.yaml_text import read_yaml
from mtformer.errors import ConfigError
from mtformer.run_dir import RunDir

MAX_RUNS = 10_000
LONGEST_NAME = 120
"""Characters; file systems allow 255 bytes, and what is written beside a run has a longer name than it."""
DRAWS_FOR_EACH = 100
"""So often a draw that was there already is drawn again."""
DIGITS = 4
"""Significant ones of a number that is drawn, so that a run's name says all of it."""
SEED = "training.seed"
PLAIN = frozenset(string.ascii_letters + string.digits + "._+-")
NAME = "name"
"""The key of a variant that is no key of the config."""
SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=-]*")


class Range(Section):
    """Numbers to draw from, both ends included: integers if `min`, `max` and `step` are integers."""

    min: int | float
    max: int | float
    log: bool = False
    """Draw on a logarithmic scale: as often between 1 and 10 as between 10 and 100."""
    step: Annotated[int | float, Field(gt=0)] | None = None
    """Only min, min + step, and so on."""

    @property
    def is_whole(self) -> bool:
        return all(isinstance(number, int | None) for number in (self.min, self.max, self.step))

    @model_validator(mode="after")
    def _fits(self) -> "Range":
        if self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        if self.log and self.min <= 0:
            raise ValueError(f"log needs a min above 0, not {self.min}")
        if self.log and self.step is not None:
            raise ValueError("log and step exclude each other; leave one out")
        return self


class Choice(Section):
    """Values to draw from."""

    choice: Annotated[list[Any], Field(min_length=1)]


def _kind(value: Any) -> str:
    return "choice" if isinstance(value, Choice) or (isinstance(value, dict) and "choice" in value) else "range"


class Random(Section):
    """Draws of several keys together."""

    count: Positive
    """Draws."""
    seed: Count = 1
    """Seed of the draws."""
    keys: Annotated[
        dict[str, Annotated[Annotated[Range, Tag("range")] | Annotated[Choice, Tag("choice")], Discriminator(_kind)]],
        Field(min_length=1),
    ]
    """What each key is drawn from."""


class SweepFile(Section):
    """The contents of a sweep file."""

    config: str
    """The base, relative to the sweep file."""
    run_dir: str | None = None
    """Folder of the runs; default `runs/` and the name of the sweep file."""
    common: dict[str, Any] = Field({}, alias="set")
    """Values that all runs have."""
    grid: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field({})
    """Values by key."""
    variants: list[dict[str, Any]] = Field([], alias="list")
    """Each with a `name` and values by key."""
    random: Random | None = None
    """Draws."""
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
                raise ValueError(
                    f"variant {number} of list needs a name of letters, digits and ._+=- (in quotes if it is a number)"
                )
        return self


@dataclass(frozen=True)
class Setting:
    """One value of one key, and the place that it comes from."""

    key: str
    value: Any
    place: str
    """Such as `study.yaml:7: grid`."""

    @property
    def override(self) -> str:
        return f"{self.key}={_flow(self.value)}"


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep; its config is valid."""

    name: str
    run: RunDir
    values: dict[str, Any]
    """What the axes gave, by dotted key."""
    overrides: tuple[str, ...]
    config: Config


@dataclass(frozen=True)
class Sweep:
    """What a sweep file says, multiplied out."""

    path: Path
    config: Path
    """The base."""
    folder: Path
    """That holds the run directories."""
    common: tuple[str, ...]
    """Overrides that all runs share."""
    runs: list[PlannedRun]

    def arguments(self, run: PlannedRun) -> list[str]:
        """Of `mtformer`: what trains this run, or goes on with it."""
        return ["train", str(self.config), "--run-dir", str(run.run.path), "--resume", "auto", *run.overrides]


@dataclass(frozen=True)
class _Option:
    """One of the alternatives of an axis, and its part of the run's name."""

    label: str
    settings: tuple[Setting, ...]
    place: str


Place = Callable[..., str]
"""(keys of the sweep file...) -> their place, for messages."""


def plan_sweep(path: Path, overrides: Sequence[str] = ()) -> Sweep:
    """Reads a sweep file, multiplies its axes out, and validates the config of every run.

    Args:
        path: the file.
        overrides: each `section.key=value`, in all runs, and over what the file's `set` says.

    Raises:
        ConfigError: one line that names the place, and the run whose config is not valid.
    """
    file, origins = _read(path)

    def place(*keys: str | int) -> str:
        return f"{nearest_origin(origins, keys)}: {keys[0]}"

    base = Path(os.path.normpath(path.parent / Path(file.config).expanduser()))
    if not base.exists():
        raise ConfigError(f"{place('config')}: no such file: {base} (the name is relative to {path})")
    common = [Setting(key, value, place("set", key)) for key, value in file.common.items()]
    axes = list(_axes(file, place))
    _check_axes(path, axes)
    _check_keys([*common, *(one for axis in axes for option in axis for one in option.settings)], overrides)
    folder = Path(file.run_dir or os.path.join("runs", path.stem)).expanduser()
    shared = (*(one.override for one in common), *overrides)
    runs = []
    for options in itertools.product(*axes):
        name = _shortened(",".join(option.label for option in options))
        own = [one for option in options for one in option.settings]
        config = _load(base, shared, common, own, name)
        values, added = {one.key: one.value for one in own}, (one.override for one in own)
        runs.append(PlannedRun(name, RunDir(folder / name), values, (*shared, *added), config))
    return Sweep(path, base, folder, shared, runs)


def command_line(sweep: Sweep, run: PlannedRun) -> str:
    """What one types to train the run, or to go on with it."""
    return shlex.join(["mtformer", *sweep.arguments(run)])


def short_keys(keys: Iterable[str]) -> dict[str, str]:
    """The shortest ends of dotted keys that tell them apart: `dropout`, but `model.seed` beside `data.seed`."""
    parts = {key: key.split(".") for key in keys}

    def short(key: str) -> str:
        for length in range(1, len(parts[key])):
            end = parts[key][-length:]
            if all(other == key or parts[other][-length:] != end for other in parts):
                return ".".join(end)
        return key

    return {key: short(key) for key in parts}


def _read(path: Path) -> tuple[SweepFile, Origins]:
    """Return a sweep file and the lines of its keys; raise ConfigError, one line for each user error."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such sweep file") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a folder; a sweep is a YAML file") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8") from None

    def origin(line: int | None) -> Origin:
        return Origin("file", str(path), line)

    origins: Origins = {(): origin(None)}
    tree = read_yaml(text, lambda line: str(origin(line)), lambda key, line: origins.update({key: origin(line)}))
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: a sweep is a mapping of {', '.join(fields(SweepFile))}, not {tree!r:.40}")
    try:
        return SweepFile.model_validate(tree, strict=True), origins
    except ValidationError as error:
        raise ConfigError(describe_mistakes(error, origins, SweepFile)) from error


def _axes(file: SweepFile, place: Place) -> Iterator[list[_Option]]:
    """Each axis as its alternatives, in the order of a run's name."""
    drawn = file.random.keys if file.random is not None else {}
    short = short_keys([*file.grid, *drawn, *([SEED] if file.seeds else [])])

    def option(values: Mapping[str, Any], *where: str) -> _Option:
        label = ",".join(_label(short[key], value, place(*where)) for key, value in values.items())
        return _Option(
            label, tuple(Setting(key, value, place(*where, key)) for key, value in values.items()), place(*where)
        )

    if file.variants:
        yield [_variant(variant, index, place) for index, variant in enumerate(file.variants)]
    for key, values in file.grid.items():
        yield [option({key: value}, "grid", key) for value in values]
    if file.random is not None:
        draws = _draws(file.random.count, file.random.seed, drawn, place("random"))
        yield [option(draw, "random", "keys") for draw in draws]
    if file.seeds:
        yield [option({SEED: seed}, "seeds") for seed in file.seeds]


def _variant(variant: Mapping[str, Any], index: int, place: Place) -> _Option:
    settings = (Setting(key, value, place("list", index, key)) for key, value in variant.items() if key != NAME)
    return _Option(variant[NAME], tuple(settings), place("list", index))


def _draws(count: int, seed: int, keys: Mapping[str, Range | Choice], where: str) -> Iterator[dict[str, Any]]:
    """So many different draws; the first ones are the same whatever the count, and each key has chances of its own."""
    # Of the random module only the numbers of random() are promised to stay the same.
    chances = {key: random.Random(f"{seed} {key}") for key in keys}
    found: list[dict[str, Any]] = []
    for _ in range(DRAWS_FOR_EACH * count):
        draw = {key: _drawn(keys[key], chance.random()) for key, chance in chances.items()}
        if draw not in found:
            found.append(draw)
            yield draw
        if len(found) == count:
            return
    raise ConfigError(f"{where}: its keys give only {len(found)} different draws; lower count to that")


def _drawn(values: Range | Choice, chance: float) -> Any:
    """The value at a place from 0 to below 1."""
    if isinstance(values, Choice):
        return values.choice[int(chance * len(values.choice))]
    low, high, step = values.min, values.max, values.step
    if step is not None:
        value = low + step * int(chance * (math.floor((high - low) / step * (1 + 1e-9)) + 1))
        return value if isinstance(value, int) else float(f"{value:.10g}")
    if values.log:
        value = math.exp(math.log(low) + chance * math.log(high / low))
        value = round(value) if values.is_whole else value
    else:
        value = low + (int(chance * (high - low + 1)) if values.is_whole else chance * (high - low))
    return value if values.is_whole else min(max(float(f"{value:.{DIGITS}g}"), low), high)


def _label(key: str, value: Any, where: str) -> str:
    """`key=value` as it may stand in a file's name."""
    if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, dict | list) for item in value)):
        raise ConfigError(f"{where}: {key}: such values need names; make them variants under list")
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if isinstance(value, str | list):
        text = re.sub("-+", "-", "".join(one if one in PLAIN else "-" for one in text)).strip("-.")
    return f"{key}={text}"


def _shortened(name: str) -> str:
    """The name, its end replaced by a hash of all of it when it is too long."""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 9]}-{sha256(name.encode()).hexdigest()[:8]}"


def _check_axes(path: Path, axes: Sequence[Sequence[_Option]]) -> None:
    """Raises ConfigError when there is no axis, two of one would be called the same, or they give too many runs."""
    if not axes:
        raise ConfigError(f"{path}: has no axis; give grid, list, random or seeds")
    for axis in axes:
        labels = Counter(option.label.lower() for option in axis)  # some file systems take capitals for small letters
        for option in axis:
            if labels[option.label.lower()] > 1:
                raise ConfigError(
                    f"{option.place}: two runs would be called {option.label}; leave one out, or give them names as "
                    "variants under list"
                )
    num_runs = math.prod(map(len, axes))
    if num_runs > MAX_RUNS:
        raise ConfigError(f"{path}: its axes give {num_runs:,} runs, more than {MAX_RUNS:,}; take random, not grid")


def _check_keys(settings: Sequence[Setting], overrides: Sequence[str]) -> None:
    """Raises ConfigError when a key is set in two places."""
    places: dict[str, str] = {}
    for one in settings:
        other = places.setdefault(one.key, one.place)
        if other.rpartition(": ")[2] != one.place.rpartition(": ")[2]:
            raise ConfigError(f"{one.place}: {one.key} is set by {other} too; leave one of them out")
    for override in overrides:
        key = override.partition("=")[0].strip()
        if key in places and not places[key].endswith(": set"):
            raise ConfigError(f"override '{override}': {key} is an axis of the sweep ({places[key]}); leave one out")


def _load(
    base: Path, shared: Sequence[str], common: Sequence[Setting], settings: Sequence[Setting], name: str
) -> Config:
    """The run's config; what is wrong with it is told with the place in the sweep file."""
    try:
        return load_config(base, [*shared, *(one.override for one in settings)]).config
    except ConfigError as error:
        line = str(error).splitlines()[0]
        for one in (*settings, *common):
            start = f"override '{one.override}': "
            if line.startswith(start):
                end = f" (run {name})" if one in settings else ""
                raise ConfigError(f"{one.place}: {line.removeprefix(start)}{end}") from error
        raise


def _flow(value: Any) -> str:
    """A value as YAML in one line, which `read_yaml` reads back to the same value."""
    text = json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) and value == value.strip() and value.isprintable():
        try:
            plain = read_yaml(value, str, lambda path, line: None)
        except ConfigError:
            return text
        return value if plain == value else text
    return text
