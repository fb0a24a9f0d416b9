"""Attacks with damaged and manipulated files of a run: commands work without the file or report it in one line."""

import copy
import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from attack_tools import Attacks, Passed
from calls import problem, report
from program import invoke

from mtformer.errors import CheckpointError
from mtformer.files import CHECKSUMS, META, read_meta, write_meta
from mtformer.run_dir import TRAINER_STATE, RunDir

SEED = 1
ODD: list[Any] = [
    None, True, 0, -1, 1.5, "", "x", [], {}, [1], {"a": 1}, 10**30, float("nan"), "9" * 4000, [[]], {"a": [None]},
    "\ud800",
]  # fmt: skip
GONE = object()
COMMANDS = """
translate RUN
translate RUN --checkpoint last:2
translate RUN --checkpoint best
eval RUN
score RUN TEXT TEXT
config show RUN
runs RUN
report RUN
compare RUN SAME
tokenizer encode RUN
export RUN
data check RUN
""".strip().splitlines()


@pytest.fixture
def copies(trained: tuple[Path, object], tmp_path: Path) -> Iterator[Path]:
    """Yield intact copies of the run, each of which replaces the previous one."""

    def copy() -> Iterator[Path]:
        while True:
            shutil.rmtree(tmp_path / "run", ignore_errors=True)
            yield Path(shutil.copytree(trained[0], tmp_path / "run"))

    return copy()


def problem_after(run: Path, same: Path, corpus: Path, chance: random.Random) -> str:
    """Call a random command on the run, and return the problem with the call; empty if it passes."""
    places = {"RUN": run, "SAME": same, "TEXT": corpus / "test.en"}
    return problem(*(places.get(word, word) for word in chance.choice(COMMANDS).split()))


def test_damaged_files_of_a_run(
    copies: Iterator[Path], trained: tuple[Path, object], corpus: Path, attacks: Attacks, passed: Passed
) -> None:
    chance, count = random.Random(SEED), attacks(16)
    names = [path.relative_to(trained[0]) for path in sorted(trained[0].rglob("*")) if path.is_file()]
    problems = []
    for _ in range(count):
        run, name = next(copies), chance.choice(names)
        data, kind = (run / name).read_bytes(), chance.choice(["bit", "bit", "cut", "cut", "pipe", "folder", "gone"])
        (run / name).unlink()
        if kind == "bit" and data:
            place = chance.randrange(len(data))
            (run / name).write_bytes(data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :])
        elif kind == "cut":
            (run / name).write_bytes(data[: chance.randrange(len(data) + 1)])
        elif kind == "pipe":
            os.mkfifo(run / name)
        elif kind == "folder":
            (run / name).mkdir()
        found = problem_after(run, trained[0], corpus, chance)
        problems.append(found and f"{kind} {name}: {found}")
    print(report(problems))
    passed("damaged, replaced and missing files of a run", problems.count(""), count)


def test_wrong_types_in_json_files(
    copies: Iterator[Path], trained: tuple[Path, object], corpus: Path, attacks: Attacks, passed: Passed
) -> None:
    """The checksums in meta.json and checksums.json are correct, as those of an attacker would be."""
    chance, count = random.Random(SEED), attacks(16)
    problems = []
    for _ in range(count):
        run = next(copies)
        path = chance.choice(sorted([*run.rglob("*.json"), *run.glob("*.jsonl")]))
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        number = chance.randrange(len(lines))
        value = json.loads(lines[number])
        value.pop("checksum", None)
        changed, what = changed_value(value, chance)
        if path.name in (META, CHECKSUMS) and isinstance(changed, dict):
            _seal(path, changed)
        else:
            lines[number] = chance.choice([json.dumps(changed), json.dumps(changed), "[" * 100_000])
            path.write_text("\n".join(lines) + "\n")
        found = problem_after(run, trained[0], corpus, chance)
        problems.append(found and f"{path.name} {what}: {found}")
    print(report(problems))
    passed("JSON files of a run with wrong types", problems.count(""), count)


def test_wrong_types_in_trainer_states(copies: Iterator[Path], corpus: Path, attacks: Attacks, passed: Passed) -> None:
    chance, count = random.Random(SEED), attacks(8)
    problems = []
    for _ in range(count):
        run = next(copies)
        folder = RunDir(run).checkpoint(12)
        state, what = changed_value(torch.load(folder / TRAINER_STATE, weights_only=True), chance)
        _replace_state(folder, state)
        found = problem("train", corpus / "small.yaml", "training.max_steps=13", "--run-dir", run, "--resume")
        problems.append(found and f"{what}: {found}")
    print(report(problems))
    passed("trainer states with wrong types", problems.count(""), count)


