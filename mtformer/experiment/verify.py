"""`--verify-resume`: some steps of a config without a stop, the same with one, and the two compared bit by bit."""

import json
import logging
import multiprocessing
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed

from mtformer.config.loading import dump_config, resolve_paths
from mtformer.config.schema import Config
from mtformer.device import pick_device, pick_precision
from mtformer.errors import ConfigError, InterruptedRunError, MtformerError
from mtformer.experiment.train import train_experiment
from mtformer.rundir import WEIGHTS, RunDir, write_config
from mtformer.training.checkpoint import load_trainer_state
from mtformer.training.metrics import Progress
from mtformer.weights import read_weights

NUM_STEPS = 20
STOP_AT = NUM_STEPS // 2
INTERVALS = {"validate_every": 7, "log_every": 4}
"""A validation before the stop and one after it (and one at the end); a log line whose steps lie on both sides."""
TIMINGS = frozenset(("seconds", "tokens_per_second", "waiting_for_data", "seconds_per_step", "memory_gb"))
"""Figures of the clock and the machine: no two runs have the same."""
log = logging.getLogger("mtformer")

Leg = Callable[[Config, Path, int | None], None]
"""(config, run directory, step to stop at) -> trains from where the run stands until then, or to its end."""


class Compared(NamedTuple):
    """One part of what two runs left behind."""

    what: str
    num_tensors: int
    num_numbers: int
    """In tensors and outside of them."""
    first_difference: str | None
    """Name of the first tensor or value that is not the same in both."""


def verify_resume(config: Config, leg: Leg | None = None) -> list[Compared]:
    """Trains `NUM_STEPS` steps in a temporary folder without a stop, and again with a stop, resumed in a new process.

    All but lengths and intervals is as the config says.

    Args:
        config: the experiment.
        leg: what each process runs; default `train_leg`.

    Raises:
        MtformerError: on anything that would have stopped the training too.
    """
    if distributed.is_torchelastic_launched():
        raise ConfigError("--verify-resume starts its own processes; start it without torchrun")
    leg, config = leg or train_leg, _shortened(resolve_paths(config))
    with tempfile.TemporaryDirectory(prefix="mtformer-") as folder:
        whole, halves = RunDir(Path(folder) / "whole"), RunDir(Path(folder) / "halves")
        log.info("verifying, 1 of 3: %d steps without a stop", NUM_STEPS)
        _in_new_process(leg, config, whole.path, None)
        # To train the tokenizer once more could take longer than all the rest, and would show nothing about resuming.
        shutil.copytree(whole.tokenizer, halves.tokenizer)
        write_config(halves, dump_config(config))
        log.info("verifying, 2 of 3: %d steps and a stop", STOP_AT)
        _in_new_process(leg, config, halves.path, STOP_AT)
        assert halves.steps()[-1] == STOP_AT, "the run did not stop where it was asked to"
        log.info("verifying, 3 of 3: resumed at step %d, to step %d", STOP_AT, NUM_STEPS)
        _in_new_process(leg, config, halves.path, None)
        return compare_runs(whole, halves)


def train_leg(config: Config, folder: Path, stop_at: int | None) -> None:
    """Trains as `mtformer train --resume auto` does; at `stop_at` it sends itself the SIGTERM of a cluster."""
    try:
        train_experiment(config, RunDir(folder), StopAt(stop_at), resume="auto", overwrite=False)
    except InterruptedRunError as stopped:
        if stopped.step != stop_at:
            raise


def compare_runs(one: RunDir, other: RunDir) -> list[Compared]:
    """The newest checkpoints of two runs, which checkpoints there are, and the metrics, compared to the last bit.

    Left out is what the clock has a part in, and `resume` lines.
    """
    sides = [_what_is_left(run) for run in (one, other)]
    return [_compare(what, dict(_leaves(sides[0][what])), dict(_leaves(sides[1][what]))) for what in sides[0]]


