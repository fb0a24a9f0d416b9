"""Tests of the scripts that need no GPU, at toy size."""

import gzip
import importlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
from program import invoke

from mtformer.data.demo import write_demo

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
BENCH = SCRIPTS / "bench"
LINES = {"train": 300, "dev": 10, "test": 10}
Run = Callable[..., ModuleType]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the first lines of the demo corpus."""
    folder = tmp_path_factory.mktemp("corpus")
    for name, path in write_demo(tmp_path_factory.mktemp("demo")).items():
        lines = path.read_text(encoding="utf-8").splitlines()[: LINES[name.split(".")[0]]]
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder


@pytest.fixture
def config(corpus: Path, tmp_path: Path) -> Path:
    """Return a config that trains a toy model on the corpus."""
    path = tmp_path / "toy.yaml"
    sources = {name: f"{{src: {corpus}/{name}.en, tgt: {corpus}/{name}.de}}" for name in LINES}
    path.write_text(
        f"""
data: {{src_lang: en, tgt_lang: de, train: [{sources["train"]}], dev: [{sources["dev"]}], cache_dir: {tmp_path}/cache}}
tokenizer: {{vocab_size: 200}}
model: {{d_model: 16, num_heads: 2, d_ff: 32, num_encoder_layers: 1, num_decoder_layers: 1}}
training: {{device: cpu, batch_tokens: 512, max_steps: 4, log_every: 1, validate_every: 4}}
""",
        encoding="utf-8",
    )
    return path


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs a script in this process; worker processes are forked from a server.

    The server imports PyTorch and the other libraries once, which would otherwise take seconds in each process.
    """
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["train_speed", "decode_speed", "data_speed", "transformers", "ctranslate2"])
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: context)

    def main(name: str, *arguments: object) -> ModuleType:
        module = importlib.import_module(name)
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
        result = module.main()
        assert not result, result
        return module

    return main


def toy_options(corpus: Path) -> list[object]:
    files = ["--src", corpus / "train.en", "--tgt", corpus / "train.de"]
    return [*files, "--sizes", "toy", "--vocab-size", 200, "--rounds", 2, "--threads", 1]


