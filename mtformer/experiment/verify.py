"""Repeat a training run and compare the results: `train --verify-resume` and `reproduce`."""

import contextlib
import json
import multiprocessing
import os
import re
import signal
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed

from mtformer.config.loading import leaves, load_config, resolve_paths, without_side_outputs
from mtformer.config.schema import Config
from mtformer.config.yaml_text import dotted
from mtformer.device import pick_device, pick_precision, use_threads
from mtformer.errors import CheckpointError, ConfigError, DeviceError, InterruptedRunError, MtformerError, log
from mtformer.experiment.runs import changed_logs
from mtformer.experiment.train import train_experiment
from mtformer.files import read_meta, write_text
from mtformer.run_dir import WEIGHTS, RunDir
from mtformer.training.budget import Plans
from mtformer.training.checkpoint import load_trainer_state
from mtformer.training.figures import TIMINGS
from mtformer.training.history import read_records
from mtformer.training.progress import Progress
from mtformer.weights import read_weights

NUM_STEPS = 20
STOP_AT = NUM_STEPS // 2
INTERVALS = {"validate_every": 7, "log_every": 4}
"""Validations occur before the stop, after it and at the end; one log interval includes the stop."""
REPRODUCED_STEPS = 50
SECONDS = ("seconds", "seconds_before")
SOURCE = re.compile(r"data\.(train|corpora|dev|test)\.")  # keys of sources, which cannot be set to null

Part = Callable[[Config, Path, int | None], None]
"""Function (config, run directory, stop step) that starts or resumes the run and trains to that step or the end."""


class Difference(NamedTuple):
    """Tensor or value that differs between two runs, or between the environments of a run then and now."""

    name: str
    then: Any
    now: Any


class Compared(NamedTuple):
    """Comparison of one part of the results of two runs."""

    what: str
    num_tensors: int
    num_numbers: int
    """Number of scalars, both in tensors and elsewhere."""
    difference: Difference | None
    """First difference, if any."""


class Reproduced(NamedTuple):
    """Comparison of the metrics of a run with those of a repeated run."""

    num_records: int
    """Number of records that occur in both runs."""
    num_figures: int
    """Number of values in these records."""
    first: Difference | None
    """First difference; None if all values are equal to the last digit."""
    environment: list[Difference] | None
    """Differing data, versions and device; None if no checkpoint of the run records them."""
    is_deterministic: bool
    """True if the device and config produce the same numbers every time."""


