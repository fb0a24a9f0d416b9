"""What tests share."""

from pathlib import Path

import pytest
import torch

REPOSITORY = Path(__file__).resolve().parent.parent


THREADS = min(2, torch.get_num_threads())


@pytest.fixture(autouse=True)
def _few_threads() -> None:
    torch.set_num_threads(THREADS)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokenised corpora of tests never reach the user's cache, and no test reaches the internet."""
    monkeypatch.setenv("MTFORMER_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real corpora beside the repository; tests that need it say plainly when it is missing."""
    path = REPOSITORY.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip(f"the real corpora are not here: no {path.relative_to(REPOSITORY.parent)} beside the repository")
    return path
