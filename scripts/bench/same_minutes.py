"""Train mtformer and other toolkits on the same corpus for the same time, each with its best settings of six.

    python scripts/bench/same_minutes.py FOLDER --out DIRECTORY --huggingface PYTHON --joeynmt PYTHON --marian PYTHON

FOLDER contains {train,dev,test}.{en,de} (plain or .gz; val and test_2016_flickr are also accepted). Each peer starts
from the settings of its documentation for small corpora, with the sizes of mtformer's model. Six trials of
--trial-minutes differ in learning rate, dropout and batch size, and the one with the best dev BLEU gets two runs of
--minutes with seeds 1 and 2. mtformer gets two runs with its recommended settings, and no trials. The systems run one
at a time on an otherwise idle machine.

The time of a run includes everything from the first command to the last checkpoint, such as the training of the
tokenizer. Peers do not translate in this time: checkpoints are translated afterwards, so that slow decoding does not
count, and the checkpoint with the best dev BLEU (greedy) translates the test set with beam 5. mtformer validates and
chooses its checkpoint in its own time. All systems have glibc settings that keep freed memory, which mtformer sets
itself: they make the peers faster.

The files that a user writes are in same_minutes: their lines, without comments, and the commands are counted. Writes
DIRECTORY/results.json after each run, and resumes from it when the script is started again; then a table to stdout,
and the plot of dev BLEU over minutes. PYTHON is an interpreter of an environment with transformers and accelerate; with
joeynmt, importlib_metadata and sentencepiece 0.2.0 (JoeyNMT fails with later versions); or with pymarian.
"""

import argparse
import gzip
import itertools
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import sacrebleu
from turns import ALLOCATOR

FILES = Path(__file__).with_suffix("")
NAMES = {"train": ("train",), "dev": ("dev", "val"), "test": ("test", "test_2016_flickr")}
LANGUAGES = ("en", "de")
SEEDS = (1, 2)
NUM_CURVE_POINTS = 6
"""Checkpoints of a peer's run of which dev BLEU is measured, at equal distances, the last one included."""
GRACE_SECONDS = 60
"""Time after the limit in which mtformer, which knows the limit, may finish by itself."""


class Settings(NamedTuple):
    """Values that the trials try; `batch` is in the unit of the peer: tokens, or pairs for Hugging Face."""

    learning_rate: float
    dropout: float
    batch: int


def six_trials(small_batch: int) -> tuple[Settings, ...]:
    """Return the settings of the trials: three learning rates, then less dropout, a larger batch, and both."""
    return (
        Settings(1e-3, 0.25, small_batch),
        Settings(2e-3, 0.25, small_batch),
        Settings(4e-3, 0.25, small_batch),
        Settings(2e-3, 0.1, small_batch),
        Settings(2e-3, 0.25, 2 * small_batch),
        Settings(4e-3, 0.1, 2 * small_batch),
    )


class System(NamedTuple):
    """Commands and files of a system; a shell runs the commands.

    {python} is its interpreter; {source}, {output}, {checkpoint} and {beam} concern a translation. In files and
    commands, LEARNING_RATE, DROPOUT, BATCH_TOKENS, BATCH_PAIRS, SEED and MINUTES are replaced.
    """

    files: tuple[str, ...]
    """Files that a user writes."""
    train: tuple[str, ...]
    """Commands; the last one trains."""
    translate: str
    checkpoints: str
    """Pattern of the paths of checkpoints below the folder of the run."""
    trials: tuple[Settings, ...] = ()
    stop: signal.Signals = signal.SIGINT
    """Signal that ends training at the limit of time."""
    dev_bleu: str | None = None
    """Pattern of dev BLEU in the output of training; None: checkpoints are translated after training."""


