"""State of a run in parts: each part saves and restores its own entries of a checkpoint.

These are the entries of `trainer.pt`, and the parts to which they belong:

    position              `TrainPosition`, `StepPlan` and `BestScore`, each with some of its values
    best_metric           `BestScore`
    optimizer, scaler, skipped_in_a_row, max_padded_tokens, training_weights
                          `TrainingStep`; training_weights are those before averaging, with `ema_decay`
    windows, rng          `TrainWindow` and `RandomState` of each process, by rank
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

import torch
from pydantic import TypeAdapter
from torch import Tensor

from mtformer.data.batching.mixture import START, SamplerState
from mtformer.errors import CheckpointError, log
from mtformer.run_dir import TRAINER_STATE, lower_is_better
from mtformer.training.ranks import Ranks


class Stateful(Protocol):
    """Part of the state of a run."""

    def state_dict(self) -> dict[str, Any]:
        """Return the entries of this part in a checkpoint, which consist of plain values and tensors."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore this part from the entries of a checkpoint; if they are invalid, any exception may be raised."""


def collect_state(parts: Iterable[Stateful]) -> dict[str, Any]:
    """Return the entries of all parts; the values of parts that share an entry are merged."""
    state: dict[str, Any] = {}
    for part in parts:
        for name, entry in part.state_dict().items():
            state[name] = {**state[name], **entry} if name in state else entry
    return state


def restore_state(parts: Iterable[Stateful], state: Mapping[str, Any], folder: Path) -> None:
    """Restore all parts; raise CheckpointError if the state is invalid.

    Args:
        parts: the parts.
        state: result of `collect_state`, loaded from a checkpoint.
        folder: folder of the checkpoint, which the error names.
    """
    try:
        for part in parts:
            part.load_state_dict(state)
    except Exception as error:  # loading values of wrong types may raise any exception
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        raise CheckpointError(
            f"{folder / TRAINER_STATE}: not a trainer state of this run ({cause:.200}); move {folder} away"
        ) from error


@dataclass
class TrainPosition:
    """Progress of a run: its steps, its place in the data, and its time."""

    step: int = 0
    place: SamplerState = START
    seconds: float = 0.0
    """Training time in seconds, including validation."""
    seconds_before: float = 0.0
    """Time in seconds for preparation, in all processes of the run."""

    def state_dict(self) -> dict[str, Any]:
        """Return the values of this part in the entry `position`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["place"] = self.place._asdict()
        return {"position": values}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the position."""
        place = dict(state["position"]["place"])
        place.pop("since_step", None)  # saved by version 0.3
        values = {**state["position"], "place": place}
        saved = TypeAdapter(TrainPosition).validate_python(values)

        self.step = saved.step
        self.place = saved.place
        self.seconds = saved.seconds
        self.seconds_before = saved.seconds_before


class BestScore:
    """Best score on dev so far, and the number of validations since then, for early stopping."""

    def __init__(self, metric: str, patience: int | None) -> None:
        self.metric = metric
        self.patience = patience
        """Number of validations without improvement after which training ends; None: unlimited."""
        self.value: float | None = None
        self.validations_since_best = 0

    @property
    def is_stale(self) -> bool:
        """True after `patience` validations without improvement."""
        return self.patience is not None and self.validations_since_best >= self.patience

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Compare the dev metrics of a step with the best score; metrics without the chosen one change nothing."""
        value = metrics.get(self.metric)
        if value is None:
            return

        sign = 1 if lower_is_better(self.metric) else -1
        if self.value is None or sign * value < sign * self.value:
            self.value = value
            self.validations_since_best = 0
        elif value:  # a BLEU of 0 at the beginning says nothing
            self.validations_since_best += 1

        if self.is_stale:
            text = "step %d: early stopping: no improvement in %s over %d validations"
            log.info(text, step, self.metric, self.patience)

    def reset(self) -> None:
        """Forget the best score, for example because later ones cannot be compared with it."""
        self.value = None
        self.validations_since_best = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the metric, and the values of this part in the entry `position`."""
        values = {"best": self.value, "validations_since_best": self.validations_since_best}
        return {"position": values, "best_metric": self.metric}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the best score, unless it is that of another metric."""
        if state["best_metric"] != self.metric:
            self.reset()
            return
        values = state["position"]
        self.value = TypeAdapter(float | None).validate_python(values["best"])
        self.validations_since_best = TypeAdapter(int).validate_python(values["validations_since_best"])


class ProcessState(Protocol):
    """State of one process, which may differ between the processes of a run."""

    def state_dict(self) -> Any:
        """Return the state of this process as plain values and tensors."""

    def load_state_dict(self, state: Any) -> None:
        """Restore the state of this process."""


class RandomState:
    """Random number generators of the CPU and of a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def state_dict(self) -> list[Tensor]:
        """Return the state of the generator of the CPU and, on a CUDA device, also of its generator."""
        states = [torch.get_rng_state()]
        if self.device.type == "cuda":
            states.append(torch.cuda.get_rng_state(self.device))
        return states

    def load_state_dict(self, state: list[Tensor]) -> None:
        """Restore the generators; the state of a CUDA device is ignored on a CPU."""
        torch.set_rng_state(state[0])
        if self.device.type == "cuda" and len(state) > 1:
            torch.cuda.set_rng_state(state[1], self.device)


@dataclass(frozen=True)
class OfEachProcess:
    """Part with a state of each process; its entry in a checkpoint is the list of them, by rank.

    All processes must save it together.
    """

    entry: str
    part: ProcessState
    ranks: Ranks
    needs_same_number: bool = False
    """If True, nothing is restored if the number of processes has changed. Otherwise, additional processes keep their
    initial state."""

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all processes."""
        return {self.entry: self.ranks.gather(self.part.state_dict())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of this process, if there is one."""
        states = state[self.entry]
        has_state = self.ranks.rank < len(states)
        if self.needs_same_number:
            has_state = len(states) == self.ranks.size
        if has_state:
            self.part.load_state_dict(states[self.ranks.rank])
