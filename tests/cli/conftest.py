"""A small corpus, and a run trained on it through the command line, for all tests of the commands."""

import shutil
from pathlib import Path

import pytest
from program import invoke
from typer.testing import Result

from mtformer.data.demo import write_demo

CONFIG = """
data:
  src_lang: en
  tgt_lang: de
  train: [{{src: {folder}/train.en, tgt: {folder}/train.de}}]
  dev: [{{src: {folder}/dev.en, tgt: {folder}/dev.de}}]
  test: {{small: {{src: {folder}/test.en, tgt: {folder}/test.de}}}}
tokenizer: {{vocab_size: 300}}
model: {{d_model: 24, num_heads: 2, d_ff: 64, num_encoder_layers: 1, num_decoder_layers: 1, max_positions: 300}}
training:
  {{device: cpu, batch_tokens: 1024, max_steps: 12, warmup_steps: 4, learning_rate: 3.0e-3, log_every: 4,
    validate_every: 4, average_last: 2}}
decoding: {{beam_size: 2}}
"""
LINES = {"train": 600, "dev": 20, "test": 20}


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the first lines of the demo corpus and a config for it, small.yaml."""
    folder, whole = tmp_path_factory.mktemp("corpus"), tmp_path_factory.mktemp("demo")
    for name, path in write_demo(whole).items():
        lines = path.read_text(encoding="utf-8").splitlines()[: LINES[name.split(".")[0]]]
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / "small.yaml").write_text(CONFIG.format(folder=folder), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def trained(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A finished run, which tests must not change, and what its training printed."""
    run = tmp_path_factory.mktemp("runs") / "small"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MTFORMER_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        result = invoke("train", corpus / "small.yaml", "--run-dir", run)
    assert result.exit_code == 0, result.stderr
    return run, result


@pytest.fixture
def run(trained: tuple[Path, Result], tmp_path: Path) -> Path:
    """A copy of the finished run that a test may change."""
    return Path(shutil.copytree(trained[0], tmp_path / "run"))
