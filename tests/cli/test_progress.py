"""Progress bars on a terminal, and plain log lines elsewhere."""

import fcntl
import io
import os
import pty
import re
import struct
import sys
import termios
import time
from types import SimpleNamespace

import pytest

from mtformer.cli import progress as module
from mtformer.cli.progress import ELAPSED, TimedLines, TrainingProgress, alive
from mtformer.data.store.prepare import LOG_PAIRS, SHARD_PAIRS

FIGURES = {
    "loss": 1.5, "tokens_per_second": 12345.0, "learning_rate": 1e-3, "grad_norm": 0.5, "skipped_steps": 0.0,
    "seconds_left": 180.0,
}  # fmt: skip


def test_log_lines_show_the_time_left(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="mtformer"), TrainingProgress() as progress:
        progress.advance(9, 100, 0, None)
        progress.advance(10, 100, 0, FIGURES)
        progress.advance(20, 100, 0, {**FIGURES, "skipped_steps": 3.0})
    assert caplog.messages == [
        "step 10/100, epoch 1, loss 1.500, lr 1.00e-03, grad 0.50, 12,345 tokens/s, 0:03:00 left",
        "step 20/100, epoch 1, loss 1.500, lr 1.00e-03, grad 0.50, 12,345 tokens/s, 3 steps skipped, 0:03:00 left",
    ]


def test_a_log_line_for_each_million_pairs(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="mtformer"), TrainingProgress() as progress:
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


def test_bars_for_each_corpus_and_for_training(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The bar of a corpus shows an estimated number of pairs, and closes at its end or when the next corpus starts."""
    terminal = Terminal()
    caplog.set_level("INFO", logger="mtformer")
    monkeypatch.setattr(sys, "stderr", terminal)
    with TrainingProgress() as progress:
        progress.prepared(500_000, 0.25)
        assert progress.preparing is not None
        progress.preparing.refresh()
        progress.prepared(2_100_000, 1.0)
        assert progress.preparing is None
        for num_pairs in (5_000, 1_000):
            progress.prepared(num_pairs, 0.0)
            assert progress.preparing is not None
            progress.preparing.refresh()
        progress.advance(1, 100, 0, None)
        assert progress.preparing is None
        assert "? left" in terminal.getvalue()
        progress.advance(90, 100, 2, FIGURES)
    prepare = ("prepare:  25%", "500k/2.00M", "prepare: 1.00kpair", "pair/s")
    for part in (*prepare, "train:  90%", " left, loss 1.500, 12,345 tokens/s, "):
        assert part in terminal.getvalue()


@pytest.mark.parametrize("columns", [80, 120])
def test_the_training_bar_always_fits_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    large = {**FIGURES, "loss": 123.456, "tokens_per_second": 1234567.0, "skipped_steps": 12.0}
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with TrainingProgress() as progress:
            progress.advance(1, 1_000_000, 0, None)
            assert progress.bar is not None
            progress.bar.start_t -= 36_000
            progress.advance(100_000, 1_000_000, 9, large)
            progress.bar.refresh()
            terminal.flush()
            written = b""
            while written.count(b"tokens/s") < 2:
                written += os.read(master, 1 << 16)
    os.close(master)
    lines = written.decode().rpartition("\r")[0].split("\r")
    drawn = [line for line in lines if "tokens/s" in line]
    assert drawn
    for line in drawn:
        assert len(line) <= columns
        left = "0:03:00 left"
        assert re.match(rf"train:  10%\|█[^|]{{8,}}\| {left}, loss 123\.456, 1,234,567 tokens/s(, |$)", line)
        assert ("step 100000/1000000" in line) == (columns == 120)


def test_elapsed_time_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with alive("tokenizer", bar_format=ELAPSED) as bar:
        bar.start_t -= 61
        time.sleep(1.1)
    assert re.search("tokenizer: 01:0[2-9]", terminal.getvalue())


def test_elapsed_time_in_the_log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(module, "SECONDS_PER_LINE", 0.01)
    with caplog.at_level("INFO", logger="mtformer"), alive("compare", total=3):
        time.sleep(0.1)
    assert caplog.messages[0] == "compare: running for 0:00:00"
    assert len(caplog.messages) > 1


def test_lines_are_logged_with_a_total_and_the_time_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    with caplog.at_level("INFO", logger="mtformer"), TimedLines("translate") as lines:
        lines.start(21_000)
        lines.advance(1_000)  # finished before an interruption, in no time
        for seconds in (20.0, 40.0, 60.0, 80.0):
            clock.now = seconds
            lines.advance(2_000)
    assert caplog.messages == [
        "translate: 5,000 of 21,000 lines, about 0:02:08 left",
        "translate: 9,000 of 21,000 lines, about 0:02:00 left",
    ]
