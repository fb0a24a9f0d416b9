"""`mtformer reproduce`: the first steps of a run once more, from its config alone; do they give the same figures?"""

import contextlib
import logging
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from mtformer.config.loading import load_config
from mtformer.config.schema import Config
from mtformer.device import pick_device, pick_precision
from mtformer.errors import CheckpointError, ConfigError, DeviceError, InterruptedRunError, MtformerError
from mtformer.experiment.train import train_experiment
from mtformer.experiment.verify import TIMINGS, StopAt
from mtformer.rundir import RunDir, read_meta
from mtformer.training.history import read_records
from mtformer.training.metrics import Progress

NUM_STEPS = 50
KINDS = ("train", "dev")
log = logging.getLogger("mtformer")

Records = dict[tuple[int, str], dict[str, Any]]
"""By step and kind, in their order, without times."""


@dataclass(frozen=True)
class Difference:
    """The first figure that came out otherwise."""

    step: int
    kind: str
    """Of the record: train or dev."""
    name: str
    then: Any
    now: Any


@dataclass(frozen=True)
class Reproduced:
    """What came of it."""

    num_records: int
    """That both have."""
    num_figures: int
    """In these."""
    first: Difference | None
    """None: all are equal to the last digit."""
    surroundings: list[tuple[str, Any, Any]] | None
    """(what, then, now): data, versions and device, as far as they are not those of the run; None: it does not tell."""
    is_deterministic: bool
    """Whether the same numbers come twice on this device with this config."""


def how_far(run: RunDir, asked: int | None) -> int:
    """Steps to be taken once more: as many as asked (else `NUM_STEPS`) and not more than the run has.

    Raises:
        CheckpointError: when the run has no figures.
        ConfigError: when it has none up to the step that is asked for.
    """
    steps = [step for step, kind in _records(run) if kind == "train"]
    if not steps:
        raise CheckpointError(
            f"{run.path}: nothing to compare with (no figures of training in {run.metrics.name}); give a run that has "
            "reached its first log line"
        )
    if asked is not None and asked < steps[0]:
        raise ConfigError(
            f"--steps {asked}: the first figures of {run.path} are of step {steps[0]}; give at least that"
        )
    return min(max(asked or NUM_STEPS, steps[0]), steps[-1])


def reproduce(run: RunDir, num_steps: int, progress: Progress) -> Reproduced:
    """Trains from the run's config in a temporary folder, and compares the figures up to a step.

    All is made anew, the tokenizer too; only tokenised data are taken from the cache when they are those of the same
    text and tokenizer. The config is that of the run, `max_steps` with the schedule included. What it leaves open is
    taken from the oldest checkpoint: the precision, and the number of threads.

    Args:
        run: finished or not, resumed or not.
        num_steps: see `how_far`.
        progress: where it is shown.

    Raises:
        MtformerError: on anything that would stop a training.
        InterruptedRunError: after a signal; nothing is left behind.
    """
    if distributed.is_torchelastic_launched():
        raise ConfigError("`mtformer reproduce` trains in one process; start it without torchrun")
    made_with = _made_with(run)
    if made_with.get("processes", 1) != 1:
        raise ConfigError(
            f"{run.path}: was trained by {made_with['processes']} processes; only runs of one can be reproduced"
        )
    config = _same(load_config(run.config).config, made_with)
    with tempfile.TemporaryDirectory(prefix="mtformer-") as folder, _as_many_threads(made_with):
        again = RunDir(Path(folder) / "again")
        # A step more, so that a validation after the last one is not left in its middle.
        stop = StopAt(num_steps + 1, progress)
        try:
            train_experiment(config, again, stop, resume=False, overwrite=False)
        except InterruptedRunError as stopped:
            if stopped.step != stop.step:
                raise
        is_deterministic = pick_device(config.training.device).type == "cpu" or config.training.deterministic
        return _compare(run, again, num_steps, made_with, is_deterministic)


def _compare(
    run: RunDir, again: RunDir, num_steps: int, made_with: dict[str, Any], is_deterministic: bool
) -> Reproduced:
    old, new, now = _records(run), _records(again), _made_with(again)
    common = [key for key in old if key in new and key[0] <= num_steps]
    if not common:
        raise MtformerError(
            f"{run.path}: its config gives figures at other steps; training.log_every was changed in it"
        )
    pairs = [
        Difference(step, kind, name, old[step, kind][name], new[step, kind][name])
        for step, kind in common
        for name in old[step, kind]
        if name in new[step, kind]
    ]
    return Reproduced(
        num_records=len(common),
        num_figures=len(pairs),
        first=next((one for one in pairs if repr(one.then) != repr(one.now)), None),
        surroundings=[(what, then, now.get(what)) for what, then in made_with.items() if then != now.get(what)]
        if made_with
        else None,
        is_deterministic=is_deterministic,
    )


def _records(run: RunDir) -> Records:
    return {
        (record["step"], record["kind"]): {
            name: value for name, value in record.items() if name not in (*TIMINGS, "step", "kind")
        }
        for record in read_records(run.metrics)
        if record["kind"] in KINDS
    }


def _made_with(run: RunDir) -> dict[str, Any]:
    """`surroundings` of the run's oldest checkpoint; empty when it has none."""
    for step in run.steps():
        found: dict[str, Any] = read_meta(run.checkpoint(step)).get("made_with", {})
        return found
    return {}


def _same(config: Config, made_with: dict[str, Any]) -> Config:
    """The config without what leaves the figures as they are, and with the precision that `auto` gave."""
    changes: dict[str, Any] = {"keep_last": 1, "keep_best": 1, "average_last": 0, "tensorboard": False, "wandb": None}
    if config.training.precision == "auto" and "precision" in made_with:
        with contextlib.suppress(DeviceError):  # this device may not have it, which is told as a difference
            changes["precision"] = pick_precision(made_with["precision"], pick_device(config.training.device))
    training = config.training.model_copy(update=changes)
    return config.model_copy(update={"training": training, "data": config.data.model_copy(update={"test": {}})})


@contextlib.contextmanager
def _as_many_threads(made_with: dict[str, Any]) -> Iterator[None]:
    """Inside, as many threads as the run had: sums on a CPU depend on it."""
    before, found = torch.get_num_threads(), re.search(r"(\d+) threads$", made_with.get("device", ""))
    torch.set_num_threads(int(found[1]) if found else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