SYSTEMS = {
    "mtformer": System(
        files=("corpus.yaml",),
        train=(
            "{python} -m mtformer config show --recommend corpus.yaml > en_de.yaml",
            "{python} -m mtformer train en_de.yaml training.seed=SEED",
        ),
        translate="{python} -m mtformer translate runs/en_de --input {source} --output {output} --beam-size {beam}",
        checkpoints="runs/en_de/checkpoints/*",
        dev_bleu=r"dev loss.* bleu ([\d.]+)",
    ),
    "huggingface": System(
        files=("huggingface.py",),
        train=("{python} huggingface.py train LEARNING_RATE DROPOUT BATCH_PAIRS SEED",),
        translate="{python} huggingface.py translate {checkpoint} {source} {output} {beam}",
        checkpoints="model/checkpoint-*",
        trials=six_trials(96),
    ),
    "joeynmt": System(
        files=("joeynmt.yaml", "joeynmt_vocabulary.py"),
        train=(
            "{python} joeynmt_vocabulary.py",
            "sed 's/RETURN_PROB/ref/; s/BEAM_SIZE/1/; s/CHECKPOINT/none/' joeynmt.yaml > train.yaml",
            "{python} -m joeynmt train train.yaml --skip-test",
        ),
        translate="sed 's/RETURN_PROB/none/; s/BEAM_SIZE/{beam}/; s#CHECKPOINT#{checkpoint}#' joeynmt.yaml > test.yaml "
        "&& {python} -m joeynmt translate test.yaml < {source} > {output}",
        checkpoints="model/[0-9]*.ckpt",
        trials=six_trials(2048),
    ),
    "marian": System(
        files=("marian.yml",),
        train=("{python} -m pymarian train --config marian.yml",),
        translate="{python} -m pymarian decode --models {checkpoint} --vocabs joint.spm joint.spm --input {source} "
        "--output {output} --beam-size {beam} --normalize 1 --max-length 100 --mini-batch 64 --maxi-batch 100 "
        "--maxi-batch-sort src --cpu-threads 2 --quiet",
        checkpoints="model.iter*.npz",
        trials=six_trials(2048),
        stop=signal.SIGTERM,
    ),
}


# ---- files ----------------------------------------------------------------------------------------------------------


def copy_corpus(folder: Path, target: Path) -> None:
    """Write {train,dev,test}.{en,de} to `target`, not compressed."""
    for name, others in NAMES.items():
        for language in LANGUAGES:
            candidates = [folder / f"{other}.{language}{end}" for other in others for end in ("", ".gz")]
            path = next(path for path in candidates if path.exists())
            data = path.read_bytes()
            content = gzip.decompress(data) if path.suffix == ".gz" else data
            (target / f"{name}.{language}").write_bytes(content)


def num_lines(path: Path) -> int:
    """Return the number of lines that a user writes: neither blank nor a comment or docstring."""
    text = path.read_text()
    if path.suffix == ".py":
        text = re.sub(r'""".*?"""', "", text, flags=re.DOTALL)
    return sum(1 for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))


def fill(text: str, values: Mapping[str, object]) -> str:
    """Replace the names in capital letters by their values."""
    return re.sub("|".join(values), lambda match: str(values[match[0]]), text)


# ---- one run --------------------------------------------------------------------------------------------------------


