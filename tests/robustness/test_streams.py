"""Attacks with closed, full or broken stdin, stdout and stderr: commands end without a traceback."""

import itertools
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from attack_tools import Attacks, Passed, is_calm, is_good_error, run_with_streams

SEED = 1
BROKEN_PIPE = 141
NUM_LINES = 400

Command = Callable[[Path, Path, Path], list[object]]
COMMANDS: dict[str, Command] = {
    "config show": lambda run, corpus, folder: ["config", "show", corpus / "small.yaml"],
    "config schema": lambda run, corpus, folder: ["config", "schema"],
    "runs": lambda run, corpus, folder: ["runs", run.parent],
    "tokenizer encode": lambda run, corpus, folder: ["tokenizer", "encode", run],
    "tokenizer decode": lambda run, corpus, folder: ["tokenizer", "decode", run],
    "score": lambda run, corpus, folder: ["score", run, folder / "lines", folder / "lines"],
    "data cache": lambda run, corpus, folder: ["data", "cache"],
    "translate": lambda run, corpus, folder: ["translate", run, "--beam-size", 1, "--max-length", 3],
    "translate --input": lambda run, corpus, folder: [
        "translate", run, "--beam-size", 1, "--max-length", 3, "--input", folder / "lines",
    ],
    "data check": lambda run, corpus, folder: ["data", "check", corpus / "small.yaml", "data.num_workers=1"],
    "data clean": lambda run, corpus, folder: ["data", "clean", corpus / "small.yaml", folder / "clean"],
    "help": lambda run, corpus, folder: ["train", "--help"],
}  # fmt: skip
CONDITIONS: dict[str, dict[str, str | None]] = {
    "stdin closed": {"stdin": None},
    "stdout closed": {"stdout": None},
    "stderr closed": {"stderr": None},
    "all closed": {"stdin": None, "stdout": None, "stderr": None},
    "stdout full": {"stdout": "/dev/full"},
    "stderr full": {"stderr": "/dev/full"},
    "stdin of noise": {"stdin": "noise"},
    "stdout is a closed pipe": {"stdout": "pipe"},
}


def read_one_byte(path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        file.read(1)


def passes(name: str, streams: dict[str, str | None], run: Path, corpus: Path, folder: Path) -> bool:
    """Run the command, and return True if it ends with an expected exit code and message."""
    chance = random.Random(SEED)
    lines = [line for line in (corpus / "train.en").read_bytes().split(b"\n") if line][:NUM_LINES]
    (folder / "lines").write_bytes(b"".join(line + b"\n" for line in lines))
    (folder / "noise").write_bytes(chance.randbytes(2000))
    os.mkfifo(folder / "pipe")
    named = {"noise": str(folder / "noise"), "pipe": str(folder / "pipe"), None: None}
    given = {"stdin": str(folder / "lines"), "stderr": str(folder / "stderr")}
    given |= {name: named.get(value, value) for name, value in streams.items()}
    if streams.get("stdout") == "pipe":
        threading.Thread(target=read_one_byte, args=(folder / "pipe",), daemon=True).start()
    code = run_with_streams(*COMMANDS[name](run, corpus, folder), **given)
    words = (folder / "stderr").read_text(encoding="utf-8", errors="replace") if (folder / "stderr").exists() else ""
    if code == 2 and "stderr" not in streams:
        return is_good_error(2, words)
    if code == 0 and streams.get("stdout", "") in (None, "/dev/full"):  # the output is lost
        return name == "data clean"
    others = {"data check": 1, "help": 1}  # exceeded limits; Click's exit code for a broken pipe
    return code in (0, 2, others.get(name), BROKEN_PIPE) and is_calm(words)


@pytest.mark.process
def test_streams(trained: tuple[Path, object], corpus: Path, attacks: Attacks, passed: Passed, tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    cases = list(itertools.product(COMMANDS, CONDITIONS))
    random.Random(SEED).shuffle(cases)
    failures, total = list[tuple[str, str]](), min(len(cases), attacks(12))
    for number, (name, condition) in enumerate(cases[:total]):
        folder = tmp_path / str(number)
        folder.mkdir()
        if not passes(name, CONDITIONS[condition], trained[0], corpus, folder):
            failures.append((name, condition))
    print("failed attacks:", failures)
    passed("streams that are closed, full or broken", total - len(failures), total)
