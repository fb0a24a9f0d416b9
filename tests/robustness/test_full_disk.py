"""A disk that is full at a random moment: one line that says so, and no file that is half written."""

import contextlib
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attack_tools import Attacks, Held, is_good_error, names
from program import invoke

SEED = 1
PAGE = 4096

Command = Callable[[Path, Path, Path], list[object]]


def exporting(name: str) -> Command:
    return lambda run, corpus, disk: ["export", run, "--format", name, "--output", disk / "out"]


def with_config(*before: str, after: tuple[str, ...] = ()) -> Command:
    """A command on the small config; `DISK` in its last words is the disk."""
    return lambda run, corpus, disk: [
        *before, corpus / "small.yaml", *(word.replace("DISK", str(disk)) for word in after),
    ]  # fmt: skip


COMMANDS: dict[str, Command] = {
    "export a bundle": exporting("bundle"),
    "export to CTranslate2": exporting("ctranslate2"),
    "export to Hugging Face": exporting("huggingface"),
    "data clean": with_config("data", "clean", after=("DISK/out", "data.num_workers=1")),
    "tokenizer train": with_config("tokenizer", "train", after=("--output", "DISK/out")),
    "prepare": with_config("train", after=("--dry-run", "data.num_workers=1", "data.cache_dir=DISK")),
    "train": with_config("train", after=("--run-dir", "DISK/out", "data.test={}", "training.max_steps=2")),
    "translate": lambda run, corpus, disk: [
        "translate", run, "--beam-size", 1, "--input", corpus / "train.en", "--output", disk / "out",
    ],
}  # fmt: skip


@contextlib.contextmanager
def small_disk(folder: Path, num_bytes: int) -> Iterator[Path]:
    """Mount a tmpfs of this size."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def holds(command: Command, run: Path, corpus: Path, disk: Path) -> tuple[bool, str]:
    """Return whether the command succeeds, or says in one line that the disk is full and leaves no half result."""
    result = invoke(*command(run, corpus, disk))
    if result.exit_code == 0:
        return True, ""
    is_told = is_good_error(result.exit_code, result.stderr) and str(disk) in result.stderr
    is_told &= "No space left on device" in result.stderr or "B free, and two" in result.stderr
    return is_told and not (disk / "out").exists(), f"{result.exit_code} {result.stderr[-500:]} {names(disk)}"


def test_full_disk(trained: tuple[Path, object], corpus: Path, attacks: Attacks, held: Held, tmp_path: Path) -> None:
    if shutil.which("mount") is None:
        pytest.skip("there is no `mount` here")
    failures, total = list[str](), attacks(12)
    # Each import of transformers takes seconds.
    cases = [name for name in COMMANDS if attacks(1) > 1 or name != "export to Hugging Face"]
    chance = random.Random(SEED)
    for number in range(total):
        name, size = cases[number % len(cases)], PAGE * round(2 ** chance.uniform(0, 7))
        with small_disk(tmp_path / str(number), size) as disk:
            is_held, seen = holds(COMMANDS[name], trained[0], corpus, disk)
        if not is_held:
            failures.append(f"{name} on {size:,} bytes: {seen}")
    print("\n".join(failures))
    held("disks that become full", total - len(failures), total)
