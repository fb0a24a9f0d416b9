"""What the runs of a sweep will need, from a rehearsal of each: time and disk."""

import tempfile
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import torch

from mtformer.config.loading import dump_config, resolve_paths
from mtformer.config.schema import Config
from mtformer.device import pick_device, pick_precision, set_up_memory
from mtformer.errors import MtformerError
from mtformer.experiment.preflight import rehearse
from mtformer.experiment.prepare import prepare_experiment
from mtformer.experiment.sweep import PlannedRun, Sweep
from mtformer.experiment.train import make_step


class Estimate(NamedTuple):
    """Of one run."""

    seconds: float
    """Training, and validation at the most."""
    disk_bytes: int
    free_bytes: int


def estimate(sweep: Sweep, num_threads: int, advance: Callable[[], object] = lambda: None) -> list[Estimate]:
    """Rehearses each run; runs that differ in their seed alone are rehearsed once, equal tokenizers are made once.

    Args:
        sweep: the plan.
        num_threads: that a run will have.
        advance: called for each run.

    Raises:
        MtformerError: on the mistake that a run would have met, with the run's name.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    set_up_memory()
    rehearsed: dict[str, Estimate] = {}
    estimates = []
    try:
        with tempfile.TemporaryDirectory(prefix="mtformer-") as folder:
            for run in sweep.runs:
                key = _without_seed(run.config)
                if key not in rehearsed:
                    rehearsed[key] = _rehearse(run, Path(folder))
                estimates.append(rehearsed[key])
                advance()
    finally:
        torch.set_num_threads(threads)
    return estimates


def finishing_time(seconds: Sequence[float], jobs: int) -> float:
    """Of runs that take so long, started in this order, so many at a time."""
    ends = [0.0] * jobs
    for one in seconds:
        ends[ends.index(min(ends))] += one
    return max(ends)


def _rehearse(run: PlannedRun, folder: Path) -> Estimate:
    config = resolve_paths(run.config)
    try:
        device = pick_device(config.training.device)
        precision = pick_precision(config.training.precision, device)
        prepared = prepare_experiment(config, folder / _tokenizer_key(config))
        found = rehearse(config, prepared, make_step(config, prepared, device, precision), run.run)
    except MtformerError as error:
        raise type(error)(f"run {run.name}: {error}") from error
    return Estimate(found.training_seconds + found.validation_seconds, found.disk_bytes, found.free_bytes)


def _without_seed(config: Config) -> str:
    training = config.training.model_copy(update={"seed": 0})
    return dump_config(config.model_copy(update={"training": training}))


def _tokenizer_key(config: Config) -> str:
    """The same for configs that have the same tokenizer."""
    parts = [config.data.model_dump_json(), config.tokenizer.model_dump_json(), str(config.training.init_from)]
    return sha256("\n".join(parts).encode()).hexdigest()
