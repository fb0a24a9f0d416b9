"""The commands that write files, for the attacks that kill them or fill their disk."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml
from attack_tools import tree
from program import invoke

from mtformer.run_dir import RunDir

SMALL = ("data.num_workers=1", "data.test={}")
"""Overrides for commands that do not need test sets."""
SHORT = ("--beam-size", "1", "--max-length", "3")
"""Options that make translations fast."""
FEW_STEPS = ("training.max_steps=4", "training.validate_every=2", "training.warmup_steps=1")
MEMORIZING = ("max_steps=150", "batch_tokens=512", "validate_every=150", "average_last=0", "learning_rate=0.01")
SOURCE_LINES = 300
EXACT = (".safetensors", ".model", ".tsv", ".txt")
"""Suffixes of files that contain neither times nor paths."""


@dataclass(frozen=True)
class Place:
    """Files of a call."""

    corpus: Path
    run: Path
    """A finished run, which must not be changed."""
    inputs: Path
    """Folder of further inputs, which are written once."""
    out: Path
    """The file or folder to write."""

    @property
    def config(self) -> Path:
        return self.corpus / "small.yaml"

    def lines(self, side: str, count: int) -> list[str]:
        return (self.corpus / f"train.{side}").read_text(encoding="utf-8").splitlines()[:count]

    def text(self, name: str, lines: list[str]) -> Path:
        """Return an input file with these lines."""
        path = self.inputs / name
        if not path.exists():
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return path


Words = list[object]
Call = Callable[[Place], Words]


def exporting(name: str) -> Call:
    return lambda place: ["export", place.run, "--format", name, "--output", place.out]


def adapting(place: Place) -> Words:
    pairs = [f"{src}\t{tgt}" for src, tgt in zip(place.lines("en", 80), place.lines("de", 80), strict=True)]
    return ["adapt", place.run, "--train", place.text("new.tsv", pairs), "--run-dir", place.out, *FEW_STEPS]


def teacher(place: Place) -> Path:
    """Return a run that knows a few translations by heart, and that can be exported to Hugging Face and imported."""
    run = place.inputs / "teacher"
    if not run.exists():
        files = [place.text(f"known.{side}", place.lines(side, 12)) for side in ("en", "de")]
        corpus = json.dumps([{"src": str(files[0]), "tgt": str(files[1])}])
        settings = ("training.max_steps=150", "training.batch_tokens=512", "training.validate_every=150")
        words = ["train", place.config, "--run-dir", run, f"data.train={corpus}", "model.norm_position=post"]
        result = invoke(
            *words,
            *settings,
            "training.average_last=0",
            "training.learning_rate=0.01",
            "tokenizer.vocab_size=150",
            *SMALL,
        )
        assert result.exit_code == 0, result.stderr
    return run


def distilling(place: Place) -> Words:
    student = place.inputs / "student.yaml"
    files = [place.text(f"few.{side}", place.lines(side, 60)) for side in ("en", "de")]
    values = {
        "extends": str(place.config),
        "data": {
            "num_workers": 1,
            "train": [{"src": str(files[0]), "tgt": str(files[1])}],
            "filters": {"max_repeats": None, "max_filtered_share": 1.0},
        },
        "tokenizer": {"vocab_size": 100},
        "training": {"max_steps": 4},
    }
    student.write_text(yaml.safe_dump(values), encoding="utf-8")
    return ["distill", teacher(place), "--config", student, "--run-dir", place.out]


def importing(place: Place) -> Words:
    marian = place.inputs / "marian"
    if not marian.exists():
        assert invoke("export", teacher(place), "--format", "huggingface", "--output", marian).exit_code == 0
    return ["import", marian, place.out]


def calibrating(place: Place) -> Words:
    """Return a call that writes the confidence of a copy of the run, which is a link to the output."""
    run = place.out.parent.with_name(f"{place.out.parent.name}.run")
    if not run.exists():
        shutil.copytree(teacher(place), run)
        RunDir(run).confidence.symlink_to(place.out)
    files = [
        "--src",
        place.text("dev.en", place.lines("en", 600)),
        "--ref",
        place.text("dev.de", place.lines("de", 600)),
    ]
    return ["eval", run, "--calibrate", *files, "--beam-size", 1]


def translating(place: Place) -> Words:
    source = place.text("sources.txt", place.lines("en", SOURCE_LINES))
    return ["translate", place.run, "--input", source, "--output", place.out, *SHORT]


def converting(place: Place) -> Words:
    """Return a call that converts the model in the cache, and writes nothing else."""
    source = place.text("few.txt", place.lines("en", 3))
    return ["translate", place.run, "--backend", "ctranslate2", "--input", source, *SHORT]


def attending(place: Place) -> Words:
    source = place.text("few.txt", place.lines("en", 3))
    return ["translate", place.run, "--input", source, "--attention", f"{place.out}.json", *SHORT]


def evaluating(place: Place) -> Words:
    files = ["--src", place.corpus / "test.en", "--ref", place.corpus / "test.de"]
    return ["eval", place.run, "--output", place.out, *files, *SHORT]


def checking(option: str) -> Call:
    return lambda place: ["data", "check", place.config, option, place.out, *SMALL]


def beginning(place: Place) -> Words:
    return ["init", place.corpus / "train.en", place.corpus / "train.de", f"{place.out}.yaml"]


CALLS: dict[str, Call] = {
    "writing a config": beginning,
    "training a tokenizer": lambda place: ["tokenizer", "train", place.config, "--output", place.out],
    "exporting a bundle": exporting("bundle"),
    "exporting to CTranslate2": exporting("ctranslate2"),
    "exporting to Hugging Face": exporting("huggingface"),
    "exporting to Argos Translate": exporting("argos"),
    "cleaning": lambda place: ["data", "clean", place.config, place.out, *SMALL],
    "translating": translating,
    "writing attention": attending,
    "adapting": adapting,
    "distilling": distilling,
    "importing": importing,
    "calibrating": calibrating,
    "evaluating": evaluating,
    "examining": lambda place: ["exam", place.run, "--lines", 2, "--json", place.out, *SHORT],
    "reporting": lambda place: ["report", place.run, "--out", place.out],
    "checking with --json": checking("--json"),
    "checking with --html": checking("--html"),
    "generating the demo": lambda place: ["data", "demo", place.out],
}
"""Calls that write `Place.out`, by the name of the attack. The same call repeats or resumes an interrupted one."""

VARYING = (
    "writing a config",
    "adapting",
    "distilling",
    "importing",
    "evaluating",
    "examining",
    "reporting",
    "checking with --html",
)
"""Calls whose output contains times or its own path."""
RESUMABLE = ("adapting", "distilling")
"""Calls whose output folder exists before it is complete, because the same call resumes it."""
IN_PARTS = ("evaluating", "generating the demo")
"""Calls that write several files, each of which is useful without the others."""
SLOW = ("exporting to Hugging Face", "importing", "adapting", "distilling", "calibrating", "generating the demo")
"""Calls that are not in the sample of the default test suite, because they take seconds."""


def result_of(name: str, place: Place) -> dict[str, bytes]:
    """Return the files that a call has written; those that contain times or paths are empty."""
    if place.out.is_dir():
        contents = tree(place.out)
    else:
        paths = place.out.parent.glob(f"{place.out.name}*")
        contents = {path.name: path.read_bytes() for path in paths if path.is_file()}
    if name not in VARYING:
        return contents
    return {path: data if path.endswith(EXACT) else b"" for path, data in contents.items()}
