"""Repeat a training run and compare the results: `train --verify-resume` and `reproduce`."""

import contextlib
import multiprocessing
import os
import re
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator
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
from mtformer.training.budget import Plan, Plans
from mtformer.training.checkpoint import load_trainer_state
from mtformer.training.figures import TIMINGS
from mtformer.training.history import read_records
from mtformer.training.progress import Progress
from mtformer.weights import read_weights

NUM_STEPS = 20
"""Number of steps of `train --verify-resume`."""
STOP_AT = NUM_STEPS // 2
"""Step after which it stops and resumes."""
VALIDATE_EVERY = 7
"""Its validations occur before the stop, after it and at the end."""
LOG_EVERY = 4
"""One of its log intervals includes the stop."""
REPRODUCED_STEPS = 50
"""Default number of steps of `reproduce`."""
SECONDS = ("seconds", "seconds_before")
"""Names of times in the trainer state, which are not compared."""

Part = Callable[[Config, Path, int | None], None]
"""Function (config, run directory, stop step) that starts or resumes the run and trains to that step or the end."""
Records = dict[tuple[int, str], dict[str, Any]]
"""Values of metrics.jsonl by step and kind (train, dev or plan)."""


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


# ---- train --verify-resume ------------------------------------------------------------------------------------------


def verify_resume(config: Config, part: Part | None = None) -> list[Compared]:
    """Train `NUM_STEPS` steps twice in a temporary folder, stopping and resuming the second time, and compare.

    Args:
        config: config of the run, of which only lengths and intervals are changed.
        part: function that each process runs (default: `train_part`).

    Raise MtformerError on an error in training.
    """
    _refuse_torchrun("--verify-resume starts its own processes")
    part = part or partial(train_part, plans={LOG_EVERY: Plan(NUM_STEPS)})
    config = _config_of_verification(config)

    with tempfile.TemporaryDirectory(prefix="mtformer-") as folder:
        whole = RunDir(Path(folder) / "whole")
        halves = RunDir(Path(folder) / "halves")
        log.info("verification 1 of 3: training %d steps without stopping", NUM_STEPS)
        _in_new_process(part, config, whole.path, None)

        log.info("verification 2 of 3: training %d steps, then stopping", STOP_AT)
        _in_new_process(part, config, halves.path, STOP_AT)
        assert halves.steps()[-1] == STOP_AT, "the run did not stop at the requested step"

        log.info("verification 3 of 3: resuming at step %d, training to step %d", STOP_AT, NUM_STEPS)
        _in_new_process(part, config, halves.path, None)
        return compare_runs(whole, halves)


