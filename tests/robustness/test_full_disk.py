"""Attacks in which the disk becomes full at a random time: a one-line error, and no partially written files."""

import contextlib
import random
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from attack_tools import Attacks, Passed, is_good_error, names
from program import invoke
from writing import CALLS, IN_PARTS, RESUMABLE, SLOW, Call, Place, Words, converting, result_of

from mtformer.files import LEFTOVER

SEED = 1
PAGE = 4096
LARGE = 64 << 20
ON_DISK = ("data.num_workers=1", "data.cache_dir=DISK")


def with_config(*before: str, after: tuple[str, ...] = ()) -> Call:
    """Return a call for the small config; `DISK` in the last arguments is replaced with the path of the disk."""

    def call(place: Place) -> Words:
        return [*before, place.config, *(word.replace("DISK", str(place.out.parent)) for word in after)]

    return call


WITH_CACHE: dict[str, Call] = {
    "preparing": with_config("train", after=("--dry-run", *ON_DISK)),
    "preparing a corpus": with_config("data", "prepare", after=ON_DISK),
    "converting to CTranslate2": converting,
}
"""Calls that write to the cache, whose files have other names."""
TRAINING = {"training": with_config("train", after=("--run-dir", "DISK/out", "data.test={}", "training.max_steps=2"))}
COMMANDS: dict[str, Call] = {**CALLS, **WITH_CACHE, **TRAINING}


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
        # Lazily, because a prepared corpus may still be mapped into memory.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def passes(name: str, place: Place, whole: Place) -> tuple[bool, str]:
    """Return whether a call succeeds or reports a full disk in one line and leaves no output, and a description.

    Args:
        name: name of the call.
        place: place on the disk.
        whole: place on a disk with enough space; a call that succeeds must write the same as there.
    """
    disk = place.out.parent
    result = invoke(*COMMANDS[name](place))
    if result.exit_code == 0:
        return is_complete(name, place, whole), f"different output: {names(disk)}"

    seen = f"{result.exit_code} {result.stderr[-500:]} {names(disk)}"
    message = result.stderr.strip().split("\n")[-1]
    is_reported = is_good_error(result.exit_code, result.stderr) and str(disk) in message
    is_reported &= "No space left on device" in message or "B free, but two" in message
    is_reported &= "free some space" in message
    if not is_reported or any(LEFTOVER.fullmatch(path.name) for path in disk.rglob(".*")):
        return False, seen
    if name in IN_PARTS:
        return result_of(name, place).items() <= result_of(name, completed(name, whole)).items(), seen
    if name not in RESUMABLE:
        return not place.out.exists(), seen

    # With enough space, the same call resumes the interrupted one.
    subprocess.run(["mount", "-o", f"remount,size={LARGE}", str(disk)], check=True)
    again = invoke(*COMMANDS[name](place))
    return again.exit_code == 0 and is_complete(name, place, whole), f"{seen}, then {again.stderr[-500:]}"


def is_complete(name: str, place: Place, whole: Place) -> bool:
    """Return True if a call has written the same files as on a disk with enough space."""
    if name in WITH_CACHE or name in TRAINING:
        return True
    return result_of(name, place) == result_of(name, completed(name, whole))


def completed(name: str, whole: Place) -> Place:
    """Return a place after the call has written its files there."""
    whole.out.parent.mkdir(exist_ok=True)
    if not result_of(name, whole):
        assert invoke(*COMMANDS[name](whole)).exit_code == 0
    return whole


def test_full_disk(
    trained: tuple[Path, object], corpus: Path, attacks: Attacks, passed: Passed, tmp_path: Path
) -> None:
    if shutil.which("mount") is None:
        pytest.skip("the `mount` program is not available")
    cases = [name for name in COMMANDS if attacks(1) > 1 or name not in SLOW]
    failures, total = list[str](), attacks(16)
    (tmp_path / "inputs").mkdir()
    here = Place(corpus, trained[0], tmp_path / "inputs", tmp_path)

    chance = random.Random(SEED)
    for number in range(total):
        name, size = cases[number % len(cases)], PAGE * round(2 ** chance.uniform(0, 7))
        whole = replace(here, out=tmp_path / f"large {name}" / "out")
        COMMANDS[name](whole)  # writes further inputs
        with small_disk(tmp_path / str(number), size) as disk, pytest.MonkeyPatch.context() as patch:
            if name == "converting to CTranslate2":
                patch.setenv("MTFORMER_CACHE", str(disk))
            is_passed, seen = passes(name, replace(here, out=disk / "out"), whole)
        if not is_passed:
            failures.append(f"{name} on {size:,} bytes: {seen}")
    print("\n".join(failures))
    passed("disks that become full", total - len(failures), total)
