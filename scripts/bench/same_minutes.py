"""Train mtformer, Hugging Face and JoeyNMT on the same corpus for the same time, and compare the translations.

    python scripts/bench/same_minutes.py FOLDER --minutes 30 --huggingface PYTHON --joeynmt PYTHON --out DIRECTORY

FOLDER contains {train,dev,test}.{en,de} (plain or .gz; val and test_2016_flickr are also accepted). The time limit
includes everything from the first command to the last checkpoint: tokenizer, training and validation. The systems run
one after the other on an otherwise idle machine. If a system is stopped at the limit, its best checkpoint is
scored. Sentences per second are (n - 1) / (time for the n test lines - time for one line), with beam 5.

The files that a user writes are in same_minutes: their lines, without comments, and the commands are counted. Writes
DIRECTORY/results.json, a table to stdout, and the plot of dev BLEU over minutes (greedy, as each system validates).
PYTHON is an interpreter of an environment with transformers and accelerate, or with joeynmt, importlib_metadata and
sentencepiece 0.2.0 (JoeyNMT fails with later versions).
"""

import argparse
import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import sacrebleu

FILES = Path(__file__).with_suffix("")
NAMES = {"train": ("train",), "dev": ("dev", "val"), "test": ("test", "test_2016_flickr")}
GRACE_SECONDS = 60
"""Time after the limit in which a system may finish by itself, as mtformer and the callback of Hugging Face do."""


class System(NamedTuple):
    """How to train and to translate; {python} is its interpreter and {minutes} the time limit."""

    files: tuple[str, ...]
    """Files that a user writes."""
    train: tuple[str, ...]
    """Commands, run by a shell; the last one trains."""
    translate: str
    """Command that translates {source} into {output}."""
    dev_bleu: str
    """Pattern of dev BLEU in the output of training."""


SYSTEMS = {
    "mtformer": System(
        ("corpus.yaml",),
        (
            "{python} -m mtformer config show --recommend corpus.yaml > en_de.yaml",
            "{python} -m mtformer train en_de.yaml",
        ),
        "{python} -m mtformer translate runs/en_de --input {source} --output {output} --beam-size 5",
        r"dev loss.* bleu ([\d.]+)",
    ),
    "huggingface": System(
        ("huggingface.py",),
        ("{python} huggingface.py train {minutes}",),
        "{python} huggingface.py translate {source} {output}",
        r"'eval_bleu': '?([\d.]+)",
    ),
    "joeynmt": System(
        ("joeynmt.yaml", "joeynmt_vocabulary.py"),
        ("{python} joeynmt_vocabulary.py", "{python} -m joeynmt train joeynmt.yaml --skip-test"),
        "{python} -m joeynmt translate joeynmt.yaml < {source} > {output}",
        r"Evaluation result.* bleu: +([\d.]+)",
    ),
}


def copy_corpus(folder: Path, target: Path) -> None:
    """Write {train,dev,test}.{en,de} to `target`, not compressed."""
    for name, others in NAMES.items():
        for language in ("en", "de"):
            found = [folder / f"{other}.{language}{end}" for other in others for end in ("", ".gz")]
            path = next(path for path in found if path.exists())
            data = path.read_bytes()
            (target / f"{name}.{language}").write_bytes(gzip.decompress(data) if path.suffix == ".gz" else data)


def num_lines(path: Path) -> int:
    """Return the number of lines that a user writes: neither blank nor a comment or docstring."""
    text = re.sub(r'""".*?"""', "", path.read_text(), flags=re.DOTALL) if path.suffix == ".py" else path.read_text()
    return sum(1 for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))


def run_in_time(command: str, folder: Path, deadline: float, pattern: str, start: float) -> list[tuple[float, float]]:
    """Run a command, interrupt it after the deadline, and return (minutes, dev BLEU) of its validations."""
    curve = []
    with open(folder / "train.log", "a") as log:
        process = subprocess.Popen(
            command, shell=True, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        stop = threading.Timer(max(0.0, deadline - time.time()), os.killpg, (process.pid, signal.SIGINT))
        stop.start()
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            if found := re.search(pattern, line):
                curve.append(((time.time() - start) / 60, float(found[1])))
        code = process.wait()
        stop.cancel()
    if code and time.time() < deadline:
        sys.exit(f"{command}: exit code {code}; see {folder / 'train.log'}")
    return curve


def translate(command: str, folder: Path, source: str, output: str) -> float:
    """Translate a file; return the seconds taken."""
    start = time.time()
    subprocess.run(command.replace("{source}", source).replace("{output}", output), shell=True, cwd=folder, check=True)
    return time.time() - start


def run_system(name: str, python: str, options: argparse.Namespace) -> dict[str, Any]:
    """Train and translate with one system in a folder of its own; return its results."""
    system, folder = SYSTEMS[name], (options.out / name).absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    copy_corpus(options.folder, folder)
    for file in system.files:
        text = (FILES / file).read_text()
        (folder / file).write_text(text.replace("MINUTES", str(options.minutes)) if file == "corpus.yaml" else text)
    places = {"python": python, "minutes": options.minutes}
    start, curve = time.time(), []
    deadline = start + 60 * options.minutes
    grace = 0 if name == "joeynmt" else GRACE_SECONDS
    for command in system.train:
        curve += run_in_time(command.format(**places), folder, deadline + grace, system.dev_bleu, start)
    minutes = (time.time() - start) / 60
    translating = system.translate.format(**places, source="{source}", output="{output}")
    (folder / "one.en").write_text((folder / "test.en").read_text().split("\n")[0] + "\n")
    one, whole = (translate(translating, folder, f"{file}.en", f"{file}.out") for file in ("one", "test"))
    output, reference = ((folder / f"test.{end}").read_text().splitlines() for end in ("out", "de"))
    return {
        "minutes": minutes,
        "bleu": sacrebleu.corpus_bleu(output, [reference]).score,
        "chrf2++": sacrebleu.corpus_chrf(output, [reference], word_order=2).score,
        "commands": len(system.train),
        "lines": sum(num_lines(FILES / file) for file in system.files),
        "sentences_per_second": (len(reference) - 1) / (whole - one),
        "dev": curve,
    }


def plot(results: dict[str, dict[str, Any]], path: Path) -> None:
    """Draw dev BLEU over minutes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 3.6), layout="constrained")
    for name, result in results.items():
        axes.plot(*zip((0.0, 0.0), *result["dev"], strict=True), marker=".", label=name)
    axes.set(xlabel="minutes since the first command", ylabel="dev BLEU")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Run the systems and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--huggingface", default=sys.executable)
    parser.add_argument("--joeynmt", default=sys.executable)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    # A shell ignores SIGINT in background processes, and the systems would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    pythons = {"mtformer": sys.executable, "huggingface": options.huggingface, "joeynmt": options.joeynmt}
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "results.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    for name in options.systems:
        results[name] = run_system(name, pythons[name], options)
        path.write_text(json.dumps(results, indent=1))
    columns = ("bleu", "chrf2++", "minutes", "commands", "lines", "sentences_per_second")
    print("| system | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|", sep="\n")
    for name, result in results.items():
        print(f"| {name} | " + " | ".join(f"{result[column]:.4g}" for column in columns) + " |")
    plot(results, options.out / "dev_bleu.png")


if __name__ == "__main__":
    main()