class StopAt:
    """Progress that asks the training to stop; it shows nothing, or what comes before that by another one."""

    def __init__(self, step: int | None, shown: Progress | None = None) -> None:
        self.step, self.shown = step, shown

    def prepared(self, num_pairs: int, share: float) -> None:
        """Some pairs are tokenised; see `mtformer.training.metrics.Progress`."""
        if self.shown is not None:
            self.shown.prepared(num_pairs, share)

    def advance(self, step: int, epoch: int, figures: dict[str, float] | None) -> None:
        """A step is done; see `mtformer.training.metrics.Progress`."""
        if step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)
        elif self.shown is not None:
            self.shown.advance(step, epoch, figures)


def _shortened(config: Config) -> Config:
    """The config for a few steps. Device and precision are picked here, once: `auto` measures, and could differ."""
    device = pick_device(config.training.device)
    precision = pick_precision(config.training.precision, device)
    picked = {"device": device.type, "precision": precision, "deterministic": True}
    length = {"max_steps": NUM_STEPS, "max_epochs": None, "patience": None, **INTERVALS}
    kept = {"keep_last": 1, "keep_best": 1, "average_last": 0, "tensorboard": False, "wandb": None}
    training = config.training.model_copy(update={**picked, **length, **kept})
    data = config.data.model_copy(update={"test": {}})
    return config.model_copy(update={"training": training, "data": data})


def _in_new_process(leg: Leg, config: Config, folder: Path, stop_at: int | None) -> None:
    """Runs a leg and waits for its end; a mistake of the user that it met is raised here."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run_leg, args=(sender, leg, config, folder, stop_at))
    process.start()
    sender.close()
    try:
        mistake = receiver.recv()
    except EOFError:
        process.join()
        if process.exitcode == -signal.SIGKILL:
            raise MtformerError("the training was killed by the system, perhaps for want of memory") from None
        raise RuntimeError(f"the training to be verified ended with exit code {process.exitcode}") from None
    finally:
        process.kill()  # when we are interrupted, it does not train on
        process.join()
    if mistake is not None:
        raise MtformerError(mistake)


def _run_leg(sender: Connection, leg: Leg, config: Config, folder: Path, stop_at: int | None) -> None:
    try:
        leg(config, folder, stop_at)
    except (MtformerError, OSError) as error:
        sender.send(str(error))
    else:
        sender.send(None)


def _what_is_left(run: RunDir) -> dict[str, Any]:
    folder = run.checkpoint(run.steps()[-1])
    state = load_trainer_state(folder)
    position = state.pop("position")
    return {
        "weights": read_weights(folder / WEIGHTS),
        "optimizer state": {key: state.pop(key) for key in ("optimizer", "scaler")},
        "random state": state.pop("rng"),
        "position": {**_without_timings(position), **state},
        "metrics": _metrics(run),
        "checkpoints": {"steps": run.steps()},
    }


def _metrics(run: RunDir) -> dict[str, Any]:
    """Each line of metrics.jsonl, by its number and what it is about."""
    rows = [json.loads(line) for line in run.metrics.read_text(encoding="utf-8").splitlines()]
    rows = [_without_timings(row) for row in rows if row["kind"] != "resume"]
    return {f"line {number} ({row['kind']}, step {row['step']})": row for number, row in enumerate(rows, 1)}


def _without_timings(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in TIMINGS}


def _leaves(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Tensors and values of nested dicts and lists, by dotted path."""
    if isinstance(tree, dict | list | tuple):
        for key, branch in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from _leaves(branch, (*path, str(key)))
    else:
        yield ".".join(path), tree


def _compare(what: str, one: dict[str, Any], other: dict[str, Any]) -> Compared:
    names = [*one, *(name for name in other if name not in one)]
    different = (name for name in names if not _is_same(one.get(name, "missing"), other.get(name, "missing")))
    tensors = [value for value in one.values() if isinstance(value, Tensor)]
    num_scalars = sum(type(value) in (int, float) for value in one.values())
    num_numbers = num_scalars + sum(tensor.numel() for tensor in tensors)
    return Compared(what, len(tensors), num_numbers, next(different, None))


def _is_same(a: Any, b: Any) -> bool:
    """Whether two values are the same bits; a NaN is itself here, and 0.0 is not -0.0."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        bits = [tensor.contiguous().flatten().view(torch.uint8) for tensor in (a, b)]
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*bits)
    return type(a) is type(b) and repr(a) == repr(b)