def _config_of_verification(config: Config) -> Config:
    """Return the config of a short deterministic run on the device and in the precision that `auto` selects."""
    training = config.training
    device = pick_device(training.device)
    # Measurements vary, so `auto` is resolved once.
    precision = pick_precision(training.precision, device)
    consistency_start = min(training.consistency_start, STOP_AT // 2)

    values = {
        "training.keep_last": 1,
        "training.deterministic": True,
        "training.device": device.type,
        "training.precision": precision,
        "training.max_steps": NUM_STEPS,
        "training.max_epochs": None,
        "training.patience": None,
        "training.consistency_start": consistency_start,
        "training.validate_every": VALIDATE_EVERY,
        "training.log_every": LOG_EVERY,
    }
    config = without_side_outputs(resolve_paths(config))
    return config.with_values(values)


# ---- reproduce ------------------------------------------------------------------------------------------------------


def steps_to_reproduce(run: RunDir, requested: int | None) -> int:
    """Return the number of steps to reproduce: `requested` (default `REPRODUCED_STEPS`), limited to those of the run.

    Raise CheckpointError if the run has no training metrics, ConfigError if it has none up to the requested step.
    """
    steps = [step for step, kind in _records(run) if kind == "train"]
    if not steps:
        raise CheckpointError(
            f"{run.path}: nothing to compare, because {run.metrics.name} has no training metrics; give a run that has "
            "reached its first log line"
        )

    first_step = steps[0]
    last_step = steps[-1]
    if requested is None:
        num_steps = max(REPRODUCED_STEPS, first_step)
    elif requested < first_step:
        raise ConfigError(
            f"--steps {requested}: {run.path} has no metrics before step {first_step}; give at least {first_step}"
        )
    else:
        num_steps = requested
    return min(num_steps, last_step)


def reproduce(run: RunDir, num_steps: int, progress: Progress) -> Reproduced:
    """Train from the run's config in a temporary folder, and compare the metrics up to a step.

    Everything is repeated, including tokenizer training; tokenized data is read from the cache if text and tokenizer
    are unchanged. The config, including `max_steps`, is that of the run before changes after this step; the number of
    threads, and the precision that `auto` selected, are those of its oldest checkpoint, before such changes.

    Args:
        run: the run.
        num_steps: number of steps to compare.
        progress: display of the progress of the training.
    """
    _refuse_torchrun("`mtformer reproduce` trains in one process")
    for message in changed_logs(run, run.metrics):
        log.warning(message)

    before = _values_before_resumes(run, num_steps)
    environment = _recorded_environment(run)
    for name in environment.keys() & before.keys():
        environment[name] = before[name]
    num_processes = environment.get("processes", 1)
    if num_processes != 1:
        raise ConfigError(
            f"{run.path}: was trained by {num_processes} processes; give a run that one process "
            "trained, because only such runs can be reproduced"
        )

    config = _config_before_resumes(run, before, num_steps)
    device = pick_device(config.training.device)
    config = _config_of_repetition(config, environment, device)
    with tempfile.TemporaryDirectory(prefix="mtformer-") as folder, use_threads(_num_threads(environment)):
        repeated = RunDir(Path(folder) / "again")
        _repeat(run, config, repeated, num_steps, progress)
        new_environment = _recorded_environment(repeated)
        records = _records(run)
        new_records = _records(repeated)

    figures, new_figures = _common_figures(records, new_records, num_steps)
    if not figures:
        raise MtformerError(
            f"{run.path}: no metrics at the steps of its config, so nothing can be compared; training.log_every was "
            "changed when it was resumed, so give another run"
        )
    values = _by_label(figures)
    new_values = _by_label(new_figures)
    compared = _compare("figures", values, new_values)
    changes = _environment_changes(environment, new_environment) if environment else None
    is_deterministic = device.type == "cpu" or config.training.deterministic
    return Reproduced(
        num_records=len(figures),
        num_figures=len(values),
        first=compared.difference,
        environment=changes,
        is_deterministic=is_deterministic,
    )


def _values_before_resumes(run: RunDir, num_steps: int) -> dict[str, Any]:
    """Return the old values of the settings and the environment that a run was resumed with at a step or after it."""
    resumes = [record for record in read_records(run.metrics) if record["kind"] == "resume"]
    before: dict[str, Any] = {}
    for record in reversed(resumes):  # the earliest change has the oldest value
        if record["step"] >= num_steps:
            for name, (old_value, _) in record.get("changes", {}).items():
                before[name] = old_value
    return before


def _recorded_environment(run: RunDir) -> dict[str, Any]:
    """Return the environment recorded in the run's oldest checkpoint; empty without checkpoints."""
    steps = run.steps()
    if not steps:
        return {}
    return dict(read_meta(run.checkpoint(steps[0]))["made_with"])


def _config_before_resumes(run: RunDir, before: dict[str, Any], num_steps: int) -> Config:
    """Return the config of a run before it was resumed with changes.

    Args:
        run: the run.
        before: result of `_values_before_resumes`.
        num_steps: number of steps to reproduce.

    Raise ConfigError if a resume added a source that influences the metrics: the old config had none in its place.
    """
    config = load_config(run.config).config
    keys = {dotted(path) for path in leaves(config)}
    values = {}
    for key, old_value in before.items():
        if not _is_source_key(key):
            if key in keys:  # other names are those of the environment
                values[key] = old_value
        elif old_value is not None:
            values[key] = old_value
        elif key in keys and not key.startswith("data.test."):
            raise ConfigError(
                f"{run.path}: cannot be reproduced, because a resume after step {num_steps} added {key}; give another "
                "run"
            )
    return config.with_values(values)


def _is_source_key(key: str) -> bool:
    """Return True for a key of a source, which cannot be null."""
    match key.split("."):
        case ["data", "train" | "corpora" | "dev" | "test", _, *_]:
            return True
        case _:
            return False


def _config_of_repetition(config: Config, environment: dict[str, Any], device: torch.device) -> Config:
    """Return the config without side outputs, and with the precision that `auto` selected in an environment."""
    values: dict[str, Any] = {"training.keep_last": 1}
    if config.training.precision == "auto" and environment:
        with contextlib.suppress(DeviceError):  # reported as a difference if this device does not support it
            values["training.precision"] = pick_precision(environment["precision"], device)
    return without_side_outputs(config).with_values(values)


def _num_threads(environment: dict[str, Any]) -> int:
    """Return the number of threads in an environment, or that of this process if it has none."""
    device = environment.get("device", "")
    threads = re.search(r"(\d+) threads$", device)
    return int(threads[1]) if threads else torch.get_num_threads()


def _repeat(run: RunDir, config: Config, repeated: RunDir, num_steps: int, progress: Progress) -> None:
    """Train the first steps of a run again, in another run directory; raise MtformerError if it ends earlier."""
    plans: dict[int, Plan] = {}
    for (step, kind), record in _records(run).items():
        if kind == "plan":
            plans[step] = Plan.from_record(record)

    # Train one more step, so that a validation at the last compared step is complete.
    train_part(config, repeated.path, num_steps + 1, progress, plans)

    last_step = repeated.steps()[-1]
    if last_step < num_steps:
        raise MtformerError(
            f"{run.path}: a resume changed its limits, so the repetition ended at step {last_step}; give a lower "
            "--steps"
        )


def _common_figures(records: Records, new_records: Records, num_steps: int) -> tuple[Records, Records]:
    """Return the records of both runs up to a step, with the values that both have."""
    figures: Records = {}
    new_figures: Records = {}
    for key, record in records.items():
        step, _ = key
        if step <= num_steps and key in new_records:
            new_record = new_records[key]
            common = [name for name in record if name in new_record]
            figures[key] = {name: record[name] for name in common}
            new_figures[key] = {name: new_record[name] for name in common}
    return figures, new_figures


def _by_label(records: Records) -> dict[str, Any]:
    """Return the values of records by a label such as `step 4: train loss`."""
    values = {}
    for (step, kind), record in records.items():
        for name, value in record.items():
            values[f"step {step}: {kind} {name}"] = value
    return values


def _environment_changes(then: dict[str, Any], now: dict[str, Any]) -> list[Difference]:
    changes = []
    for name, old_value in then.items():
        new_value = now.get(name)
        if old_value != new_value:
            changes.append(Difference(name, old_value, new_value))
    return changes


# ---- parts of a training --------------------------------------------------------------------------------------------


def train_part(
    config: Config, folder: Path, stop_at: int | None, progress: Progress | None = None, plans: Plans | None = None
) -> None:
    """Train like `mtformer train --resume auto`, and stop at a step as if a scheduler had sent SIGTERM.

    Args:
        config: config of the run.
        folder: run directory.
        stop_at: step at which this process gets SIGTERM; None: train to the end.
        progress: display of the progress, if any.
        plans: numbers of steps to follow with `max_minutes` (see `Trainer`), because plans depend on measured times.
    """
    stopping_progress = StopAt(stop_at, progress)
    try:
        train_experiment(config, RunDir(folder), stopping_progress, "auto", overwrite=False, plans=plans)
    except InterruptedRunError as stopped:
        if stopped.step != stop_at:
            raise


class StopAt:
    """`Progress` that stops training at a given step, and forwards all other calls to another `Progress`, if any."""

    def __init__(self, step: int | None, inner: Progress | None = None) -> None:
        self.step = step
        self.inner = inner

    def prepared(self, num_pairs: int, share: float) -> None:
        """Forward the progress; see `mtformer.training.progress.Progress`."""
        if self.inner is not None:
            self.inner.prepared(num_pairs, share)

    def advance(self, step: int, num_steps: int, epoch: int, figures: dict[str, float] | None) -> None:
        """Stop training, or forward the progress; see `mtformer.training.progress.Progress`."""
        if step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)
            return
        if self.inner is None:
            return

        # The step at which training stops is not finished.
        shown_steps = num_steps if self.step is None else self.step - 1
        if figures is not None and step < num_steps:
            seconds_left = figures["seconds_left"] * (shown_steps - step) / (num_steps - step)
            figures = {**figures, "seconds_left": seconds_left}
        self.inner.advance(step, shown_steps, epoch, figures)