def verify_resume(config: Config, part: Part | None = None) -> list[Compared]:
    """Train `NUM_STEPS` steps twice in a temporary folder, stopping and resuming the second time, and compare.

    Only lengths and intervals of the config are changed. `part` is the function that each process runs (default:
    `train_part`). Raise MtformerError on an error in training.
    """
    _refuse_torchrun("--verify-resume starts its own processes")
    part = part or partial(train_part, plans={INTERVALS["log_every"]: NUM_STEPS})
    device = pick_device(config.training.device)
    # Measurements vary, so `auto` is resolved once.
    picked = {"device": device.type, "precision": pick_precision(config.training.precision, device)}
    start = min(config.training.consistency_start, STOP_AT // 2)
    length = {"max_steps": NUM_STEPS, "max_epochs": None, "patience": None, "consistency_start": start, **INTERVALS}
    config = without_side_outputs(resolve_paths(config), keep_last=1, deterministic=True, **picked, **length)
    with tempfile.TemporaryDirectory(prefix="mtformer-") as folder:
        whole, halves = RunDir(Path(folder) / "whole"), RunDir(Path(folder) / "halves")
        log.info("verification 1 of 3: training %d steps without stopping", NUM_STEPS)
        _in_new_process(part, config, whole.path, None)
        log.info("verification 2 of 3: training %d steps, then stopping", STOP_AT)
        _in_new_process(part, config, halves.path, STOP_AT)
        assert halves.steps()[-1] == STOP_AT, "the run did not stop at the requested step"
        log.info("verification 3 of 3: resuming at step %d, training to step %d", STOP_AT, NUM_STEPS)
        _in_new_process(part, config, halves.path, None)
        return compare_runs(whole, halves)


def steps_to_reproduce(run: RunDir, requested: int | None) -> int:
    """Return the number of steps to reproduce: `requested` (default `REPRODUCED_STEPS`), limited to those of the run.

    Raise CheckpointError if the run has no training metrics, ConfigError if it has none up to the requested step.
    """
    steps = [step for step, kind in _records(run) if kind == "train"]
    if not steps:
        raise CheckpointError(f"{run.path}: nothing to compare; give a run that has reached its first log line")
    if requested is not None and requested < steps[0]:
        raise ConfigError(f"--steps {requested}: {run.path} has no metrics before step {steps[0]}; give at least that")
    return min(max(requested or REPRODUCED_STEPS, steps[0]), steps[-1])


def reproduce(run: RunDir, num_steps: int, progress: Progress) -> Reproduced:
    """Train from the run's config in a temporary folder, and compare the metrics up to a step.

    Everything is repeated, including tokenizer training; tokenized data is read from the cache if text and tokenizer
    are unchanged. The config, including `max_steps`, is that of the run before changes after this step; the number of
    threads, and the precision that `auto` selected, are those of its oldest checkpoint, before such changes.
    """
    _refuse_torchrun("`mtformer reproduce` trains in one process")
    for message in changed_logs(run, run.metrics):
        log.warning(message)
    before, made_with = _before(run, num_steps), _made_with(run)
    made_with |= {key: value for key, value in before.items() if key in made_with}
    if (count := made_with.get("processes", 1)) != 1:
        raise ConfigError(f"{run.path}: was trained by {count} processes; only single-process runs can be reproduced")
    keys = set(map(dotted, leaves(load_config(run.config).config)))
    for key, old in before.items():
        if old is None and key in keys and re.match(r"data\.(train|corpora|dev)\.", key):
            raise ConfigError(f"{run.path}: cannot be reproduced, because a resume after step {num_steps} added {key}")
    own = {key: old for key, old in before.items() if (old is not None if SOURCE.match(key) else key in keys)}
    config = load_config(run.config, [f"{key}={json.dumps(old)}" for key, old in own.items()]).config
    device = pick_device(config.training.device)
    precision: dict[str, str] = {}
    if config.training.precision == "auto" and made_with:
        with contextlib.suppress(DeviceError):  # reported as a difference if this device does not support it
            precision["precision"] = pick_precision(made_with["precision"], device)
    config = without_side_outputs(config, keep_last=1, **precision)
    threads = re.search(r"(\d+) threads$", made_with.get("device", ""))
    num_threads = int(threads[1]) if threads else torch.get_num_threads()
    with tempfile.TemporaryDirectory(prefix="mtformer-") as folder, use_threads(num_threads):
        again = RunDir(Path(folder) / "again")
        # Train one more step, so that a validation at the last compared step is complete.
        plans = {step: record["max_steps"] for (step, kind), record in _records(run).items() if kind == "plan"}
        train_part(config, again.path, num_steps + 1, progress, plans)
        if again.steps()[-1] < num_steps:
            why = f"a resume changed its limits, so the repetition ended at step {again.steps()[-1]}"
            raise MtformerError(f"{run.path}: {why}; give a lower --steps")
        now = _made_with(again)
        changed = [Difference(what, then, now.get(what)) for what, then in made_with.items() if then != now.get(what)]
        old, new = _records(run), _records(again)
    common = [key for key in old if key in new and key[0] <= num_steps]
    if not common:
        raise MtformerError(f"{run.path}: no metrics at the steps of its config; training.log_every was changed")
    names = [(key, name) for key in common for name in old[key] if name in new[key]]
    sides = [{f"step {key[0]}: {key[1]} {name}": side[key][name] for key, name in names} for side in (old, new)]
    first = _compare("figures", *sides).difference
    is_deterministic = device.type == "cpu" or config.training.deterministic
    return Reproduced(len(common), len(names), first, changed if made_with else None, is_deterministic)


def train_part(
    config: Config, folder: Path, stop_at: int | None, progress: Progress | None = None, plans: Plans | None = None
) -> None:
    """Train like `mtformer train --resume auto`; at step `stop_at`, send this process SIGTERM as a scheduler would.

    With `max_minutes`, `plans` are followed (see `Trainer`), because plans depend on measured times.
    """
    try:
        train_experiment(config, RunDir(folder), StopAt(stop_at, progress), "auto", overwrite=False, plans=plans)
    except InterruptedRunError as stopped:
        if stopped.step != stop_at:
            raise


def compare_runs(one: RunDir, other: RunDir) -> list[Compared]:
    """Compare the latest checkpoints, checkpoint steps and metrics bitwise, excluding timings and `resume` records."""
    results, others = _results(one), _results(other)
    return [_compare(what, dict(_leaves(results[what])), dict(_leaves(others[what]))) for what in results]


class StopAt:
    """`Progress` that stops training at a given step, and forwards all other calls to another `Progress`, if any."""

    def __init__(self, step: int | None, inner: Progress | None = None) -> None:
        self.step, self.inner = step, inner

    def prepared(self, num_pairs: int, share: float) -> None:
        """Forward the progress; see `mtformer.training.progress.Progress`."""
        if self.inner is not None:
            self.inner.prepared(num_pairs, share)

    def advance(self, step: int, num_steps: int, epoch: int, figures: dict[str, float] | None) -> None:
        """Stop training, or forward the progress; see `mtformer.training.progress.Progress`."""
        if step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)
        elif self.inner is not None:
            shown_steps = num_steps if self.step is None else self.step - 1
            if figures is not None and step < num_steps:
                left = figures["seconds_left"] * (shown_steps - step) / (num_steps - step)
                figures = {**figures, "seconds_left": left}
            self.inner.advance(step, shown_steps, epoch, figures)


