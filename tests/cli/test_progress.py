"""On a terminal a bar with the figures that matter; elsewhere plain lines."""

import io
import sys

import pytest

from mtformer.cli.progress import TrainingProgress
from mtformer.data.store.prepare import LOG_PAIRS, SHARD_PAIRS

FIGURES = {
    "loss": 1.5, "tokens_per_second": 12345.0, "learning_rate": 1e-3, "grad_norm": 0.5, "skipped_steps": 0.0,
    "seconds_per_step": 2.0,
}  # fmt: skip


def test_plain_lines_tell_the_time_left(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="mtformer"), TrainingProgress(100) as progress:
        progress.advance(9, 0, None)
        progress.advance(10, 0, FIGURES)
        progress.advance(20, 0, {**FIGURES, "skipped_steps": 3.0})
    assert caplog.messages == [
        "step 10/100, epoch 1, loss 1.500, lr 1.00e-03, grad 0.50, 12,345 tokens/s, 0:03:00 left",
        "step 20/100, epoch 1, loss 1.500, lr 1.00e-03, grad 0.50, 12,345 tokens/s, 3 steps skipped, 0:02:40 left",
    ]


def test_plain_lines_tell_of_each_million_pairs(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="mtformer"), TrainingProgress(100) as progress:
        for part in range(1, 41):
            progress.prepared(part * SHARD_PAIRS, part / 80)
        progress.prepared(3 * LOG_PAIRS, 0.0)
    assert caplog.messages == [
        "1,024,000 pairs tokenized, 25% of the corpus",
        "2,048,000 pairs tokenized, 50% of the corpus",
        "3,072,000 pairs tokenized",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_a_bar_of_each_corpus_and_of_the_training(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """That of a corpus estimates the number of pairs, and ends when all are prepared, or with the next corpus."""
    terminal = Terminal()
    caplog.set_level("INFO", logger="mtformer")
    monkeypatch.setattr(sys, "stderr", terminal)
    with TrainingProgress(100) as progress:
        progress.prepared(500_000, 0.25)
        assert progress.preparing is not None
        progress.preparing.refresh()
        progress.prepared(2_100_000, 1.0)
        assert progress.preparing is None
        for num_pairs in (5_000, 1_000):
            progress.prepared(num_pairs, 0.0)
            assert progress.preparing is not None
            progress.preparing.refresh()
        progress.advance(1, 0, None)
        assert progress.preparing is None
        progress.advance(90, 2, FIGURES)
    prepare = ("prepare:  25%", "500k/2.00M", "prepare: 1.00kpair", "pair/s")
    for part in (*prepare, "train:  90%", "90/100", "epoch 3, loss 1.500, lr 1.00e-03, grad 0.50, 12,345 tokens/s"):
        assert part in terminal.getvalue()
