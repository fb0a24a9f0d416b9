"""Reading and writing of metrics.jsonl; test_resume.py has the tests of resuming."""

from pathlib import Path

from mtformer.training.history import append_record, read_records


def test_records_come_in_order_without_a_line_that_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "train", "step": 1, "loss": 2.5}\n{"kind": "dev", "step": 1}\n[1]\n{"kind": "tr', "utf-8")
    assert read_records(path) == [{"kind": "train", "step": 1, "loss": 2.5}, {"kind": "dev", "step": 1}]


def test_what_is_appended_is_read_and_nan_is_null(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    append_record(path, "dev", 4, samples=[("a\nb", "é", "\u2028")])
    append_record(path, "train", 5, loss=float("nan"))
    assert read_records(path) == [
        {"kind": "dev", "step": 4, "samples": [["a\nb", "é", "\u2028"]]},
        {"kind": "train", "step": 5, "loss": None},
    ]
    assert path.read_text("utf-8").count("\n") == 2