class Run:
    """A run of a system in a folder of its own."""

    def __init__(self, system: System, python: str, folder: Path, corpus: Path, values: Mapping[str, object]) -> None:
        """Write the corpus and the files of the system.

        Args:
            system: Its commands and files.
            python: Its interpreter.
            folder: Folder to make; an old one is deleted.
            corpus: Folder with the corpus.
            values: Replacements of the names in capital letters.
        """
        self.system, self.python, self.folder, self.values = system, python, folder.absolute(), values
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        copy_corpus(corpus, self.folder)
        for name in system.files:
            (self.folder / name).write_text(fill((FILES / name).read_text(), values))

    def train(self, minutes: float) -> list[tuple[float, float]]:
        """Train for a time; return (minutes, dev BLEU) of validations, empty for a system that does not translate."""
        self.start = time.time()
        deadline = self.start + 60 * minutes
        if self.system.dev_bleu is not None:
            deadline += GRACE_SECONDS
        curve = []
        for command in self.system.train:
            filled = fill(command.format(python=self.python), self.values)
            for moment, line in self._output_until(deadline, filled):
                match = self.system.dev_bleu and re.search(self.system.dev_bleu, line)
                if match:
                    curve.append(((moment - self.start) / 60, float(match[1])))
        self.minutes = (time.time() - self.start) / 60
        return curve

    def _output_until(self, deadline: float, command: str) -> Iterable[tuple[float, str]]:
        """Run a command, stop it at the deadline, log its output, and return its lines with their times."""
        lines = []
        with open(self.folder / "train.log", "a") as log:
            process = subprocess.Popen(
                command,
                shell=True,
                cwd=self.folder,
                env={**os.environ, **ALLOCATOR},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            seconds_left = max(0.0, deadline - time.time())
            stop = threading.Timer(seconds_left, os.killpg, (process.pid, self.system.stop))
            stop.start()
            assert process.stdout is not None
            for line in process.stdout:
                log.write(line)
                log.flush()
                lines.append((time.time(), line))
            code = process.wait()
            stop.cancel()
        if code and time.time() < deadline:
            sys.exit(f"{command}: exit code {code}; see {self.folder / 'train.log'}")
        return lines

    def checkpoints(self) -> list[tuple[float, Path]]:
        """Return the minutes after the start at which each checkpoint was written, and its path, in order of time."""
        paths = self.folder.glob(self.system.checkpoints)
        return sorted(((path.stat().st_mtime - self.start) / 60, path) for path in paths if not path.is_symlink())

    def translate(self, source: str, checkpoint: Path | None, beam: int) -> tuple[list[str], float]:
        """Translate a file of the folder; return the lines and the seconds taken."""
        output = self.folder / "translation.txt"
        output.unlink(missing_ok=True)
        places = {"source": source, "output": output.name, "checkpoint": checkpoint, "beam": beam}
        command = self.system.translate.format(python=self.python, **places)
        start = time.time()
        subprocess.run(command, shell=True, cwd=self.folder, env={**os.environ, **ALLOCATOR}, check=True)
        return output.read_text().splitlines(), time.time() - start

    def lines(self, name: str) -> list[str]:
        """Return the lines of a file of the folder."""
        return (self.folder / name).read_text().splitlines()

    def dev_bleu(self, checkpoint: Path) -> float:
        """Return the dev BLEU of a checkpoint with greedy search."""
        lines, _ = self.translate("dev.en", checkpoint, beam=1)
        return float(sacrebleu.corpus_bleu(lines, [self.lines("dev.de")]).score)

    def test(self, checkpoint: Path | None) -> dict[str, float]:
        """Translate the test set with beam 5; return its scores, and sentences per second without loading."""
        (self.folder / "one.en").write_text(f"{self.lines('test.en')[0]}\n")
        _, seconds_for_one = self.translate("one.en", checkpoint, beam=5)
        lines, seconds = self.translate("test.en", checkpoint, beam=5)
        references = self.lines("test.de")
        return {
            "bleu": sacrebleu.corpus_bleu(lines, [references]).score,
            "chrf2++": sacrebleu.corpus_chrf(lines, [references], word_order=2).score,
            "sentences_per_second": (len(references) - 1) / (seconds - seconds_for_one),
        }


def evenly_spaced(checkpoints: list[tuple[float, Path]], count: int) -> list[tuple[float, Path]]:
    """Return at most `count` of the checkpoints, at equal distances, the last one included."""
    distance = max(1, len(checkpoints) // count)
    return checkpoints[::-1][::distance][:count][::-1]


# ---- trials and final runs ------------------------------------------------------------------------------------------


class Benchmark:
    """All runs, and their results by name in results.json."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Load the results of an earlier start."""
        self.options = options
        self.pythons = {"mtformer": sys.executable, **{name: getattr(options, name) for name in list(SYSTEMS)[1:]}}
        self.path = options.out / "results.json"
        options.out.mkdir(parents=True, exist_ok=True)
        self.results: dict[str, dict[str, Any]] = json.loads(self.path.read_text()) if self.path.exists() else {}

    def run(self, name: str, kind: str, settings: Settings | None, seed: int) -> tuple[str, Run]:
        """Return the name of a run, and the run, which is not trained yet."""
        values: dict[str, object] = {"SEED": seed, "MINUTES": self.options.minutes}
        if settings is not None:
            values |= {"LEARNING_RATE": settings.learning_rate, "DROPOUT": settings.dropout}
            values |= {"BATCH_TOKENS": settings.batch, "BATCH_PAIRS": settings.batch}
        folder = self.options.out / name / kind
        return f"{name}/{kind}", Run(SYSTEMS[name], self.pythons[name], folder, self.options.folder, values)

    def record(self, name: str, result: dict[str, Any]) -> None:
        """Add a result to results.json, and print it."""
        self.results[name] = result
        self.path.write_text(json.dumps(self.results, indent=1))
        print(name, result, file=sys.stderr, flush=True)

    def trial(self, name: str, number: int) -> float:
        """Return the dev BLEU of a trial, from results.json or by training."""
        kind = f"trial{number}"
        if f"{name}/{kind}" not in self.results:
            settings = SYSTEMS[name].trials[number]
            key, run = self.run(name, kind, settings, seed=1)
            run.train(self.options.trial_minutes)
            _, last = run.checkpoints()[-1]
            self.record(key, {"settings": settings._asdict(), "dev_bleu": run.dev_bleu(last)})
        return float(self.results[f"{name}/{kind}"]["dev_bleu"])

    def best_settings(self, name: str) -> Settings | None:
        """Run the trials of a system; return the settings with the best dev BLEU, None if it has no trials."""
        trials = SYSTEMS[name].trials
        scores = [self.trial(name, number) for number in range(len(trials))]
        return trials[scores.index(max(scores))] if trials else None

    def final(self, name: str, settings: Settings | None, seed: int) -> None:
        """Train with the chosen settings, choose the checkpoint by dev BLEU, and score its translation of the test."""
        if f"{name}/seed{seed}" in self.results:
            return
        key, run = self.run(name, f"seed{seed}", settings, seed)
        curve = run.train(self.options.minutes)
        best = None
        if SYSTEMS[name].dev_bleu is None:
            checkpoints = evenly_spaced(run.checkpoints(), NUM_CURVE_POINTS)
            curve = [(minutes, run.dev_bleu(path)) for minutes, path in checkpoints]
            scores = [score for _, score in curve]
            best = checkpoints[scores.index(max(scores))][1]
        files = [FILES / file for file in SYSTEMS[name].files]
        result = {
            **run.test(best),
            "minutes": run.minutes,
            "settings": settings and settings._asdict(),
            "dev": curve,
            "commands": len(SYSTEMS[name].train),
            "lines": sum(map(num_lines, files)),
        }
        self.record(key, result)

    def finals(self, name: str) -> list[dict[str, Any]]:
        """Return the results of the final runs of a system that exist."""
        keys = [f"{name}/seed{seed}" for seed in SEEDS]
        return [self.results[key] for key in keys if key in self.results]


# ---- the table and the plot -----------------------------------------------------------------------------------------


def print_table(benchmark: Benchmark) -> None:
    """Print the mean and the values of the final runs in Markdown."""
    columns = ("bleu", "chrf2++", "minutes", "sentences_per_second")
    print("| system | settings | " + " | ".join(columns) + " |", "|---" * (len(columns) + 2) + "|", sep="\n")
    for name in SYSTEMS:
        results = benchmark.finals(name)
        if not results:
            continue
        cells = []
        for column in columns:
            values = [result[column] for result in results]
            cells.append(f"{statistics.mean(values):.1f} ({', '.join(f'{value:.1f}' for value in values)})")
        settings = results[0]["settings"]
        described = (
            "recommended" if settings is None else ", ".join(f"{key} {value}" for key, value in settings.items())
        )
        print(f"| {name} | {described} | " + " | ".join(cells) + " |")


def plot(benchmark: Benchmark, path: Path) -> None:
    """Draw dev BLEU over minutes, one line for each final run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 3.6), layout="constrained")
    for number, name in enumerate(SYSTEMS):
        labels = itertools.chain([name], itertools.repeat(None))
        for result, label in zip(benchmark.finals(name), labels, strict=False):
            minutes, scores = zip((0.0, 0.0), *result["dev"], strict=True)
            axes.plot(minutes, scores, marker=".", color=f"C{number}", label=label)
    axes.set(xlabel="minutes since the first command", ylabel="dev BLEU (greedy)")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Run the trials and the final runs, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--trial-minutes", type=float, default=10)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    for name in list(SYSTEMS)[1:]:
        parser.add_argument(f"--{name}", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    # A shell ignores SIGINT in background processes, and the systems would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    benchmark = Benchmark(options)
    for name in options.systems:
        settings = benchmark.best_settings(name)
        for seed in SEEDS:
            benchmark.final(name, settings, seed)
    print_table(benchmark)
    plot(benchmark, options.out / "dev_bleu.png")


if __name__ == "__main__":
    main()