def _refuse_torchrun(why: str) -> None:
    if distributed.is_torchelastic_launched():
        raise ConfigError(f"{why}; start it without torchrun")


def _in_new_process(part: Part, config: Config, folder: Path, stop_at: int | None) -> None:
    """Run one part of the training in a new process, and raise its user errors in this process."""
    message = folder.with_suffix(".error")
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_run_part, args=(part, config, folder, stop_at, message))
    process.start()
    try:
        process.join()
    finally:
        process.kill()  # if this process is interrupted
        process.join()
    if message.exists():
        raise MtformerError(message.read_text(encoding="utf-8"))
    if process.exitcode == -signal.SIGKILL:
        raise MtformerError("the system killed the training process, possibly for lack of memory")
    if process.exitcode != 0:
        raise RuntimeError(f"the verification run exited with code {process.exitcode}")


def _run_part(part: Part, config: Config, folder: Path, stop_at: int | None, message: Path) -> None:
    try:
        part(config, folder, stop_at)
    except (MtformerError, OSError) as error:
        write_text(message, str(error))


def _made_with(run: RunDir) -> dict[str, Any]:
    """Return the environment recorded in the run's oldest checkpoint; empty without checkpoints."""
    steps = run.steps()
    return dict(read_meta(run.checkpoint(steps[0]))["made_with"]) if steps else {}


def _results(run: RunDir) -> dict[str, Any]:
    """Return the results of a run as named parts, each of which consists of nested dicts and lists."""
    folder = run.checkpoint(run.steps()[-1])
    state = load_trainer_state(folder)
    position = state.pop("position")
    num_lines = sum(record["kind"] != "resume" for record in read_records(run.metrics))
    metrics = {f"step {step}: {kind}": figures for (step, kind), figures in _records(run).items()}
    return {
        "weights": read_weights(folder / WEIGHTS),
        "optimizer state": {key: state.pop(key) for key in ("optimizer", "scaler")},
        "random state": state.pop("rng"),
        "position": {**_without_timings(position), **state},
        "metrics": {**metrics, "lines": num_lines},
        "checkpoints": {"steps": run.steps()},
    }


def _before(run: RunDir, num_steps: int) -> dict[str, Any]:
    """Return the old values of the settings and the environment that a run was resumed with at a step or after it."""
    records = [one for one in read_records(run.metrics) if one["kind"] == "resume" and one["step"] >= num_steps]
    return {key: pair[0] for one in reversed(records) for key, pair in one.get("changes", {}).items()}


def _records(run: RunDir) -> dict[tuple[int, str], dict[str, Any]]:
    """Return the values in metrics.jsonl by step and kind (train, dev or plan), without timings."""
    records = [record for record in read_records(run.metrics) if record["kind"] != "resume"]
    return {(record.pop("step"), record.pop("kind")): _without_timings(record) for record in records}


def _without_timings(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in (*TIMINGS, *SECONDS)}


def _leaves(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield the tensors and values in nested dicts and lists with their dotted paths."""
    if isinstance(tree, dict | list | tuple):
        for key, branch in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from _leaves(branch, (*path, str(key)))
    else:
        yield ".".join(path), tree


def _compare(what: str, one: dict[str, Any], other: dict[str, Any]) -> Compared:
    pairs = {name: (one.get(name, "missing"), other.get(name, "missing")) for name in (*one, *other)}
    different = (Difference(name, *pair) for name, pair in pairs.items() if not _is_same(*pair))
    tensors = [value for value in one.values() if isinstance(value, Tensor)]
    num_scalars = sum(type(value) in (int, float) for value in one.values())
    num_numbers = num_scalars + sum(tensor.numel() for tensor in tensors)
    return Compared(what, len(tensors), num_numbers, next(different, None))


def _is_same(a: Any, b: Any) -> bool:
    """Return True if two values have the same bits: NaN equals NaN, but 0.0 does not equal -0.0."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        bits = [tensor.contiguous().flatten().view(torch.uint8) for tensor in (a, b)]
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*bits)
    return type(a) is type(b) and repr(a) == repr(b)
