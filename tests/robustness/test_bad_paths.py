"""Attacks with paths that are not files: each command reports them in one line and replaces nothing."""

import json
import os
import random
import re
import shutil
import stat
import threading
from pathlib import Path

import pytest
from attack_tools import Attacks, Passed
from calls import problem, report
from program import invoke
from typer.testing import Result

from mtformer.errors import CheckpointError, ConfigError
from mtformer.files import cache_folder, write_text
from mtformer.weights import read_weights

SEED = 1
LANGUAGES = ("--src-lang", "en", "--tgt-lang", "de")
COMMANDS = """
config show PATH
init PATH TEXT --src-lang en --tgt-lang de OUT.yaml
init TEXT TEXT --dev PATH TEXT --src-lang en --tgt-lang de OUT.yaml
init TEXT TEXT --test PATH --src-lang en --tgt-lang de OUT.yaml
init TEXT TEXT --src-lang en --tgt-lang de PATH/x.yaml
init --reverse PATH OUT.yaml
init --reverse SMALL PATH/x.yaml
train PATH --run-dir OUT
train SMALL --run-dir PATH --resume
train SMALL data.train.0.src=PATH --run-dir OUT
train SMALL data.dev.0.tgt=PATH --run-dir OUT
train SMALL data.test.small.tgt=PATH --run-dir OUT
train SMALL data.train=[{tsv:PATH}] --run-dir OUT
train SMALL data.train=[{jsonl:PATH}] --run-dir OUT
train SMALL tokenizer.src_model=PATH --run-dir OUT
train SMALL training.init_from=PATH --run-dir OUT
train SMALL data.cache_dir=PATH/x --run-dir OUT
tokenizer train PATH --output OUT
tokenizer train SMALL --output PATH
tokenizer encode PATH
translate PATH
translate RUN --checkpoint PATH
translate RUN --output PATH/x
translate RUN --attention PATH/x.json
eval PATH
eval RUN --output PATH/x
exam PATH
exam RUN --limits PATH
exam RUN --lines 2 --json PATH/x
score PATH TEXT TEXT
compare PATH RUN
report PATH
report RUN --out PATH
runs PATH
reproduce PATH
export PATH --output OUT
export RUN --output PATH
import PATH OUT
import RUN PATH
data check PATH
data check SMALL --tokenizer PATH
data check SMALL --json PATH
data clean PATH OUT
data clean SMALL PATH
data clean SMALL OUT --tokenizer PATH
sweep PATH --dry-run
serve PATH --port 1
""".strip().splitlines()
STREAMS = """
translate RUN --input PATH
translate RUN --input TEXT --prefixes PATH
translate RUN --input TEXT --require PATH
eval RUN --src PATH --ref TEXT
eval RUN --src TEXT --ref PATH
exam RUN --lines 2 --src PATH --ref TEXT
score RUN PATH TEXT
score RUN TEXT PATH
compare TEXT PATH --ref TEXT
data check PATH TEXT --src-lang en --tgt-lang de
data check PATH --src-lang en --tgt-lang de
data clean PATH TEXT OUT --src-lang en --tgt-lang de
""".strip().splitlines()
"""Commands that read pipes, and would wait for a pipe without a writer."""


