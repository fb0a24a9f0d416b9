"""`mtformer report --plot`."""

import json
import re
import shutil
from pathlib import Path

import pytest
from program import invoke


def plot(*arguments: object) -> None:
    result = invoke("report", *arguments)
    assert result.exit_code == 0, result.stderr


def texts(file: Path) -> list[str]:
    """Return the texts in an SVG, which are in comments next to the drawn letters."""
    return re.findall(r"<!-- (.*?) -->", file.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("ending", "magic"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml"), ("PDF", b"%PDF")]
)
def test_the_suffix_selects_the_format(run: Path, tmp_path: Path, ending: str, magic: bytes) -> None:
    files = [tmp_path / f"{name}.{ending}" for name in ("a", "b")]
    for file in files:
        plot(run, "--plot", file)
    assert files[0].read_bytes().startswith(magic)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_selected_metrics_and_names_of_several_runs(run: Path, tmp_path: Path) -> None:
    plot(run, "--plot", tmp_path / "one.svg")
    assert {"dev loss", "dev BLEU", "step"} <= set(texts(tmp_path / "one.svg"))
    assert "run" not in texts(tmp_path / "one.svg")
    other = shutil.copytree(run, tmp_path / "a_$x$_run")
    metrics = ("--metric", "train.loss", "--metric", "perplexity", "--metric", "learning_rate")
    plot(run, other, "--plot", tmp_path / "a.svg", *metrics)
    found = set(texts(tmp_path / "a.svg"))
    assert {"train loss", "dev perplexity", "learning rate", "run", "a_$x$_run"} <= found
    assert "dev BLEU" not in found


def test_the_curve_shows_the_metric(run: Path, tmp_path: Path) -> None:
    rows = [{"kind": "dev", "step": step, "bleu": value} for step, value in ((10, 5.0), (20, 25.0), (30, 15.0))]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    plot(run, "--plot", tmp_path / "a.svg", "--metric", "bleu")
    path = re.findall(r'<path d="(M [^"]*?)" clip-path[^>]*stroke: #0072b2', (tmp_path / "a.svg").read_text())[0]
    points = [tuple(map(float, pair)) for pair in re.findall(r"([\d.]+) ([\d.]+)", path)]
    assert len(points) == 3
    (x1, y1), (x2, y2), (x3, y3) = points
    assert x2 - x1 == pytest.approx(x3 - x2, rel=1e-3)
    assert (y1 - y3) / (y1 - y2) == pytest.approx(0.5, rel=1e-3)  # values 5, 15 and 25; y points down
    assert y2 < y3 < y1


def test_a_run_without_the_metric_is_reported_and_left_out(run: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(run, tmp_path / "other"))
    (other / "metrics.jsonl").write_text('{"kind": "dev", "step": 4, "loss": 3.0}\n')
    result = invoke("report", run, other, "--plot", tmp_path / "a.pdf")
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [
        "warning: other has no bleu yet and is omitted from the plot of this metric", f"plot: {tmp_path}/a.pdf"
    ]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), [
    (("--plot", "a.jpg"), "--plot a.jpg: unknown format; use one of .pdf, .png, .svg"),
    (("--plot", "a.pdf", "--metric", "blue"), "--metric blue: no run has this metric; available metrics: bleu, chrf, "),
    (("--metric", "bleu"), "--metric requires --plot FILE; add it"),
    (("--plot", "a.pdf", "--out", "a.html"), "--plot and --out cannot be combined; give only one of them"),
])  # fmt: skip
def test_user_errors_are_reported_in_one_line(
    run: Path, tmp_path: Path, arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke("report", run, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {message}")
    assert result.stderr.count("\n") == 1
    assert not Path("a.pdf").exists()


def test_a_run_without_metrics_cannot_be_plotted(run: Path, tmp_path: Path) -> None:
    (run / "metrics.jsonl").unlink()
    result = invoke("report", run, "--plot", tmp_path / "a.pdf")
    assert result.exit_code == 2
    assert result.stderr == "error: run: nothing is logged yet, so there is nothing to plot\n"
