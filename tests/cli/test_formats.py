"""Each kind of file has a format number; a file with a newer format is refused with a one-line error."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from program import invoke

from mtformer.data.store.store import Store
from mtformer.errors import CheckpointError, DataError
from mtformer.files import CHECKSUMS, META, file_sha256, read_meta, require_format, sealed
from mtformer.run_dir import RunDir, write_config


def newer(path: Path) -> None:
    """Set the format in a JSON file to 2, with a correct checksum."""
    import hashlib

    values = json.loads(path.read_text(encoding="utf-8"))
    values.pop("checksum", None)
    assert values["format"] == 1
    values["format"] = 2
    checksum = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({**values, "checksum": checksum}), encoding="utf-8")


def newer_config(run: Path) -> None:
    text = (run / "config.yaml").read_text(encoding="utf-8")
    assert text.startswith("format: 1\n")
    write_config(RunDir(run), text.replace("format: 1\n", "format: 2\n", 1))


def newer_checkpoint(run: Path) -> None:
    for folder in RunDir(run).checkpoints.iterdir():
        newer(folder / META)


def newer_card(run: Path) -> None:
    path = next(run.glob("eval/*/scores.json"))
    path.write_text(path.read_text(encoding="utf-8").replace('"format": 1', '"format": 2', 1), encoding="utf-8")


@pytest.mark.parametrize(("change", "command", "file"), [
    (newer_config, ["translate"], "config.yaml"),
    (newer_config, ["eval"], "config.yaml"),
    (newer_checkpoint, ["translate"], META),
    (newer_checkpoint, ["export", "--format", "bundle"], META),
    (newer_card, ["compare"], "scores.json"),
    (lambda run: newer(run / CHECKSUMS), ["translate"], CHECKSUMS),
])  # fmt: skip
def test_a_newer_format_is_refused_in_one_line(
    run: Path, trained: tuple[Path, object], change: Callable[[Path], None], command: list[str], file: str
) -> None:
    change(run)
    result = invoke(*command, run, *([trained[0]] if command == ["compare"] else []), stdin=b"a dog\n")
    assert result.exit_code == 2
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert f"{file}: has format 2; this version of mtformer reads format 1 only" in lines[0].replace(":1:", ":")


def test_a_newer_checkpoint_is_not_set_aside_as_damaged(run: Path, corpus: Path) -> None:
    newer_checkpoint(run)
    before = sorted(RunDir(run).checkpoints.iterdir())
    result = invoke("train", corpus / "small.yaml", "--run-dir", run, "--resume")
    assert result.exit_code == 2
    assert "has format 2" in result.stderr
    assert sorted(RunDir(run).checkpoints.iterdir()) == before


def test_a_newer_user_config_is_refused(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "new.yaml").write_text(f"extends: {corpus}/small.yaml\nformat: 7\n", encoding="utf-8")
    result = invoke("train", tmp_path / "new.yaml", "--dry-run")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert f"{tmp_path}/new.yaml:2: has format 7; this version of mtformer reads format 1 only" in result.stderr


def test_a_newer_prepared_corpus_is_refused(
    trained: tuple[Path, object], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = next((tmp_path_factory.getbasetemp() / "cache").glob("*/store.json"))
    contents = json.loads(path.read_text(encoding="utf-8"))
    assert contents["format"] == 1
    copy = tmp_path_factory.mktemp("store")
    (copy / "store.json").write_text(json.dumps({**contents, "format": 2}), encoding="utf-8")
    with pytest.raises(DataError, match=r"store\.json: has format 2; this version of mtformer reads format 1 only"):
        Store(copy)


OLD_KEYS = {
    "data:\n": "data:\n  tgt_langs: []\n  streaming: false\n",
    "decoding:\n": "decoding:\n  coverage_penalty: 0.0\n  beam_groups: 1\n",
    "training:\n": "training:\n  wandb: null\n",
    "tokenizer:\n": "tokenizer:\n  sampling_alpha: 0.0\n",
}
"""Keys of version 0.1 that exist no more."""


@pytest.fixture(params=["with checksums.json", "without checksums.json"])
def old_run(run: Path, request: pytest.FixtureRequest) -> Path:
    """A run as version 0.1 wrote it: without formats, with keys that exist no more, and first without checksums."""
    text = (run / "config.yaml").read_text(encoding="utf-8").removeprefix("format: 1\n")
    for section, lines in OLD_KEYS.items():
        assert section in text
        text = text.replace(section, lines, 1)
    (run / "config.yaml").write_text(text, encoding="utf-8")
    for folder in RunDir(run).checkpoints.iterdir():
        values = json.loads((folder / META).read_text())
        del values["format"], values["checksum"]
        values["made_with"] = {"mtformer": "0.1.0"}
        (folder / META).write_text(json.dumps(sealed(values)))
    (run / CHECKSUMS).unlink()
    if request.param == "with checksums.json":
        hashes = {"config.yaml": file_sha256(run / "config.yaml")}
        (run / CHECKSUMS).write_text(json.dumps(sealed({"sha256": hashes})))
    return run


def test_a_run_of_version_0_1_is_refused_in_one_line_that_names_the_version(
    old_run: Path, trained: tuple[Path, object], corpus: Path, tmp_path: Path
) -> None:
    text = corpus / "test.en"
    for words in (
        ["translate", old_run],
        ["translate", old_run, "--checkpoint", "last"],
        ["config", "show", old_run],
        ["eval", old_run],
        ["score", old_run, text, text],
        ["compare", trained[0], old_run],
        ["report", old_run],
        ["export", old_run, "--output", tmp_path / "out"],
        ["reproduce", old_run],
        ["tokenizer", "encode", old_run],
        ["adapt", old_run, "--train", f"{text},{text}", "--run-dir", tmp_path / "new"],
        ["train", old_run / "config.yaml", "--run-dir", old_run, "--resume"],
        ["train", corpus / "small.yaml", "--run-dir", old_run, "--resume"],
        ["train", corpus / "small.yaml", f"training.init_from={old_run}", "--dry-run"],
    ):
        result = invoke(*words, stdin=b"a dog\n")
        lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
        assert (result.exit_code, len(lines)) == (2, 1), (words, result.stderr)
        assert lines[0].startswith(
            f"error: {old_run}: was written by version 0.1 of mtformer, which this version cannot read"
        )


def test_a_bundle_of_version_0_1_is_refused(trained: tuple[Path, object], tmp_path: Path) -> None:
    assert invoke("export", trained[0], "--output", tmp_path / "old").exit_code == 0
    config = tmp_path / "old" / "config.yaml"
    config.write_text(config.read_text().removeprefix("format: 1\n"))
    hashes = {"config.yaml": file_sha256(config)}
    (tmp_path / "old" / CHECKSUMS).write_text(json.dumps(sealed({"sha256": hashes})))
    result = invoke("translate", tmp_path / "old", stdin=b"a dog\n")
    assert (result.exit_code, "was written by version 0.1" in result.stderr) == (2, True)


def test_the_list_of_runs_names_the_version_of_an_old_one(old_run: Path) -> None:
    result = invoke("runs", old_run.parent)
    assert result.exit_code == 0
    assert f"{old_run}: was written by version 0.1 of mtformer" in result.stdout + result.stderr


@pytest.mark.parametrize("form", ["bundle", "ctranslate2", "huggingface"])
def test_exports_carry_their_format(run: Path, tmp_path: Path, form: str) -> None:
    result = invoke("export", run, "--format", form, "--output", tmp_path / "export")
    assert result.exit_code == 0, result.stderr
    assert read_meta(tmp_path / "export", CHECKSUMS)["format"] == 1


@pytest.mark.parametrize("other", [0, 2, "1", None])
def test_only_the_current_format_is_accepted(other: object) -> None:
    accepted = list[object]()
    for value in (other, 1):
        with contextlib.suppress(CheckpointError):
            require_format("x", value)
            accepted.append(value)
    assert accepted == [1]