@pytest.fixture
def paths(tmp_path: Path) -> dict[str, Path]:
    """Return one path of each kind; none of them is a text file."""
    folder = tmp_path / "paths"
    (folder / "folder").mkdir(parents=True)
    os.mkfifo(folder / "pipe")
    (folder / "dangling").symlink_to(folder / "nowhere")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "empty").touch()
    (folder / "zeros").write_bytes(bytes(3000))
    (folder / "noise").write_bytes(random.Random(SEED).randbytes(3000))
    found = {path.name: path for path in folder.iterdir()}
    if os.geteuid() == 0:  # not a device in /dev, because a command might replace it
        found["device"] = folder / "device"
        os.mknod(found["device"], 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    return found | {"below a file": folder / "empty" / "x", "long": folder / ("x" * 300), "missing": folder / "a" / "b"}


def test_commands_with_bad_paths(
    paths: dict[str, Path], run: Path, corpus: Path, tmp_path: Path, attacks: Attacks, passed: Passed
) -> None:
    chance = random.Random(SEED)
    every = [(command, kind) for command in COMMANDS for kind in paths]
    every += [(command, kind) for command in STREAMS for kind in paths if kind != "pipe"]
    # These would succeed, but only after a complete training run.
    every = [(c, k) for c, k in every if not ("cache_dir" in c and k in ("folder", "missing", "dangling"))]
    chosen = chance.sample(every, min(len(every), attacks(80)))
    kinds = {kind: stat.S_IFMT(path.lstat().st_mode) for kind, path in paths.items() if os.path.lexists(path)}
    problems = []
    for number, (command, kind) in enumerate(chosen):
        places = {"RUN": run, "SMALL": corpus / "small.yaml", "TEXT": corpus / "test.en", "OUT": tmp_path / str(number)}
        places["PATH"] = paths[kind]
        words = [re.sub("|".join(places), lambda name: str(places[name[0]]), word) for word in command.split()]  # noqa: B023
        words = [re.sub(r"(tsv|jsonl):", r"\1: ", word) for word in words]
        found = problem(*words)
        if kind in ("pipe", "device") and stat.S_IFMT(paths[kind].lstat().st_mode) != kinds[kind]:
            found = f"{command} replaced the {kind}"
        problems.append(found and f"{kind}: {found}")
    print(report(problems))
    passed("paths that are not files", problems.count(""), len(chosen))


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("config show PATH", "PATH: cannot be read: a pipe or device, not a file"),
        ("train PATH --dry-run", "PATH: cannot be read: a pipe or device, not a file"),
        ("train SMALL data.train.0.src=PATH --dry-run", "PATH: cannot be read: a pipe or device, not a file"),
        ("train SMALL tokenizer.src_model=PATH --dry-run", "PATH: the tokenizer cannot be read: a pipe or device, not"),
        ("data check SMALL --json PATH", "PATH: cannot be written: exists, and is not a file; name another file"),
        ("report RUN --out PATH", "PATH: exists, and is not a file"),
    ],
)
def test_pipes_are_rejected_and_not_replaced(
    command: str, message: str, trained: tuple[Path, Result], corpus: Path, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    places = {"PATH": pipe, "SMALL": corpus / "small.yaml", "RUN": trained[0]}
    words = [re.sub("PATH|SMALL|RUN", lambda name: str(places[name[0]]), word) for word in command.split()]
    result = invoke(*words)
    assert result.exit_code == 2, result.stderr
    assert f"error: {message.replace('PATH', str(pipe))}" in result.stderr
    assert pipe.is_fifo()


@pytest.mark.parametrize("name", ["config.yaml", "checksums.json", "tokenizer/joint.model", "state.json"])
def test_runs_with_a_pipe_instead_of_a_file(name: str, run: Path) -> None:
    (run / name).unlink()
    os.mkfifo(run / name)
    for command in (["translate", run], ["runs", run.parent], ["report", run], ["tokenizer", "encode", run]):
        assert problem(*command) == ""


@pytest.mark.parametrize("form", ["run", "bundle", "ctranslate2"])
def test_no_command_waits_for_a_pipe_in_place_of_a_file_of_a_model(
    form: str, trained: tuple[Path, Result], corpus: Path, tmp_path: Path
) -> None:
    intact = trained[0]
    if form != "run":
        intact = tmp_path / "intact"
        assert invoke("export", trained[0], "--format", form, "--output", intact).exit_code == 0
    names = [path.relative_to(intact) for path in sorted(intact.rglob("*")) if path.is_file()]
    names += [Path(name) for name in ("confidence.json", "vmap.txt", "exam.json", "tokenizer/normalization.tsv")]
    texts = (corpus / "test.en", corpus / "test.de")
    problems = []
    for name in names:
        model = Path(shutil.copytree(intact, tmp_path / "model", dirs_exist_ok=True))
        (model / name).unlink(missing_ok=True)
        os.mkfifo(model / name)
        commands: list[list[object]] = [
            ["translate", model],
            ["report", model],
            ["export", model, "--output", tmp_path / "x"],
        ]
        if form == "run":
            commands += [["compare", model, intact], ["score", model, *texts]]
        for command in commands:
            found = problem(*command)
            problems.append(found and f"{name}: {found}")
        shutil.rmtree(model)
        shutil.rmtree(tmp_path / "x", ignore_errors=True)
    assert not any(problems), report(problems)


def test_weights_in_a_pipe_are_refused(trained: tuple[Path, Result], tmp_path: Path) -> None:
    pipe = tmp_path / "model.safetensors"
    os.mkfifo(pipe)
    result = invoke("translate", trained[0], "--checkpoint", pipe, stdin=b"a\n")
    assert (result.exit_code, result.stderr.count("error: ")) == (2, 1)
    with pytest.raises(CheckpointError, match="a pipe or device, not a file"):
        read_weights(pipe)


def test_a_resumed_run_does_not_wait_for_pipes_in_place_of_its_logs(run: Path, corpus: Path) -> None:
    for name in ("metrics.jsonl", "samples.jsonl", "train.log"):
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)
        assert problem("train", corpus / "small.yaml", "training.max_steps=13", "--run-dir", run, "--resume") == ""
        assert (run / name).is_fifo()
        (run / name).unlink()


