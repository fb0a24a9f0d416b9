"""Attacks in which the disk becomes full at a random time: a one-line error, and no partially written files."""

import contextlib
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attack_tools import Attacks, Passed, is_good_error, names, tree
from program import invoke

SEED = 1
PAGE = 4096

Command = Callable[[Path, Path, Path], list[object]]


def exporting(name: str) -> Command:
    return lambda run, corpus, disk: ["export", run, "--format", name, "--output", disk / "out"]


def with_config(*before: str, after: tuple[str, ...] = ()) -> Command:
    """Return a command on the small config; `DISK` in the last arguments is replaced with the path of the disk."""
    return lambda run, corpus, disk: [
        *before, corpus / "small.yaml", *(word.replace("DISK", str(disk)) for word in after),
    ]  # fmt: skip


COMMANDS: dict[str, Command] = {
    "export a bundle": exporting("bundle"),
    "export to CTranslate2": exporting("ctranslate2"),
    "export to Hugging Face": exporting("huggingface"),
    "export to Argos Translate": exporting("argos"),
    "data clean": with_config("data", "clean", after=("DISK/out", "data.num_workers=1")),
    "tokenizer train": with_config("tokenizer", "train", after=("--output", "DISK/out")),
    "prepare": with_config("train", after=("--dry-run", "data.num_workers=1", "data.cache_dir=DISK")),
    "train": with_config("train", after=("--run-dir", "DISK/out", "data.test={}", "training.max_steps=2")),
    "translate": lambda run, corpus, disk: [
        "translate", run, "--beam-size", 1, "--input", corpus / "train.en", "--output", disk / "out",
    ],
}  # fmt: skip

WITH_TIMES = ("prepare", "train")
"""Commands whose output contains times."""


@contextlib.contextmanager
def small_disk(folder: Path, num_bytes: int) -> Iterator[Path]:
    """Mount a tmpfs of this size."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if done.returncode:
        pytest.skip(f"cannot mount a tmpfs: {done.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def contents(path: Path) -> object:
    return path.read_bytes() if path.is_file() else tree(path)


def passes(name: str, run: Path, corpus: Path, disk: Path, large: Path) -> tuple[bool, str]:
    """Return whether a command succeeds or reports a full disk in one line and leaves no output, and a description.

    A command that succeeds must write the same as in the folder `large`, which is on a disk with enough space.
    """
    result = invoke(*COMMANDS[name](run, corpus, disk))
    if result.exit_code == 0:
        if name in WITH_TIMES:
            return True, ""
        large.mkdir(exist_ok=True)
        if not (large / "out").exists():
            invoke(*COMMANDS[name](run, corpus, large))
        return contents(disk / "out") == contents(large / "out"), f"different output: {names(disk)}"
    is_reported = is_good_error(result.exit_code, result.stderr) and str(disk) in result.stderr
    is_reported &= "No space left on device" in result.stderr or "B free, but two" in result.stderr
    return is_reported and not (disk / "out").exists(), f"{result.exit_code} {result.stderr[-500:]} {names(disk)}"


def test_full_disk(
    trained: tuple[Path, object], corpus: Path, attacks: Attacks, passed: Passed, tmp_path: Path
) -> None:
    if shutil.which("mount") is None:
        pytest.skip("the `mount` program is not available")
    failures, total = list[str](), attacks(12)
    # Importing transformers takes seconds each time.
    cases = [name for name in COMMANDS if attacks(1) > 1 or name != "export to Hugging Face"]
    chance = random.Random(SEED)
    for number in range(total):
        name, size = cases[number % len(cases)], PAGE * round(2 ** chance.uniform(0, 7))
        with small_disk(tmp_path / str(number), size) as disk:
            is_passed, seen = passes(name, trained[0], corpus, disk, tmp_path / f"large {name}")
        if not is_passed:
            failures.append(f"{name} on {size:,} bytes: {seen}")
    print("\n".join(failures))
    passed("disks that become full", total - len(failures), total)
