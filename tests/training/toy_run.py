"""Runs of the toy model that are stopped, killed, resumed, and compared exactly."""

import json
import os
import signal
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from toy_training import toy_batch, toy_batches, toy_config, toy_step

from mtformer.config.schema import Config
from mtformer.data.batching.batches import Batch
from mtformer.files import read_meta
from mtformer.run_dir import TRAINER_STATE, WEIGHTS, RunDir
from mtformer.training.checkpoint import newest_good
from mtformer.training.figures import TIMINGS
from mtformer.training.history import read_records
from mtformer.training.loop import Trainer
from mtformer.training.resuming import resume_trainer
from mtformer.training.validation import Decoded, DecodeDev, DevData

MADE_WITH = {"training data": "toy"}


class Killed(BaseException):
    """Ends a run immediately, like SIGKILL; never caught."""


class Quiet:
    """Progress display that can send a signal, or raise `Killed`, at a step."""

    def __init__(
        self, signal_at: int | None = None, number: signal.Signals = signal.SIGTERM, kill_at: int | None = None
    ) -> None:
        self.signal_at, self.number, self.kill_at = signal_at, number, kill_at
        self.figures: list[dict[str, float]] = []

    def prepared(self, num_pairs: int, share: float) -> None:
        pass

    def advance(self, step: int, num_steps: int, epoch: int, figures: dict[str, float] | None) -> None:
        if figures is not None:
            self.figures.append(figures)
        if step == self.signal_at:
            os.kill(os.getpid(), self.number)
        if step == self.kill_at:
            raise Killed


def trainer(
    config: Config,
    folder: Path,
    progress: Quiet | None = None,
    decode: DecodeDev | None = None,
    dev_batches: Callable[[], Iterable[Batch]] | None = None,
    made_with: dict[str, Any] | None = None,
) -> Trainer:
    folder.mkdir(exist_ok=True)
    return Trainer(
        config,
        RunDir(folder),
        toy_step(config),
        partial(toy_batches, max_epochs=config.training.max_epochs),
        DevData(dev_batches or (lambda: [toy_batch(99)]), decode or (lambda progress: Decoded({}, []))),
        progress or Quiet(),
        made_with or MADE_WITH,
    )


def resumed(config: Config, folder: Path, *rest: Any, **named: Any) -> Trainer:
    """Return a trainer that has resumed from the latest intact checkpoint of a folder."""
    again = trainer(config, folder, *rest, **named)
    checkpoint = newest_good(again.run)
    if checkpoint is not None:
        torch.manual_seed(12345)  # random numbers drawn before resuming must have no effect
    resume_trainer(again, checkpoint)
    return again


def finished(folder: Path, *rest: Any, **settings: Any) -> RunDir:
    """Train without interruption and return the run."""
    trainer(toy_config(**settings), folder, *rest).train()
    return RunDir(folder)


def given(values: Iterable[float]) -> DecodeDev:
    """Return a decoding function that gives these BLEU scores."""
    rest = iter(values)
    return lambda progress: Decoded({"bleu": next(rest)}, [("a", "b", "c")])


def assert_same_run(one: RunDir, other: RunDir) -> None:
    """Check that checkpoints and log lines are identical, except for times and `resume` lines."""
    assert names(one.checkpoints) == names(other.checkpoints)
    assert lines(one) == lines(other)
    assert read_records(one.samples) == read_records(other.samples)
    for step in one.steps():
        assert_same_checkpoint(one.checkpoint(step), other.checkpoint(step))


def assert_same_checkpoint(one: Path, other: Path) -> None:
    metas, states = [read_meta(folder) for folder in (one, other)], [state(folder) for folder in (one, other)]
    for meta in metas:
        del meta["sha256"][TRAINER_STATE], meta["logs"]  # they contain times
    assert metas[0] == metas[1]
    assert (one / WEIGHTS).read_bytes() == (other / WEIGHTS).read_bytes()
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        same = torch.equal(value, states[1][name]) if isinstance(value, torch.Tensor) else value == states[1][name]
        assert same, (name, value, states[1][name])


def state(folder: Path) -> dict[str, Any]:
    """Return the trainer state by dotted names, without times."""
    return flat(
        torch.load(folder / TRAINER_STATE, weights_only=True), "", {"position.seconds", "position.seconds_before"}
    )


def flat(tree: Any, name: str, without: set[str]) -> dict[str, Any]:
    """Return the leaves of dicts and lists by dotted names; values other than tensors are converted to text."""
    if isinstance(tree, dict | list | tuple):
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
        leaves = [flat(value, f"{name}.{key}".lstrip("."), without) for key, value in items]
        return {key: value for leaf in leaves for key, value in leaf.items()}
    return {} if name in without else {name: tree if isinstance(tree, torch.Tensor) else repr(tree)}


def lines(run: RunDir) -> list[dict[str, Any]]:
    """Return the records of metrics.jsonl without times and `resume` lines."""
    rows = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in TIMINGS} for row in rows if row["kind"] != "resume"]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