def _refuse_torchrun(why: str) -> None:
    if distributed.is_torchelastic_launched():
        raise ConfigError(f"{why}; start it without torchrun")


def _in_new_process(part: Part, config: Config, folder: Path, stop_at: int | None) -> None:
    """Run one part of the training in a new process, and raise its user errors in this process."""
    message_file = folder.with_suffix(".error")
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_run_part, args=(part, config, folder, stop_at, message_file))
    process.start()
    try:
        process.join()
    finally:
        process.kill()  # if this process is interrupted
        process.join()

    if message_file.exists():
        raise MtformerError(message_file.read_text(encoding="utf-8"))
    if process.exitcode == -signal.SIGKILL:
        raise MtformerError(
            "the system killed the training process, possibly for lack of memory; free memory, or use smaller batches"
        )
    if process.exitcode != 0:
        raise RuntimeError(f"the verification run exited with code {process.exitcode}")


def _run_part(part: Part, config: Config, folder: Path, stop_at: int | None, message_file: Path) -> None:
    try:
        part(config, folder, stop_at)
    except (MtformerError, OSError) as error:
        write_text(message_file, str(error))


# ---- comparison of runs ---------------------------------------------------------------------------------------------


def compare_runs(first_run: RunDir, second_run: RunDir) -> list[Compared]:
    """Compare the latest checkpoints, checkpoint steps and metrics bitwise, excluding timings and `resume` records."""
    first_results = _results(first_run)
    second_results = _results(second_run)
    compared: list[Compared] = []
    for part, results in first_results.items():
        first_values = dict(_leaves(results))
        second_values = dict(_leaves(second_results[part]))
        compared.append(_compare(part, first_values, second_values))
    return compared


