"""Read and write metrics.jsonl; see test_resume.py for resuming."""

from pathlib import Path

import pytest

from mtformer.training.history import append_record, cut_after, log_checksum, read_records


def test_records_are_read_in_order_and_invalid_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "train", "step": 1, "loss": 2.5}\n{"kind": "dev", "step": 1}\n[1]\n{"kind": "tr', "utf-8")
    assert read_records(path) == [{"kind": "train", "step": 1, "loss": 2.5}, {"kind": "dev", "step": 1}]


def test_every_flipped_bit_and_truncation_causes_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "metrics.jsonl"
    for step in (1, 2):
        append_record(path, "train", step, loss=2.5)
    saved, data = log_checksum(path), path.read_bytes()
    flipped = (bytearray(data) for _ in range(8 * len(data)))
    for number, damaged in enumerate(flipped):
        damaged[number // 8] ^= 1 << number % 8
        path.write_bytes(damaged)
        caplog.clear()
        cut_after(path, 2, with_dev=True, saved=saved)
        assert "changed or truncated" in caplog.text
    for length in range(len(data)):
        path.write_bytes(data[:length])
        caplog.clear()
        cut_after(path, 2, with_dev=True, saved=saved)
        assert "changed or truncated" in caplog.text


def test_appended_records_are_read_back_and_numbers_that_are_not_finite_are_null(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    append_record(path, "dev", 4, samples=[("a\nb", "é", "\u2028")])
    append_record(path, "train", 5, loss=float("nan"), norm=float("inf"), least=float("-inf"))
    assert read_records(path) == [
        {"kind": "dev", "step": 4, "samples": [["a\nb", "é", "\u2028"]]},
        {"kind": "train", "step": 5, "loss": None, "norm": None, "least": None},
    ]
    assert path.read_text("utf-8").count("\n") == 2
