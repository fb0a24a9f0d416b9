"""Train a good run and four bad ones, and draw their curves for docs/good-and-bad-runs.md.

    python scripts/good_and_bad_runs.py FOLDER WORK

FOLDER contains {train,val}.{en,de} of Multi30k, plain or .gz. The runs use its first pairs, are kept in WORK, and take
about ten minutes together. Writes docs/images/good_and_bad_runs.png.
"""

import gzip
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "good_and_bad_runs.png"
NUM_PAIRS = {"all": 12_000, "few": 1_500}
NUM_DEV = 300
MAX_LOSS = 8
"""Upper end of the axis of losses."""
SHIFT = 1
"""Lines by which the target side of the misaligned corpus is moved."""
SETTINGS = [
    "tokenizer.vocab_size=3000",
    "model.d_model=128",
    "model.num_heads=4",
    "model.d_ff=512",
    "model.num_encoder_layers=2",
    "model.num_decoder_layers=2",
    "model.dropout=0.2",
    "training.optimizer=muon",
    "training.batch_tokens=2048",
    "training.learning_rate=0.005",
    "training.warmup_steps=50",
    "training.max_steps=1200",
    "training.validate_every=100",
    "training.log_every=25",
]


class Example(NamedTuple):
    """A run of the page."""

    title: str
    corpus: str
    changes: tuple[str, ...] = ()


EXAMPLES = {
    "good": Example("good", "all"),
    "high_rate": Example("learning rate too high", "all", ("training.learning_rate=0.5",)),
    "overfitting": Example("few pairs, no dropout", "few", ("model.dropout=0.0",)),
    "misaligned": Example("target one line late", "shifted"),
    "too_short": Example("stopped too early", "all", ("training.max_steps=300",)),
}


def lines_of(folder: Path, name: str) -> list[str]:
    """Return the lines of a plain or compressed file."""
    plain = folder / name
    content = plain.read_bytes() if plain.exists() else gzip.decompress(plain.with_name(f"{name}.gz").read_bytes())
    return content.decode("utf-8").splitlines()


def write_corpora(folder: Path, work: Path) -> None:
    """Write the corpora of the examples, and the dev set."""
    for language in ("en", "de"):
        lines = lines_of(folder, f"train.{language}")
        corpora = {name: lines[:count] for name, count in NUM_PAIRS.items()}
        start = SHIFT if language == "de" else 0
        corpora["shifted"] = lines[start : start + NUM_PAIRS["all"]]
        corpora["dev"] = lines_of(folder, f"val.{language}")[:NUM_DEV]
        for name, part in corpora.items():
            (work / f"{name}.{language}").write_text("".join(f"{line}\n" for line in part), encoding="utf-8")


def train(work: Path, name: str, example: Example) -> Path:
    """Train an example, unless its run exists; return the folder of the run."""
    run = work / "runs" / name
    config = work / f"{name}.yaml"
    corpus = example.corpus
    config.write_text(
        f"data: {{src_lang: en, tgt_lang: de, train: [{{src: {corpus}.en, tgt: {corpus}.de}}], "
        "dev: [{src: dev.en, tgt: dev.de}]}\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "mtformer", "train", config.name, "--run-dir", str(run), "--resume", "auto"]
    subprocess.run([*command, *SETTINGS, *example.changes], cwd=work, check=False)
    return run


def curves(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Return steps and values of training loss and dev loss, without label smoothing, and of dev BLEU."""
    points: dict[str, list[tuple[int, float]]] = {"training": [], "dev": [], "bleu": []}
    for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if entry["kind"] == "train":
            points["training"].append((entry["step"], entry["nll"]))
        elif entry["kind"] == "dev":
            points["dev"].append((entry["step"], math.log(entry["perplexity"])))
            points["bleu"].append((entry["step"], entry["bleu"]))
    return points


def draw(runs: dict[str, Path]) -> None:
    """Draw losses in the upper row and dev BLEU in the lower row, one column for each run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, len(runs), figsize=(12, 4.4), sharex=True, sharey="row", layout="constrained")
    for column, (name, run) in enumerate(runs.items()):
        points = curves(run)
        losses, scores = axes[0][column], axes[1][column]
        losses.set_title(EXAMPLES[name].title, fontsize=10)
        for key in ("training", "dev"):
            losses.plot(*zip(*points[key], strict=True), label=key)
        scores.plot(*zip(*points["bleu"], strict=True), color="C2")
        scores.set_xlabel("steps")
        for axis in (losses, scores):
            axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("loss per token (nats)")
    axes[0][0].set_ylim(0, MAX_LOSS)
    axes[1][0].set_ylabel("dev BLEU (greedy)")
    axes[0][0].legend()
    figure.savefig(PICTURE, dpi=100)


def main() -> None:
    """Train all examples and draw the picture."""
    folder, work = (Path(argument).resolve() for argument in sys.argv[1:])
    work.mkdir(parents=True, exist_ok=True)
    write_corpora(folder, work)
    runs = {name: train(work, name, example) for name, example in EXAMPLES.items()}
    draw(runs)


if __name__ == "__main__":
    main()