def _results(run: RunDir) -> dict[str, Any]:
    """Return the results of a run as named parts, each of which consists of nested dicts and lists."""
    folder = run.checkpoint(run.steps()[-1])
    state = load_trainer_state(folder)
    position = _without_timings(state.pop("position"))
    optimizer_state = {"optimizer": state.pop("optimizer"), "scaler": state.pop("scaler")}
    random_state = state.pop("rng")

    kinds = [record["kind"] for record in read_records(run.metrics)]
    metrics: dict[str, Any] = {}
    for (step, kind), record in _records(run).items():
        metrics[f"step {step}: {kind}"] = record
    metrics["lines"] = len(kinds) - kinds.count("resume")

    return {
        "weights": read_weights(folder / WEIGHTS),
        "optimizer state": optimizer_state,
        "random state": random_state,
        "position": {**position, **state},  # with the other parts of the state
        "metrics": metrics,
        "checkpoints": {"steps": run.steps()},
    }


def _records(run: RunDir) -> Records:
    """Return the records of metrics.jsonl about training, dev and plans, without timings."""
    records = {}
    for record in read_records(run.metrics):
        step = record.pop("step")
        kind = record.pop("kind")
        if kind != "resume":
            records[step, kind] = _without_timings(record)
    return records


def _without_timings(values: dict[str, Any]) -> dict[str, Any]:
    names_of_times = (*TIMINGS, *SECONDS)
    return {name: value for name, value in values.items() if name not in names_of_times}


def _leaves(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield the tensors and values in nested dicts and lists with their dotted paths."""
    items: Iterable[tuple[Any, Any]]
    if isinstance(tree, dict):
        items = tree.items()
    elif isinstance(tree, list | tuple):
        items = enumerate(tree)
    else:
        yield ".".join(path), tree
        return

    for key, branch in items:
        yield from _leaves(branch, (*path, str(key)))


def _compare(part: str, first_values: dict[str, Any], second_values: dict[str, Any]) -> Compared:
    """Compare the values of one part of the results, which are given by name."""
    difference = None
    for name in (*first_values, *second_values):
        first_value = first_values.get(name, "missing")
        second_value = second_values.get(name, "missing")
        if not _is_same(first_value, second_value):
            difference = Difference(name, first_value, second_value)
            break

    num_tensors = 0
    num_numbers = 0
    for value in first_values.values():
        if isinstance(value, Tensor):
            num_tensors += 1
            num_numbers += value.numel()
        elif type(value) in (int, float):  # not bool
            num_numbers += 1
    return Compared(part, num_tensors, num_numbers, difference)


def _is_same(first: Any, second: Any) -> bool:
    """Return True if two values have the same bits: NaN equals NaN, but 0.0 does not equal -0.0."""
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        has_same_layout = first.dtype == second.dtype and first.shape == second.shape
        if not has_same_layout:
            return False
        return torch.equal(_bits(first), _bits(second))
    return type(first) is type(second) and repr(first) == repr(second)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)
