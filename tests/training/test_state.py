"""The parts of the state of a run: their entries in a checkpoint, and what is restored if processes change."""

from pathlib import Path
from typing import Any

import pytest
from toy_run import finished

from mtformer.data.batching.mixture import SamplerState
from mtformer.training.checkpoint import load_trainer_state
from mtformer.training.ranks import Ranks
from mtformer.training.state import BestScore, OfEachProcess, TrainPosition, collect_state, restore_state


def test_checkpoints_have_the_entries_of_all_versions(tmp_path: Path) -> None:
    state = load_trainer_state(finished(tmp_path, max_steps=4).checkpoint(4))
    assert state.keys() == {
        "position", "best_metric", "optimizer", "scaler", "skipped_in_a_row", "max_padded_tokens", "windows", "rng",
        "training_weights",
    }  # fmt: skip
    assert state["position"].keys() == {
        "step", "place", "seconds", "seconds_before", "max_steps", "max_minutes", "given_steps", "best",
        "validations_since_best", "validate_every",
    }  # fmt: skip
    window_keys = {"tokens", "cells", "steps", "splits", "learning_rate", "sums", "grad_norm", "pairs_of"}
    assert state["windows"][0].keys() == window_keys


def test_parts_that_share_an_entry_are_merged_and_restored(tmp_path: Path) -> None:
    best_score = BestScore("bleu", patience=2)
    best_score.update(3, {"bleu": 20.5})
    best_score.update(6, {"bleu": 20.5})
    state = collect_state([TrainPosition(6, SamplerState(1, 30), 2.5), best_score])
    state["position"]["place"]["since_step"] = 4  # saved by version 0.3

    position = TrainPosition()
    restored = BestScore("bleu", patience=2)
    restore_state([position, restored], state, tmp_path)
    assert position == TrainPosition(6, SamplerState(1, 30), 2.5)
    assert (restored.value, restored.validations_since_best, restored.is_stale) == (20.5, 1, False)


class Recorder:
    """State of a process that records what is restored."""

    restored: Any = "initial"

    def state_dict(self) -> str:
        return "own"

    def load_state_dict(self, state: Any) -> None:
        self.restored = state


@pytest.mark.parametrize(
    ("rank", "size", "needs_same_number", "expected"),
    [
        (1, 2, False, "second"),
        (1, 2, True, "second"),
        (0, 1, False, "first"),
        (0, 1, True, "initial"),
        (2, 3, False, "initial"),
        (0, 3, True, "initial"),
    ],
)
def test_states_of_processes_are_restored_by_rank(rank: int, size: int, needs_same_number: bool, expected: str) -> None:
    recorder = Recorder()
    part = OfEachProcess("rng", recorder, Ranks(rank, size), needs_same_number)
    part.load_state_dict({"rng": ["first", "second"]})
    assert recorder.restored == expected
