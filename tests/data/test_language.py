"""The language identifier: asked through a small stand-in, for the real one is an extra."""

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from mtformer.config.data import FilterConfig
from mtformer.data import language
from mtformer.data.filters.filters import KEPT, LANGUAGE, Filter, code
from mtformer.data.language import confidences
from mtformer.errors import ConfigError


class Codes:
    """ISO codes, as lingua has them."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def from_str(self, name: str) -> str:
        if name not in self.names:
            raise ValueError("Matching enum member not found")
        return name


class Detector:
    """Finds a language's code in the text."""

    def compute_language_confidence_in_parallel(self, texts: list[str], known: str) -> list[float]:
        return [0.9 if f"[{known}]" in text else 0.002 for text in texts]


@pytest.fixture
def lingua(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module `lingua` that knows English, German, Norwegian and Cebuano."""
    builder = SimpleNamespace(from_all_languages=lambda: SimpleNamespace(build=Detector))
    fake: Any = SimpleNamespace(
        IsoCode639_1=Codes("EN", "DE", "NB"),
        IsoCode639_3=Codes("CEB"),
        Language=SimpleNamespace(from_iso_code_639_1=str, from_iso_code_639_3=str),
        LanguageDetectorBuilder=builder,
    )
    monkeypatch.setitem(sys.modules, "lingua", fake)
    language._detector.cache_clear()
    yield
    language._detector.cache_clear()


@pytest.mark.usefixtures("lingua")
@pytest.mark.parametrize(("code", "asked"), [("en", "EN"), ("de-AT", "DE"), ("no", "NB"), ("ceb", "CEB")])
def test_codes(code: str, asked: str) -> None:
    assert confidences(code)([f"text [{asked}]", "text"]).tolist() == [0.9, 0.002]


@pytest.mark.usefixtures("lingua")
@pytest.mark.parametrize("code", ["xx", "tlh"])
def test_a_language_that_lingua_does_not_know(code: str) -> None:
    told = rf"data\.filters\.min_language_confidence: lingua does not know the language '{code}'; set it to 0"
    with pytest.raises(ConfigError, match=told):
        confidences(code)


def test_without_lingua(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lingua", None)
    Filter(FilterConfig(), "en", "de")
    with pytest.raises(ConfigError, match=r"needs a package that is not here: pip install 'mtformer\[langid\]', or"):
        Filter(FilterConfig(min_language_confidence=0.01), "en", "de")


@pytest.mark.usefixtures("lingua")
def test_pairs_with_a_side_in_another_language() -> None:
    pairs = [
        ("a long sentence [EN]", "ein langer Satz [DE]"),
        ("ein anderer langer Satz [DE]", "ein langer Satz [DE]"),
        ("a long sentence [EN]", "another long sentence [EN]"),
        ("short", "kurz"),
    ]
    codes = Filter(FilterConfig(min_language_confidence=0.01, drop_other_languages=False), "en", "de").by_text(
        ([src for src, _ in pairs], [tgt for _, tgt in pairs])
    )
    assert codes.tolist() == [KEPT, code(LANGUAGE), code(LANGUAGE), KEPT]


def test_the_real_one() -> None:
    lingua = pytest.importorskip("lingua", reason="the extra `langid` is not installed")
    english, polish = "The house that we saw yesterday was large.", "Dom, który widzieliśmy wczoraj, był duży."
    assert lingua.Language.ENGLISH
    is_english = confidences("en")([english, polish])
    assert is_english[0] > 0.2
    assert is_english[1] < 0.01
