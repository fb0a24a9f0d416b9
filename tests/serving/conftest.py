"""Translators of bundles with random weights, and applications that serve them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient
from served import make_bundle

from mtformer.decoding.translator import Translator
from mtformer.serving.app import LOCAL_HOSTS, create_app

Start = Callable[..., TestClient]


@pytest.fixture(autouse=True)
def _one_thread(_few_threads: None) -> None:
    torch.set_num_threads(1)  # The models are too small to benefit from more threads.


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle that translates English to German."""
    return make_bundle(tmp_path_factory.mktemp("bundles") / "one")


@pytest.fixture(scope="session")
def translator(bundle: Path) -> Translator:
    return Translator.load(bundle, device="cpu")


@pytest.fixture(scope="session")
def both(tmp_path_factory: pytest.TempPathFactory) -> Translator:
    """Return a translator from English to German and from German to English."""
    tags = {"both_directions": True, "language_tags": "source"}
    return Translator.load(make_bundle(tmp_path_factory.mktemp("bundles") / "both", **tags), device="cpu")


@pytest.fixture
def start() -> Iterator[Start]:
    """Yield a function that returns a client of a new application."""
    with ExitStack() as stack:

        def make(translator: Translator, **changes: Any) -> TestClient:
            settings = {"max_characters": 300, "queue_size": 10, "hosts": LOCAL_HOSTS, **changes}
            app = create_app(translator, "tiny", **settings)
            client = TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)
            return stack.enter_context(client)

        yield make


@pytest.fixture
def client(start: Start, translator: Translator) -> TestClient:
    """Return a client of an application for English to German without a key."""
    return start(translator)
