"""Each command that writes, each file that a command reads and each format is attacked, or has a reason why not.

What is attacked follows from the attacks themselves: the words of their calls name commands and options.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import test_bad_paths
import test_damaged_files
import test_damaged_inputs
import test_full_disk
import test_kill
import test_kill_phases
import test_streams
from test_corpora import KINDS
from writing import Place

from mtformer.cli.commands import COMMANDS, load_command
from mtformer.cli.export import Format
from mtformer.config.data import HubDataset, Source

WRITES_NOTHING = {
    "compare": "prints tables",
    "config schema": "prints a schema",
    "config show": "prints a config",
    "data cache": "only deletes what other commands have written",
    "reproduce": "trains in a temporary folder, and prints a comparison",
    "runs": "prints a table",
    "score": "prints scores",
    "serve": "answers requests; it converts a model like `translate`",
    "tokenizer decode": "prints lines",
    "tokenizer encode": "prints lines",
}
"""Commands that write no file, and the reason."""

WRITES_ELSEWHERE = {
    "push": "uploads from a temporary folder; failures are in tests/export/test_push.py",
    "track": "sends to a service, and writes a small file; kills are in tests/training/test_trackers.py",
}
"""Commands whose output is not a file, and the tests of their interruption."""

OTHER_KILLS: dict[str, Callable[..., None]] = {
    "train": test_kill.test_killed_runs_end_like_an_uninterrupted_one,
    "sweep": test_kill_phases.test_a_killed_sweep_can_be_resumed,
}
"""Tests that kill a command at moments of its own, such as between two steps."""

NO_DISK = {"sweep": "starts `train` for each run, and writes two small files with the functions of other commands"}
"""Commands that write, but whose disk is not filled, and the reason."""

NO_DAMAGE = {HubDataset: "the library `datasets` reads it"}
"""Sources that are not damaged, and the reason."""

FILES = {"FILE", "FILES", "FOLDER", "CONFIG", "NEW"}
"""Placeholders of options that name a file or folder."""
VALUES = {
    "ADDRESS", "COLUMN", "FORMAT", "K", "KEY", "LANG", "METRIC", "N", "NAME", "P", "RATIO", "RULE", "TYPE", "WHEN", "X",
    "[auto]", None,
}  # fmt: skip
"""Placeholders of other options."""

Calls = list[list[str]]
"""Words of calls, without the name of the program."""


def commands() -> Iterator[tuple[str, Any]]:
    """Yield the name and the Click command of each command."""
    for name in COMMANDS:
        command = load_command(name)
        parts = getattr(command, "commands", None)
        if parts is None:
            yield name, command
            continue
        for part_name, part in parts.items():
            yield f"{name} {part_name}", part


ALL = dict(commands())


def command_of(words: list[str]) -> str:
    """Return the name of the command of a call."""
    name = " ".join(words[:2])
    return name if name in ALL else words[0]


def named(calls: Iterable[list[Any]]) -> Calls:
    return [[str(word) for word in words] for words in calls]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Place:
    """A place at which calls can be described but not run: other inputs are empty."""
    folder = tmp_path_factory.mktemp("calls")
    for name in ("run", "out", "inputs/teacher", "inputs/marian", "inputs/calibrated"):
        (folder / name).mkdir(parents=True)
    (folder / "inputs" / "marian" / "checksums.json").touch()
    return Place(corpus, folder / "run", folder / "inputs", folder / "out" / "out")


@pytest.fixture(scope="module")
def on_full_disks(place: Place) -> Calls:
    return named(call(place) for call in test_full_disk.COMMANDS.values())


@pytest.fixture(scope="module")
def killed(place: Place) -> Calls:
    (place.out / "checkpoints" / "averaged").mkdir(parents=True)
    return named(phase.arguments(place) for phase in test_kill_phases.PHASES.values())


@pytest.fixture(scope="module")
def damaged(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Calls:
    """The calls with damaged inputs, with paths that are not files, and with broken streams."""
    calls = []
    for reader in test_damaged_inputs.READERS.values():
        path = tmp_path_factory.mktemp("damaged") / "damaged"
        path.touch()
        calls.append(reader.call(place, path))
    calls += [call(place.run, place.corpus, place.out) for call in test_streams.COMMANDS.values()]
    tables = (test_bad_paths.COMMANDS, test_bad_paths.STREAMS, test_damaged_files.COMMANDS)
    lines = [line.split() for table in tables for line in table]
    return named([*calls, *lines])


def test_each_command_that_writes_is_killed_and_has_its_disk_filled(on_full_disks: Calls, killed: Calls) -> None:
    writing = ALL.keys() - WRITES_NOTHING.keys() - WRITES_ELSEWHERE.keys()
    assert {command_of(words) for words in on_full_disks} | NO_DISK.keys() == writing
    assert {command_of(words) for words in killed} | OTHER_KILLS.keys() == writing


def test_each_command_is_attacked(on_full_disks: Calls, killed: Calls, damaged: Calls) -> None:
    assert {command_of(words) for words in [*on_full_disks, *killed, *damaged]} == ALL.keys() - WRITES_ELSEWHERE.keys()


def test_each_file_of_an_option_is_damaged_or_its_disk_is_filled(
    on_full_disks: Calls, killed: Calls, damaged: Calls
) -> None:
    attacked = set()
    for words in [*on_full_disks, *killed, *damaged]:
        attacked |= {(command_of(words), word) for word in words}
    for name, command in ALL.items():
        for parameter in command.params:
            option = max(parameter.opts, key=len)
            if not option.startswith("--"):
                continue
            placeholder = None if getattr(parameter, "is_flag", False) else parameter.metavar
            assert placeholder in FILES | VALUES, f"{option} {placeholder} of {name}: add it to FILES or VALUES"
            if placeholder in FILES:
                assert (name, option) in attacked, f"{option} of {name} is in no attack"


def test_each_format_is_attacked(on_full_disks: Calls, killed: Calls, damaged: Calls) -> None:
    for calls in (on_full_disks, killed):
        exported = {words[words.index("--format") + 1] for words in calls if words[0] == "export"}
        assert exported == set(get_args(Format))
    [union, *_] = get_args(Source)
    sources = {get_args(part)[0] for part in get_args(union)}
    assert sources == KINDS.keys() | NO_DAMAGE.keys()
    assert any("--html" in words for words in damaged if words[0] == "translate")