def test_data_check_reads_corpora_from_pipes(corpus: Path, tmp_path: Path) -> None:
    """Each pipe is read once, from its first line."""
    objects = "".join(json.dumps({"en": f"a dog {n}", "de": f"ein Hund {n}"}) + "\n" for n in range(2500))
    columns = "".join(f"a dog {n}\tein Hund {n}\n" for n in range(2500))
    for name, text in {"x.jsonl": objects, "x.tsv": columns}.items():
        pipe = tmp_path / name
        os.mkfifo(pipe)
        writer = threading.Thread(target=pipe.write_text, args=(text,), daemon=True)
        writer.start()
        result = invoke("data", "check", pipe, *LANGUAGES, "data.filters.max_filtered_share=1", "data.num_workers=1")
        writer.join()
        assert result.exit_code == 0, result.stderr
        assert "train: 2,500 pairs read" in result.stderr


def test_writing_keeps_symbolic_links(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "file")
    write_text(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder" / "file").read_text() == "text"


@pytest.mark.parametrize("name", ["~nosuchuser/x", "a\udcff"])
def test_invalid_names_of_cache_folders_are_rejected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MTFORMER_CACHE", name)
    with pytest.raises(ConfigError):
        cache_folder()


def test_run_directories_that_are_not_utf8_are_rejected(corpus: Path, tmp_path: Path) -> None:
    result = invoke("train", corpus / "small.yaml", "--run-dir", tmp_path / "a\udcff")
    assert result.exit_code == 2
    assert "not UTF-8 text; use another value or name" in result.stderr


def test_very_long_lines_are_rejected(
    corpus: Path, trained: tuple[Path, Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mtformer.data.corpus.readers.LONGEST_LINE", 10_000)
    zeros = tmp_path / "zeros.en"
    zeros.write_bytes(bytes(300_000))
    for command in (
        ["translate", trained[0], "--input", zeros],
        ["eval", trained[0], "--src", zeros, "--ref", corpus / "test.de"],
        ["data", "check", zeros, corpus / "test.de", *LANGUAGES],
    ):
        result = invoke(*command)
        assert result.exit_code == 2, command
        assert f"error: {zeros}: has a line of more than 10,000 bytes" in result.stderr
    result = invoke("tokenizer", "encode", trained[0], stdin=bytes(300_000))
    assert (result.exit_code, "stdin: has a line of more than" in result.stderr) == (2, True)


def test_ids_with_many_digits_are_rejected(trained: tuple[Path, Result]) -> None:
    result = invoke("tokenizer", "decode", "--ids", trained[0], stdin=b"9" * 5000)
    expected = f"error: stdin:1: '{'9' * 20}' is not a token id; ids are 0 to 299 (text is decoded without --ids)\n"
    assert (result.exit_code, result.stderr) == (2, expected)
