"""Bundles on the Hugging Face Hub: pushing, downloading, verifying, and what is refused before an upload."""

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_hub import COMMIT, FakeHub, install
from huggingface_hub import ModelCardData
from huggingface_hub.repocard_data import model_index_to_eval_results
from program import invoke

from mtformer.config.data import DataConfig
from mtformer.decoding.translator import Translator
from mtformer.errors import ConfigError, DataError
from mtformer.export.card_header import Ownership, iso_codes, make_header, validate_header, with_ownership
from mtformer.hub import HubAddress, local_path, parse_address

LINE = b"The man walks.\n"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    return install(tmp_path / "hub", monkeypatch)


def pushed(hub: FakeHub, run: Path, *options: object) -> Path:
    """Push a run and return the folder of the repository."""
    result = invoke("push", run, "--to", "hub:me/en-de", *options)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == "https://huggingface.co/me/en-de\n"
    assert "use it with: mtformer translate hub:me/en-de" in result.stderr
    return hub.repository("me/en-de")


def header_of(repository: Path) -> dict[str, Any]:
    _, text, _ = (repository / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    header: dict[str, Any] = yaml.safe_load(text)
    return header


def test_a_pushed_run_translates_as_before(run: Path, hub: FakeHub) -> None:
    expected = invoke("translate", run, stdin=LINE).stdout
    repository = pushed(hub, run, "--private")
    assert hub.created == [("me/en-de", True)]
    assert not {path.suffix for path in repository.rglob("*")} & {".py", ".pt", ".pkl"}

    result = invoke("translate", "hub:me/en-de", stdin=LINE)
    assert (result.exit_code, result.stdout) == (0, expected)
    assert f"hub:me/en-de: commit {COMMIT}" in result.stderr
    assert Translator.load("hub:me/en-de").translate(["The man walks."])[0].text + "\n" == expected

    repository.rename(hub.repository("me/en-de@v1"))
    assert invoke("translate", "hub:me/en-de@v1", stdin=LINE).stdout == expected
    assert hub.downloads[-1] == ("me/en-de", "v1")
    assert invoke("translate", "hub:me/en-de", stdin=LINE).exit_code == 2


def test_a_bundle_on_the_hub_is_scored(run: Path, hub: FakeHub, corpus: Path, tmp_path: Path) -> None:
    pushed(hub, run)
    words = ("eval", "hub:me/en-de", "--src", corpus / "test.en", "--ref", corpus / "test.de")
    assert "is on the Hub; give a folder for the scores with --output" in invoke(*words).stderr
    assert invoke(*words, "--output", tmp_path / "scores").exit_code == 0
    assert (tmp_path / "scores" / "test" / "scores.json").is_file()


def test_the_card_has_what_the_hub_shows(run: Path, hub: FakeHub) -> None:
    words = ("--license", "cc-by-4.0", "--base-model", "me/base", "--dataset", "Helsinki-NLP/opus-100")
    repository = pushed(hub, run, *words)
    header = header_of(repository)
    validate_header(header, "README.md")
    assert (header["language"], header["license"], header["base_model"]) == (["en", "de"], "cc-by-4.0", "me/base")
    assert (header["datasets"], header["pipeline_tag"]) == (["Helsinki-NLP/opus-100"], "translation")
    assert "**License:** cc-by-4.0.\n" in (repository / "README.md").read_text()
    assert "not stated" not in (repository / "README.md").read_text()

    [model] = header["model-index"]
    [result] = model["results"]
    assert result["task"]["type"] == "translation"
    assert result["dataset"] == {"type": "small", "name": "small"}
    table = re.findall(r"\| small \| 20 \| (\S+) \| ([\d.]+) \|", (repository / "README.md").read_text())
    assert [(metric["name"], f"{metric['value']:.2f}") for metric in result["metrics"]] == table
    assert [metric["type"] for metric in result["metrics"]] == ["bleu", "chrf", "ter"]

    name, results = model_index_to_eval_results(header["model-index"])
    assert name == "en-de"
    assert len(results) == 3
    assert ModelCardData(**{key: value for key, value in header.items() if key != "model-index"}).license == "cc-by-4.0"


def test_a_bundle_keeps_the_card_of_its_owner(run: Path, hub: FakeHub, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    assert invoke("export", run, "--output", bundle).exit_code == 0
    card = (bundle / "README.md").read_text()
    (bundle / "README.md").write_text(card.replace("license: unknown", "license: mit") + "\nMy own words.\n")
    repository = pushed(hub, bundle)
    assert header_of(repository)["license"] == "mit"
    assert header_of(repository)["model-index"]
    assert (repository / "README.md").read_text().endswith("\nMy own words.\n")

    for before, after, message in (
        ("license: mit", "license: [mit]", r"README\.md: license: .*not \['mit'\]; correct it"),
        ("value: ", "value: about ", r"README\.md: model-index\.0\.results\.0\.metrics\.0\.value.* not 'about"),
        ("  - task:", "  - tasks:", r"README\.md: model-index\.0\.results\.0\.task: Field required; correct it"),
        ("---\n", "--\n", r"README\.md: has no header between two lines of ---"),
        ("license: mit", "license: {mit", r"README\.md: its header is not YAML"),
    ):
        text = (bundle / "README.md").read_text()
        assert before in text
        (bundle / "README.md").write_text(text.replace(before, after))
        shutil.rmtree(hub.repository("me"))
        result = invoke("push", bundle, "--to", "hub:me/en-de")
        assert result.exit_code == 2
        assert re.search(message, result.stderr), result.stderr
        assert "Traceback" not in result.stderr
        assert not hub.repository("me").exists(), "nothing is uploaded"
        (bundle / "README.md").write_text(text)
        hub.repository("me").mkdir()


def test_a_changed_download_is_refused(run: Path, hub: FakeHub) -> None:
    repository = pushed(hub, run)
    for name in ("config.yaml", "tokenizer/joint.model", "model.safetensors", "checksums.json"):
        path = repository / name
        data = path.read_bytes()
        path.write_bytes(data[:-2] + b"#\n")
        result = invoke("translate", "hub:me/en-de", stdin=LINE)
        assert (result.exit_code, result.stdout) == (2, ""), name
        assert Path(name).name in result.stderr
        path.write_bytes(data)
    assert invoke("translate", "hub:me/en-de", stdin=LINE).exit_code == 0


def test_only_listed_files_are_downloaded(run: Path, hub: FakeHub) -> None:
    repository = pushed(hub, run)
    (repository / "modeling.py").write_text("raise SystemExit('executed')")
    (repository / "pytorch_model.bin").write_bytes(b"x")
    folder = local_path("hub:me/en-de")
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    assert {"config.yaml", "tokenizer/joint.model", "model.safetensors", "checksums.json", "README.md"} <= names
    assert not names & {"modeling.py", "pytorch_model.bin"}


def test_other_repositories_and_failures_are_one_line(hub: FakeHub, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repository("me/other").mkdir(parents=True)
    (hub.repository("me/other") / "config.json").write_text("{}")
    with pytest.raises(DataError, match=r"hub:me/other: has no checksums\.json, so it is no bundle of mtformer"):
        local_path("hub:me/other")
    with pytest.raises(DataError) as raised:
        local_path("hub:me/none")
    assert re.fullmatch(
        r"hub:me/none: LocalEntryNotFoundError: no such repository; check the name.*", str(raised.value)
    )

    hub.error = RuntimeError("403 Forbidden:\nyou are not me")
    result = invoke("push", run, "--to", "hub:you/en-de")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith(
        "error: hub:you/en-de: RuntimeError: 403 Forbidden; check the name"
    )
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=r"hub:me/other needs huggingface_hub: pip install"):
        local_path("hub:me/other")


@pytest.mark.parametrize("text", ["hub:", "hub:name", "hub:a/b/c", "hub:a/../b", "hub:a/b@", "hub:a b/c", "hub:.a/b"])
def test_invalid_addresses_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not an address on the Hub; write hub:OWNER/NAME or hub:OWNER/NAME@REVISION"):
        parse_address(text)


def test_addresses() -> None:
    assert parse_address("hub:Me-1/en_de.v2") == HubAddress("Me-1/en_de.v2")
    assert parse_address("hub:me/x@refs/pr/1") == HubAddress("me/x", "refs/pr/1")
    assert local_path("runs/hub:x") == Path("runs/hub:x")
    result = invoke("push", "runs/a", "--to", "hub:me/x@main")
    assert result.exit_code == 2


def test_a_push_has_no_revision(run: Path, hub: FakeHub) -> None:
    result = invoke("push", run, "--to", "hub:me/x@dev")
    assert "a push is a new commit of the main branch; leave out @dev" in result.stderr
    assert not hub.created


def test_languages_without_an_iso_code_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "mtformer")
    codes = ["en", "pt-BR", "zho_Hans", "zh_Hant", "nds", "deu", "qaa", "sh", "xx", "klingon"]
    assert iso_codes(codes) == ["en", "pt", "zh", "nds", "de"]
    left_out = [record.getMessage().split()[3] for record in caplog.records]
    assert left_out == ["qaa", "sh", "xx", "klingon"]


def test_data_sets_on_the_hub_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "local" / "set").mkdir(parents=True)
    sources = [{"dataset": name, "split": "train"} for name in ("me/corpus", "local/set", "me/corpus")]
    data = DataConfig.model_validate({"src_lang": "en", "tgt_lang": "de", "train": sources})
    assert make_header("x", "mtformer", data, [])["datasets"] == ["me/corpus"]


def test_invalid_statements_of_the_owner_are_refused() -> None:
    card = "---\nlanguage: en\nlicense: unknown\n---\n\nText.\n"
    for ownership, key in (
        (Ownership(license="Apache 2.0"), "license"),
        (Ownership(base_model="a/b/c"), "base_model"),
        (Ownership(datasets=("a b",)), r"datasets\.0"),
    ):
        with pytest.raises(ConfigError, match=rf"README\.md: {key}.*correct it, because the Hub refuses such cards"):
            with_ownership(card, ownership)
    assert with_ownership(card, Ownership(license="mit")) == "---\nlanguage:\n- en\nlicense: mit\n---\n\nText.\n"
