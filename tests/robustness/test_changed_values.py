"""A changed value in a file that a later step reads is never used silently.

Each file of a run is damaged in each way. A command then writes the same as before, or names the file in an error or a
warning. The digits of numbers are changed, too: such a file can still be read, so only its checksum shows the damage.
"""

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from program import invoke

from mtformer.data.store.cache import STORE
from mtformer.decoding.lines.confidence import Calibration, Logistic, write_calibration
from mtformer.decoding.loading import _warn_once
from mtformer.files import cache_folder
from mtformer.run_dir import RunDir

SEED = 3
SEVERAL = b"A man sleeps. The dog runs.\nThe girl eats. The boy eats.\n"
CALIBRATION = Calibration(
    good_chrf=50.0,
    num_pairs=500,
    regressions=[Logistic(bias=4.25, terms={"probability": (0.5, 0.25, 0.125), "flags": (0.0, 1.0, -0.5)})],
)


def change_digit(data: bytes, chance: random.Random) -> bytes:
    """Change one bit of a digit of a number in text, so that it is another digit."""
    places = [found.start() for found in re.finditer(rb"[1-7](?=[\d.,}\s])", data)]
    changed = bytearray(data)
    changed[chance.choice(places)] ^= 1
    return bytes(changed)


def change_bit(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def change_name(data: bytes, chance: random.Random) -> bytes:
    """Change one bit of the name `checksum`, so that the file looks as if it had none."""
    return data.replace(b'"checksum"', b'"checksun"')


DAMAGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "digit": change_digit,
    "bit": change_bit,
    "name of the checksum": change_name,
    "cut": lambda data, chance: data[: chance.randrange(len(data))],
    "emptied": lambda data, chance: b"",
}


def is_same_json(one: bytes, other: bytes) -> bool:
    """Return True if both are the same JSON value, for example if a space was replaced with a line end."""
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return False


READ_BY: dict[str, Callable[[Path, Path], list[tuple[object, ...]]]] = {
    "config.yaml": lambda run, new: [("translate", run)],
    "checksums.json": lambda run, new: [("translate", run)],
    "tokenizer/joint.model": lambda run, new: [("translate", run)],
    "checkpoints/averaged/meta.json": lambda run, new: [("translate", run)],
    "checkpoints/averaged/model.safetensors": lambda run, new: [("translate", run)],
    "checkpoints/step-00000012/meta.json": lambda run, new: [
        ("train", run / "config.yaml", "--run-dir", run, "--resume"),
    ],
    "checkpoints/step-00000012/trainer.pt": lambda run, new: [
        ("train", run / "config.yaml", "--run-dir", run, "--resume"),
    ],
    "data_report.json": lambda run, new: [("translate", run), ("export", run, "--output", new)],
    "confidence.json": lambda run, new: [("translate", run, "--json"), ("export", run, "--output", new)],
    "metrics.jsonl": lambda run, new: [("runs", run), ("report", run)],
    "samples.jsonl": lambda run, new: [("report", run)],
    "eval/small/scores.json": lambda run, new: [("compare", run, run.with_name("same"))],
    "eval/small/hypotheses.txt": lambda run, new: [("compare", run, run.with_name("same"))],
}
"""The commands that rely on each file of a run."""


