"""Fixtures of all tests."""

import builtins
import contextlib
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

# Tests share the cores with other processes; there, threads that spin while they wait cost more than they gain.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
import torch  # its threads read the policy

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from typer.testing import Result

REPOSITORY = Path(__file__).resolve().parent.parent

with contextlib.suppress(ImportError):  # a machine for the GPU tests may lack it
    from hypothesis import settings

    # Property tests try the same examples each time, however slow the machine.
    settings.register_profile("mtformer", deadline=None, derandomize=True, database=None)
    settings.load_profile("mtformer")


THREADS = min(2, torch.get_num_threads())
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
HELD = "held"
"""Property of a test's report: (attack, number that held, number tried), from the fixture `held`."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that makes the attacks of tests/robustness more or fewer."""
    help_text = "multiply the number of attacks in tests/robustness"
    parser.addoption("--attacks", type=float, default=1.0, help=help_text)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the number of attacks that held; reports carry the counts, so those of other processes are among them."""
    totals = dict[str, tuple[int, int]]()
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    for name, num_held, num_tried in (
        value for one in reports if one.when == "call" for key, value in one.user_properties if key == HELD
    ):
        before = totals.get(name, (0, 0))
        totals[name] = before[0] + num_held, before[1] + num_tried
    if totals:
        terminalreporter.section("attacks")
    for name, (num_held, num_tried) in sorted(totals.items()):
        terminalreporter.line(f"{name:<60} {num_held:>9,} of {num_tried:,} passed")


@pytest.fixture(autouse=True)
def _few_threads() -> None:
    torch.set_num_threads(THREADS)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokenized corpora of tests never reach the user's cache, and no test reaches the internet."""
    monkeypatch.setenv("MTFORMER_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")


@pytest.fixture(autouse=True)
def _own_log_handlers() -> None:
    """Remove the handlers that commands in earlier tests and in fixtures of modules left in this process."""
    log = logging.getLogger("mtformer")
    log.handlers.clear()
    log.setLevel(logging.NOTSET)


@pytest.fixture
def no_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make imports fail as they do without the extra `report`."""
    real = builtins.__import__

    def refuse(name: str, *arguments: Any, **named: Any) -> Any:
        if name.split(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", refuse)


@pytest.fixture(scope="session")
def chromium() -> Iterator["Browser"]:
    """A headless Chromium of the system; tests that need it say plainly when there is none."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("there is no Chromium here to look at pages with; on Debian and Ubuntu: apt-get install chromium")
    from playwright.sync_api import sync_playwright  # imported here: a machine for the GPU tests may lack it

    offline = "--disable-background-networking --disable-component-update --disable-sync --disable-quic --no-first-run"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu", *offline.split()]
        )
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real corpora beside the repository; tests that need it say plainly when it is missing."""
    path = REPOSITORY.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip(f"the real corpora are not here: no {path.relative_to(REPOSITORY.parent)} beside the repository")
    return path


# ---- a small run, for the tests of commands and the attacks ----------------------------------------------------------


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the first lines of the demo corpus and a config for it, small.yaml."""
    from mtformer.data.demo import write_demo

    folder, whole = tmp_path_factory.mktemp("corpus"), tmp_path_factory.mktemp("demo")
    for name, path in write_demo(whole).items():
        lines = path.read_text(encoding="utf-8").splitlines()[: LINES[name.split(".")[0]]]
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / "small.yaml").write_text(CONFIG.format(folder=folder), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def trained(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, "Result"]:
    """A finished run, which tests must not change, and what its training printed."""
    from program import invoke

    run = tmp_path_factory.mktemp("runs") / "small"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MTFORMER_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        result = invoke("train", corpus / "small.yaml", "--run-dir", run)
    assert result.exit_code == 0, result.stderr
    return run, result


@pytest.fixture
def run(trained: tuple[Path, "Result"], tmp_path: Path) -> Path:
    """A copy of the finished run that a test may change."""
    return Path(shutil.copytree(trained[0], tmp_path / "run"))
