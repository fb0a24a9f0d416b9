"""`tokenizer.normalization` from a config to a run and its exports, and the warnings about changed target lines."""

from pathlib import Path

import pytest
from program import invoke

from mtformer.config.loading import load_config
from mtformer.text.normalization import RULES
from mtformer.text.tokenizer import TokenizerPair

PUNCTUATION = str.maketrans({".": "！", "?": "？"})


@pytest.fixture
def chinese_style(corpus: Path, tmp_path: Path) -> Path:
    """Return the config of a corpus whose target text has full-width punctuation, which `nmt_nfkc` changes."""
    for name in ("train", "dev", "test"):
        for language in ("en", "de"):
            text = (corpus / f"{name}.{language}").read_text(encoding="utf-8")
            changed = text.translate(PUNCTUATION) if language == "de" else text
            (tmp_path / f"{name}.{language}").write_text(changed, encoding="utf-8")
    config = (corpus / "small.yaml").read_text(encoding="utf-8")
    (tmp_path / "full.yaml").write_text(config.replace(str(corpus), str(tmp_path)), encoding="utf-8")
    return tmp_path / "full.yaml"


def test_changed_target_lines_are_reported_with_two_examples(chinese_style: Path, tmp_path: Path) -> None:
    overrides = ["tokenizer.normalization=nmt_nfkc", "data.check.max_test_overlap=1"]
    checked = invoke("data", "check", chinese_style, *overrides)
    assert checked.exit_code == 0, checked.stderr
    assert "target: changed by normalization (100 %)" in checked.stdout
    lines = checked.stdout.splitlines()
    [first, *_] = [number for number, line in enumerate(lines) if "changed by normalization" in line]
    assert all("[becomes " in line for line in lines[first + 1 : first + 3])

    trained = invoke("train", chinese_style, "--run-dir", tmp_path / "run", *overrides)
    assert trained.exit_code == 0, trained.stderr
    assert "tokenizer.normalization nmt_nfkc changes 600 of 600 target lines of train" in trained.stderr
    assert trained.stderr.count("' becomes '") >= 2
    assert "train with tokenizer.normalization: compose" in trained.stderr

    evaluated = invoke("eval", tmp_path / "run")
    assert "small: tokenizer.normalization nmt_nfkc changes 20 of 20 references" in evaluated.stderr


def test_the_default_says_nothing_about_usual_text(chinese_style: Path, tmp_path: Path) -> None:
    checked = invoke("data", "check", chinese_style, "data.check.max_test_overlap=1")
    trained = invoke("train", chinese_style, "--run-dir", tmp_path / "run")
    assert trained.exit_code == 0, trained.stderr
    assert checked.stdout.endswith("ok: no limit exceeded\n")
    assert "normalization" not in checked.stdout
    assert "train: pairs kept               600" in trained.stderr
    assert "normalization" not in trained.stderr
    tokenizer = TokenizerPair.load(tmp_path / "run" / "tokenizer").tgt
    lines = (tmp_path / "train.de").read_text(encoding="utf-8").splitlines()
    assert tokenizer.decode(tokenizer.encode(lines)) == lines


def test_a_rule_file_goes_into_the_run_and_its_exports(corpus: Path, tmp_path: Path) -> None:
    rules = tmp_path / "own.tsv"
    rules.write_text("DF\t73 73\n", encoding="utf-8")
    run = tmp_path / "run"
    words = ("train", corpus / "small.yaml", "--run-dir", run)
    trained = invoke(*words, f"tokenizer.normalization={rules}")
    assert trained.exit_code == 0, trained.stderr
    assert (run / "tokenizer" / RULES).read_bytes() == rules.read_bytes()
    assert TokenizerPair.load(run / "tokenizer").src.decode_pieces(
        TokenizerPair.load(run / "tokenizer").src.pieces("Straße")
    ) == "Strasse"  # fmt: skip
    rules.unlink()
    assert invoke(*words, f"tokenizer.normalization={rules}", "training.max_steps=16", "--resume").exit_code == 0
    for form, copy in (("bundle", f"tokenizer/{RULES}"), ("ctranslate2", f"tokenizer/{RULES}"), ("huggingface", RULES)):
        exported = invoke("export", run, "--format", form, "--output", tmp_path / form)
        assert exported.exit_code == 0, exported.stderr
        assert (tmp_path / form / copy).read_text(encoding="utf-8") == "DF\t73 73\n"
    config = (tmp_path / "bundle" / "config.yaml").read_text(encoding="utf-8")
    assert "normalization: own.tsv\n" in config
    assert str(tmp_path) not in config
    settings = ["training.max_steps=2", "training.validate_every=2", "training.average_last=0"]
    tuned = invoke(
        *("train", corpus / "small.yaml", "--run-dir", tmp_path / "tuned", *settings),
        *(f"training.init_from={tmp_path / 'bundle'}", "model.d_model=24"),
    )
    assert tuned.exit_code == 0, tuned.stderr
    assert (tmp_path / "tuned" / "tokenizer" / RULES).is_file()


def test_a_resumed_run_keeps_its_normalization_and_search(corpus: Path, tmp_path: Path) -> None:
    """The config of a run of version 0.3 sets neither, and its defaults were others."""
    words = ("train", corpus / "small.yaml", "--run-dir", tmp_path / "run")
    old = ["tokenizer.normalization=nmt_nfkc", "decoding.early_stopping=ended"]
    assert invoke(*words, *old).exit_code == 0
    resumed = invoke(*words, "--resume", "training.max_steps=16")
    assert resumed.exit_code == 0, resumed.stderr
    config = load_config(tmp_path / "run" / "config.yaml").config
    assert (config.tokenizer.normalization, config.decoding.early_stopping) == ("nmt_nfkc", "ended")

    changed = invoke(*words, "--resume", "decoding.early_stopping=auto", "training.max_steps=16")
    assert changed.exit_code == 0, changed.stderr
    assert load_config(tmp_path / "run" / "config.yaml").config.decoding.early_stopping == "auto"
    refused = invoke(*words, "--resume", "tokenizer.normalization=compose")
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert "cannot resume with tokenizer.normalization 'nmt_nfkc' -> 'compose'" in refused.stderr


def test_an_unknown_normalization_is_a_user_error(corpus: Path, tmp_path: Path) -> None:
    result = invoke("train", corpus / "small.yaml", "--run-dir", tmp_path / "x", "tokenizer.normalization=compse")
    assert result.exit_code == 2
    assert "did you mean 'compose'?" in result.stderr
    missing = invoke("train", corpus / "small.yaml", "--run-dir", tmp_path / "x", "tokenizer.normalization=no.tsv")
    assert missing.exit_code == 2
    assert missing.stderr.count("\n") == 1
    assert "no.tsv: tokenizer.normalization cannot be read: No such file or directory" in missing.stderr
    assert not (tmp_path / "x").exists()
