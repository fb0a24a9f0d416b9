"""Fixtures shared by all tests."""

import builtins
import contextlib
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

# Tests share the cores with other processes, so threads that spin while waiting slow everything down.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
import torch  # its threads read this variable when they start

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from typer.testing import Result

REPOSITORY = Path(__file__).resolve().parent.parent

with contextlib.suppress(ImportError):  # may be missing on a GPU test machine
    from hypothesis import settings

    # Property tests use the same examples in each run and have no deadline.
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
"""Property of a test report: (attack, number withstood, number tried), set by the `held` fixture."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that sets the number of attacks in tests/robustness."""
    help_text = "multiply the number of attacks in tests/robustness"
    parser.addoption("--attacks", type=float, default=1.0, help=help_text)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many attacks were withstood; the counts come from test reports, so all processes are included."""
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
    """Use a temporary cache, and block access to the internet."""
    monkeypatch.setenv("MTFORMER_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")


@pytest.fixture(autouse=True)
def _own_log_handlers() -> None:
    """Remove log handlers that earlier tests and module fixtures added in this process."""
    log = logging.getLogger("mtformer")
    log.handlers.clear()
    log.setLevel(logging.NOTSET)


@pytest.fixture
def no_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make imports fail as if matplotlib were not installed."""
    real = builtins.__import__

    def refuse(name: str, *arguments: Any, **named: Any) -> Any:
        if name.split(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", refuse)


@pytest.fixture(scope="session")
def chromium() -> Iterator["Browser"]:
    """Headless system Chromium; tests that need it are skipped with a reason if there is none."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("Chromium is not installed; on Debian and Ubuntu: apt-get install chromium")
    from playwright.sync_api import sync_playwright  # may be missing on a GPU test machine

    offline = "--disable-background-networking --disable-component-update --disable-sync --disable-quic --no-first-run"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu", *offline.split()]
        )
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real corpora next to the repository; tests that need it are skipped with a reason if it is missing."""
    path = REPOSITORY.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip(f"real corpora not found: no {path.relative_to(REPOSITORY.parent)} next to the repository")
    return path


# ---- a small run for command and robustness tests --------------------------------------------------------------------


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the first lines of the demo corpus and a config for it, small.yaml."""
    from mtformer.data.demo import write_demo

    folder, whole = tmp_path_factory.mktemp("corpus"), tmp_path_factory.mktemp("demo")
    for name, path in write_demo(whole).items():
        lines = path.read_text(encoding="utf-8").splitlines()[: LINES[name.split(".")[0]]]
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / "small.yaml").write_text(CONFIG.format(folder=folder), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def trained(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, "Result"]:
    """A finished run, which tests must not change, and the output of the command that trained it."""
    from program import invoke

    run = tmp_path_factory.mktemp("runs") / "small"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MTFORMER_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        result = invoke("train", corpus / "small.yaml", "--run-dir", run)
    assert result.exit_code == 0, result.stderr
    return run, result


@pytest.fixture
def run(trained: tuple[Path, "Result"], tmp_path: Path) -> Path:
    """A copy of the finished run, which a test may change."""
    return Path(shutil.copytree(trained[0], tmp_path / "run"))


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The runs whose confidence a test has fitted, with the weights and the sizes of the dev sets."""
    calls = list[Any]()

    def calibrate_run(run: Any, translator: Any, sets: Any, progress: Any) -> None:
        calls.append((run.path, translator.weights, [len(one.sources) for one in sets]))

    monkeypatch.setattr("mtformer.experiment.calibrate.calibrate_run", calibrate_run)
    return calls
