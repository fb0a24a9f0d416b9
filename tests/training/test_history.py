"""metrics.jsonl as others read it; what a resumed run takes back is in test_resume.py."""

from pathlib import Path

from mtformer.training.history import read_records


def test_records_come_in_order_without_a_line_that_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "train", "step": 1, "loss": 2.5}\n{"kind": "dev", "step": 1}\n[1]\n{"kind": "tr', "utf-8")
    assert read_records(path) == [{"kind": "train", "step": 1, "loss": 2.5}, {"kind": "dev", "step": 1}]


def test_a_run_that_has_just_begun_has_no_records(tmp_path: Path) -> None:
    assert read_records(tmp_path / "metrics.jsonl") == []
