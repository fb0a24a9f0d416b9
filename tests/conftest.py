"""Fixtures of all tests."""

import builtins
import contextlib
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from playwright.sync_api import Browser

REPOSITORY = Path(__file__).resolve().parent.parent

with contextlib.suppress(ImportError):  # a machine for the GPU tests may lack it
    from hypothesis import settings

    # Property tests try the same examples each time, however slow the machine.
    settings.register_profile("mtformer", deadline=None, derandomize=True, database=None)
    settings.load_profile("mtformer")


THREADS = min(2, torch.get_num_threads())


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