def test_train_speed(
    run: Run, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """JoeyNMT fails because it is not installed; bf16 is skipped, as on an older processor."""
    monkeypatch.setattr(importlib.import_module("turns"), "pick_precision", lambda *_: "fp32")
    systems = ["mtformer-fp32", "mtformer-bf16", "torch-fp32", "marian-fp32", "joeynmt-fp32"]
    options = [*toy_options(corpus), "--systems", *systems, "--steps", 2, "--batches", 3, "--batch-tokens", 256]
    file = tmp_path / "figures.json"
    with pytest.raises(SystemExit) as ended:
        run("train_speed", *options, "--joeynmt", sys.executable, "--json", file)
    error = "RuntimeError: JoeyNMT's process ended with exit code 1; see its error above"
    assert ended.value.code == f"error: toy, joeynmt-fp32 failed: {error}"
    figures = json.loads(file.read_text())["sizes"]["toy"]
    assert {name: len(rates) for name, rates in figures["tokens_per_second"].items()} == {
        "mtformer-fp32": 2, "torch-fp32": 2, "marian-fp32": 2
    }  # fmt: skip
    assert [ratio["ours"] for ratio in figures["ratios"]] == ["mtformer-fp32"]
    printed = capsys.readouterr().out
    assert "- skipped, because this processor has no fast bf16: mtformer-bf16\n" in printed
    assert f"- failed: joeynmt-fp32: {error}\n" in printed


def test_fp32_is_compared_with_peers_in_fp32_only(run: Run) -> None:
    import train_speed

    rates = {"mtformer-fp32": [6.0], "mtformer-bf16": [12.0], "torch-fp32": [3.0], "marian-bf16": [8.0]}
    figures = {"limits_flops_per_second": {}, "tokens_per_second": rates, "share_of_limit": {}, "failed": {}}
    lines = train_speed.report("tiny", figures).splitlines()
    found = [line for line in lines if "fastest peer" in line]
    assert [line.split(" times")[0] for line in found] == [
        "- mtformer-fp32: 2.00 (2.00 to 2.00)",
        "- mtformer-bf16: 1.50 (1.50 to 1.50)",
    ]


def test_joeynmt_peer_converts_special_ids(run: Run) -> None:
    import joeynmt_peer

    ids_BS, lengths_B = joeynmt_peer.pad([[4, 5, 1], [7]])
    assert ids_BS.tolist() == [[4, 5, 0, 3], [7, 3, 1, 1]]
    assert lengths_B.tolist() == [4, 2]


def test_a_failed_worker_does_not_affect_the_others(run: Run) -> None:
    import turns

    answers, failed = turns.take_turns(
        {name: partial(turns.Worker, build, threads=1) for name, build in BUILDS.items()}, [(2,), (0,), (1,)]
    )
    assert answers == {"works": ["2", "0", "1"], "fails later": [0.5], "cannot be built": [], "is killed": []}
    assert failed == {
        "fails later": "ZeroDivisionError: division by zero",
        "cannot be built": "ValueError: no",
        "is killed": "its process ended with exit code 3",
    }


def test_a_hanging_worker_is_killed(run: Run) -> None:
    import turns

    worker = turns.Worker(_hangs)
    with pytest.raises(RuntimeError, match=r"^no answer after 0 seconds$"):
        worker.ask(600, timeout=0.1)


def _works() -> Callable[[int], str]:
    return str


def _fails_later() -> Callable[[int], float]:
    return lambda number: 1 / number


def _cannot_be_built() -> Callable[[int], str]:
    raise ValueError("no")


def _is_killed() -> Callable[[int], str]:
    os._exit(3)


def _hangs() -> Callable[[int], None]:
    return time.sleep


BUILDS = {
    "works": _works, "fails later": _fails_later, "cannot be built": _cannot_be_built, "is killed": _is_killed
}  # fmt: skip


def test_decode_speed(run: Run, corpus: Path, tmp_path: Path) -> None:
    systems = ["mtformer-fp32", "huggingface-fp32", "ctranslate2-int8"]
    options = [*toy_options(corpus), "--systems", *systems, "--searches", "greedy", "beam 5, text"]
    run("decode_speed", *options, "--text", corpus / "test.en", "--json", tmp_path / "figures.json")
    searches = json.loads((tmp_path / "figures.json").read_text())["sizes"]["toy"]
    figures, text_figures = searches["greedy"], searches["beam 5, text"]
    assert {name: len(rates) for name, rates in figures["sentences_per_second"].items()} == dict.fromkeys(systems, 2)
    assert [ratio["peer"] for ratio in figures["ratios"]] == systems[1:]
    [ratio] = text_figures["ratios"]
    assert (ratio["ours"], ratio["peer"]) == ("mtformer-ctranslate2-int8", "ctranslate2-sentencepiece-int8")


def test_data_speed(run: Run, corpus: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = ["--src", corpus / "train.en", "--tgt", corpus / "train.de", "--folder", tmp_path]
    sizes = ["--pairs", 400, "--repeats", 1, "--vocab-size", 200, "--epochs", 1, "--batch-tokens", 512]
    run("data_speed", *files, *sizes, "--workers", 2)
    printed = capsys.readouterr().out
    for line in ("prepared with the default filters: median ", "epoch 0: ", "resumed in the middle of epoch 1: "):
        assert f"\n{line}" in printed


def test_ranks_speed(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    run("ranks_speed", "--size", "toy", "--rounds", 1, "--steps", 2, "--json", file)
    figures = json.loads(file.read_text())
    assert figures["ratios"].keys() == {"one process", "DDP", "FSDP2"}
    assert all(rate > 0 for rates in figures["tokens_per_second"].values() for rate in rates)


def test_kftt_lengths(run: Run, config: Path, tmp_path: Path) -> None:
    run("kftt_lengths", config, "--out", tmp_path / "out.json")
    batches = json.loads((tmp_path / "out.json").read_text())["batches"]
    assert len(batches) == 16
    for batch in batches:
        longest = 1 + max(max(src, tgt) for src, tgt, _ in batch)
        assert longest * sum(count for _, _, count in batch) <= 512


def test_vocabulary_map(
    run: Run, config: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke("train", config, "--run-dir", tmp_path / "run").exit_code == 0
    files = (tmp_path / "run", corpus / "test.en", corpus / "test.de")
    run("vocabulary_map", *files, "--rounds", 1, "--threads", 1, "--beams", 2)
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if ", beam 2 | " in line]
    assert [row[0] for row in rows] == [
        f"| {name}, {precision}, beam 2" for precision in ("fp32", "int8") for name in ("plain", "map")
    ]
    assert all(float(row[1]) >= 0 for row in rows)


class FakeMoses:
    """A stand-in for sacremoses' normalizer and tokenizer: it separates final stops, and records the language."""

    def __init__(self, language: str) -> None:
        self.language = language

    def normalize(self, line: str) -> str:
        return line.replace("``", '"')

    def tokenize(self, line: str, return_str: bool) -> str:
        assert return_str
        return f"{self.language} {line.replace('.', ' .')}"


def test_moses_lowercase(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = ModuleType("sacremoses")
    modules.MosesPunctNormalizer = modules.MosesTokenizer = FakeMoses  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sacremoses", modules)
    raw, out = tmp_path / "raw", tmp_path / "out"
    raw.mkdir()
    (raw / "train.en").write_text("An ``Old`` Dog.\n\n", encoding="utf-8")
    (raw / "val.de.gz").write_bytes(gzip.compress("Äpfel.\n".encode()))
    (raw / "notes.txt").write_text("not a corpus", encoding="utf-8")
    run("moses_lowercase", raw, out)
    assert (out / "train.en").read_text(encoding="utf-8") == 'en an "old" dog .\nen \n'
    assert (out / "val.de").read_text(encoding="utf-8") == "de äpfel .\n"
    assert sorted(path.name for path in out.iterdir()) == ["train.en", "val.de"]


FAKE_PEER = """
import pathlib, sys, time
if sys.argv[1] == "train":
    for number in range(1000):
        pathlib.Path(f"step-{number}.ckpt").write_text(" ".join(sys.argv[2:]))
        time.sleep(0.02)
else:
    checkpoint, source, output = map(pathlib.Path, sys.argv[2:5])
    reference = source.with_suffix(".de") if checkpoint.read_text() == "0.002 128" else source
    output.write_text(reference.read_text() if reference.exists() else source.read_text())
"""
"""Program whose checkpoints translate perfectly with the settings of the fifth trial, and copy the source otherwise."""


def test_same_minutes_chooses_the_best_trial(
    run: Run, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("same_minutes")
    (tmp_path / "peer.py").write_text(FAKE_PEER)
    peer = module.System(
        files=("marian.yml",),
        train=(f"{{python}} {tmp_path}/peer.py train LEARNING_RATE BATCH_TOKENS",),
        translate=f"{{python}} {tmp_path}/peer.py translate {{checkpoint}} {{source}} {{output}}",
        checkpoints="step-*.ckpt",
        trials=module.six_trials(64),
    )
    monkeypatch.setattr(module, "SYSTEMS", {"mtformer": module.SYSTEMS["mtformer"], "marian": peer})
    seconds = 1 / 60
    options = ["--systems", "marian", "--out", tmp_path / "out", "--minutes", seconds, "--trial-minutes", seconds]
    run("same_minutes", corpus, *options)
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [name for name in results if "trial" in name] == [f"marian/trial{number}" for number in range(6)]
    for seed in (1, 2):
        final = results[f"marian/seed{seed}"]
        assert final["settings"] == {"learning_rate": 0.002, "dropout": 0.25, "batch": 128}
        assert final["bleu"] == pytest.approx(100)
        assert 1 <= len(final["dev"]) <= module.NUM_CURVE_POINTS
    assert (tmp_path / "out" / "dev_bleu.png").is_file()
    before = (tmp_path / "out" / "results.json").read_bytes()
    run("same_minutes", corpus, *options)
    assert (tmp_path / "out" / "results.json").read_bytes() == before, "runs that are recorded are not repeated"
