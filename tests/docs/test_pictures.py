"""scripts/pictures.py shows the same text as a terminal, and the committed pictures are small."""

import importlib.util

import pytest
from pages import ROOT


@pytest.mark.parametrize(
    ("received", "shown"),
    [
        (b"one\r\ntwo\r\n", "one\ntwo\n"),
        (b"\rtrain: 1%\r         \rstep 1\r\n\rtrain: 2%\rtrain: 3%", "step 1\ntrain: 3%"),
        (b"\x1b[32mgreen\x1b[0m\x1b[K", "\x1b[32mgreen\x1b[0m"),
        (b"x" * 81, "x" * 80 + "\nx"),
        (b"\n".join(b"%d" % number for number in range(30)), "\n".join(map(str, range(6, 30)))),
    ],
)
def test_the_screen_has_the_last_state_of_each_line(received: bytes, shown: str) -> None:
    pytest.importorskip("playwright", reason="pictures need the `test` extra")
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "scripts" / "pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.screen(received) == shown


@pytest.mark.parametrize("name", ["terminal.png", "report.png"])
def test_a_picture_is_a_small_png(name: str) -> None:
    data = (ROOT / "docs" / "images" / name).read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) < 150_000
