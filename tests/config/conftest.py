"""Fixture for config files in a temporary working directory."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], str]:
    """Return a function that writes a file, given its name and text, and returns the name."""
    monkeypatch.chdir(tmp_path)

    def write_file(name: str, text: str) -> str:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")
        return name

    return write_file