@pytest.fixture
def calibrated(run: Path) -> Path:
    """A run with a confidence, and with its copy `same`."""
    write_calibration(RunDir(run).confidence, CALIBRATION)
    shutil.copytree(run, run.with_name("same"))
    return run


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", READ_BY)
def test_damage_to_a_run_is_noticed(name: str, damage: str, calibrated: Path, tmp_path: Path) -> None:
    chance = random.Random(f"{SEED} {name} {damage}")
    file, new = calibrated / name, tmp_path / "new"
    data = file.read_bytes()
    if damage == "digit" and file.suffix in (".model", ".safetensors", ".pt", ".txt"):
        pytest.skip("not a file with numbers in text")
    if damage == "name of the checksum" and b'"checksum"' not in data:
        pytest.skip("a file without a checksum of its own; another file has it")
    changed = DAMAGES[damage](data, chance)
    while is_same_json(changed, data):
        changed = DAMAGES[damage](data, chance)
    for words in READ_BY[name](calibrated, new):
        file.write_bytes(changed)
        _warn_once.cache_clear()
        result = invoke(*words, stdin=SEVERAL)
        assert result.exit_code in (0, 2), result.stderr
        assert "Traceback" not in result.stderr
        report = RunDir(calibrated).report
        shown = result.stderr + result.stdout + (report.read_text() if words[0] == "report" else "")
        where = file.parent if file.parent.name.startswith("step-") else file
        assert str(where) in shown, (words, result.stderr)
        if result.exit_code == 2:
            assert len([line for line in result.stderr.splitlines() if line.startswith("error: ")]) == 1
        shutil.rmtree(new, ignore_errors=True)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_confidence_is_an_error_for_the_option_that_needs_it(
    damage: str, calibrated: Path, tmp_path: Path
) -> None:
    bundle = tmp_path / "bundle"
    assert invoke("export", calibrated, "--output", bundle).exit_code == 0
    for folder in (calibrated, bundle):
        file = folder / "confidence.json"
        data = file.read_bytes()
        expected = invoke("translate", folder, stdin=SEVERAL).stdout
        assert invoke("translate", folder, "--only-above", 0.5, stdin=SEVERAL).stdout == expected
        chance = random.Random(f"{SEED} {damage}")
        for _ in range(4):
            changed = DAMAGES[damage](data, chance)
            if is_same_json(changed, data):
                continue
            file.write_bytes(changed)
            result = invoke("translate", folder, "--only-above", 0.5, stdin=SEVERAL)
            assert (result.exit_code, result.stdout) == (2, "")
            remedy = "write it again with `mtformer eval RUN --calibrate`"
            assert result.stderr == f"error: {file}: damaged, or of another version; {remedy}\n"
            without = invoke("translate", folder, stdin=SEVERAL)
            assert (without.exit_code, without.stdout) == (0, expected)
            assert f"{file}: damaged" in without.stderr
        file.write_bytes(data)


def test_a_confidence_of_version_0_3_is_used_and_called_unverified(calibrated: Path) -> None:
    file = calibrated / "confidence.json"
    expected = invoke("translate", calibrated, "--json", stdin=SEVERAL).stdout
    file.write_text(CALIBRATION.model_dump_json(indent=2) + "\n")
    assert invoke("translate", calibrated, "--json", stdin=SEVERAL).stdout == expected
    result = invoke("translate", calibrated, "--only-above", 0.5, stdin=SEVERAL)
    assert (result.exit_code, result.stdout.strip() != "") == (0, True)
    assert f"{file}: has no checksum, because version 0.3 wrote it" in result.stderr


def test_a_missing_data_report_is_named(run: Path) -> None:
    """It decides how lines with several sentences are split."""
    RunDir(run).data_report.unlink()
    result = invoke("translate", run, stdin=SEVERAL)
    assert result.exit_code == 0
    assert f"{RunDir(run).data_report}: missing, so lines with several sentences are split" in result.stderr


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_store_is_refused(damage: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MTFORMER_CACHE", str(tmp_path / "cache"))
    words = ("train", corpus / "small.yaml", "data.test={}", "training.max_steps=1", "training.average_last=0")
    assert invoke(*words, "--run-dir", tmp_path / "first").exit_code == 0
    stores = sorted(cache_folder().glob(f"*/{STORE}"))
    assert len(stores) == 2
    chance = random.Random(f"{SEED} {damage}")
    for store in stores:
        data = store.read_bytes()
        for _ in range(3):
            changed = DAMAGES[damage](data, chance)
            if is_same_json(changed, data):
                continue
            store.write_bytes(changed)
            result = invoke(*words, "--run-dir", tmp_path / "second")
            assert result.exit_code == 2, damage
            assert f"error: {store}: " in result.stderr
            assert not (tmp_path / "second").exists()
        store.write_bytes(data)
    assert invoke(*words, "--run-dir", tmp_path / "second").exit_code == 0