def _replace_state(folder: Path, state: Any) -> None:
    """Replace trainer.pt of a checkpoint, with correct checksums."""
    torch.save(state, folder / TRAINER_STATE)
    meta = read_meta(folder)
    (folder / META).unlink()
    write_meta(folder, **{key: value for key, value in meta.items() if key != "sha256"})


def changed_value(value: Any, chance: random.Random) -> tuple[Any, str]:
    """Return the value with an unusual value at a random position, and a description of the change."""
    path = chance.choice(list(_paths(value)))
    odd = chance.choice([*ODD, GONE] if path else ODD)
    return _put(value, path, odd), f"{path} = {'removed' if odd is GONE else repr(odd)[:20]}"


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, item in items:
        yield from _paths(item, (*path, key))


def _put(value: Any, path: tuple[Any, ...], odd: Any) -> Any:
    if not path:
        return odd
    copy = value.copy()
    if odd is GONE and len(path) == 1:
        del copy[path[0]]
    else:
        copy[path[0]] = _put(value[path[0]], path[1:], odd)
    return copy


def _seal(path: Path, values: dict[str, Any]) -> None:
    """Write any values to meta.json or checksums.json, with a correct checksum."""
    from mtformer.files import _with_checksum

    path.write_text(_with_checksum(values))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"step": "x", "metrics": {}}, "step Input should be a valid integer"),
        ({"step": 1, "metrics": {"bleu": "x"}}, "metrics.bleu Input should be a valid number"),
        ({"step": 1}, "metrics Field required"),
        ({"step": 1, "metrics": {}, "logs": {"metrics.jsonl": {}}}, "bytes Field required"),
    ],
)
def test_wrong_types_in_meta_are_rejected(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_meta(tmp_path, **values)
    with pytest.raises(CheckpointError, match=message):
        read_meta(tmp_path)


def test_a_deeply_nested_meta_is_rejected(tmp_path: Path) -> None:
    (tmp_path / META).write_text('{"a": ' * 5000 + "1" + "}" * 5000)
    with pytest.raises(CheckpointError, match="nested too deeply"):
        read_meta(tmp_path)


def test_wrong_types_in_checksums_are_rejected(run: Path) -> None:
    _seal(run / CHECKSUMS, {"sha256": [1]})
    result = invoke("translate", run)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {run / CHECKSUMS}: not readable (")
    assert result.stderr.count("\n") == 1


def test_optimizer_moments_of_another_shape_are_rejected(run: Path, corpus: Path) -> None:
    folder = RunDir(run).checkpoint(12)
    state = torch.load(folder / TRAINER_STATE, weights_only=True)
    state["optimizer"]["state"][0]["exp_avg"] = torch.zeros(3, 3)
    _replace_state(folder, state)
    result = invoke("train", corpus / "small.yaml", "training.max_steps=13", "--run-dir", run, "--resume")
    assert result.exit_code == 2, result.stderr
    assert "trainer.pt: not a trainer state of this run (ValueError: the shapes of moments" in result.stderr


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "muon"])
def test_a_missing_or_further_moment_is_rejected(optimizer: str, corpus: Path, tmp_path: Path) -> None:
    """The optimizer would fail at the first step, or ignore the tensor."""
    run = tmp_path / "run"
    settings = ("training.average_last=0", "training.validate_every=1", "data.test={}")
    words = ("train", corpus / "small.yaml", f"training.optimizer={optimizer}", *settings, "--run-dir", run)
    assert invoke(*words, "training.max_steps=1").exit_code == 0
    folder = RunDir(run).checkpoint(1)
    intact = torch.load(folder / TRAINER_STATE, weights_only=True)
    # The first parameter is a matrix, and the last one is not.
    for index in (0, max(intact["optimizer"]["state"])):
        for name in ("momentum", "exp_avg", "exp_avg_sq"):
            state = copy.deepcopy(intact)
            moments = state["optimizer"]["state"][index]
            if name in moments:
                del moments[name]
            else:
                moments[name] = next(moment for key, moment in moments.items() if key != "step")
            _replace_state(folder, state)
            result = invoke(*words, "training.max_steps=2", "--resume")
            assert result.exit_code == 2, (index, name)
            assert "the moments of a parameter are not those of the optimizer" in result.stderr
    _replace_state(folder, intact)
    assert invoke(*words, "training.max_steps=2", "--resume").exit_code == 0


def test_a_deeply_nested_sweep_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text("[" * 100_000)
    result = invoke("runs", tmp_path)
    assert result.exit_code == 0
    assert "nested too deeply" in result.stdout + result.stderr
