"""Translation directions of a model, determined from its config, and language detection."""

from typing import Any

import pytest

from mtformer.config.data import DataConfig
from mtformer.config.languages import language_name
from mtformer.data.filters import language
from mtformer.serving.requests import Settings, detect


def languages(**data: object) -> Settings:
    config = DataConfig.model_validate({"src_lang": "en", "tgt_lang": "de", **data})
    return Settings(config.directions, max_characters=100)


def test_a_run_has_the_directions_of_its_data() -> None:
    corpus = [{"src": "a", "tgt": "b"}, {"src": "a", "tgt": "b", "src_lang": "fr", "tgt_lang": "es"}]
    found = languages(train=corpus, language_tags="source")
    assert found.directions == [("en", "de"), ("fr", "es")]
    assert (found.sources, found.sources_of("es")) == (["en", "fr"], ["fr"])
    targets = [(one["code"], one["targets"]) for one in found.languages()]
    assert targets == [("en", ["de"]), ("fr", ["es"]), ("de", []), ("es", [])]


def test_a_bundle_has_the_listed_directions() -> None:
    found = languages(language_pairs=["de fr", "pt-BR de"], language_tags="source")
    assert found.directions == [("en", "de"), ("de", "fr"), ("pt-BR", "de")]


@pytest.mark.parametrize("pair", ["de", "en de fr", "en german"])
def test_a_listed_direction_has_two_languages(pair: str) -> None:
    with pytest.raises(ValueError, match=r"must be (two language codes|an ISO 639 code)"):
        languages(language_pairs=[pair], language_tags="source")


@pytest.mark.parametrize(
    ("code", "expected"),
    [("de", "German"), ("pt-BR", "Portuguese (BR)"), ("zh_Hant", "Chinese (Hant)"), ("mt", "Maltese"), ("qya", "qya")],
)
def test_language_names(code: str, expected: str) -> None:
    assert language_name(code) == expected


@pytest.mark.parametrize(
    ("text", "candidates", "by_words", "by_identifier"),
    [
        ("12 !", ["ja", "de"], ("ja", 0, 0), ("ja", 50, 50)),
        ("der", ["ja", "de"], ("de", 100, 100), ("de", 80, 100)),
        ("the the the der", ["de", "en"], ("en", 75, 75), ("en", 90, 100)),
        ("Das Haus ist groß", ["en", "nds", "de"], ("de", 100, 100), ("de", 100, 100)),  # py3langid does not know nds
        ("whatever", ["ja"], ("ja", 100, 100), ("ja", 100, 100)),
    ],
)
@pytest.mark.parametrize("installed", [False, True])
def test_detection(
    text: str,
    candidates: list[str],
    by_words: Any,
    by_identifier: Any,
    installed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if installed:
        pytest.importorskip("py3langid", reason="the extra `langid` is not installed")
    else:
        monkeypatch.setattr(language, "_identifier", lambda: None)
    code, low, high = by_identifier if installed else by_words
    found = detect(text, candidates)
    assert found["language"] == code
    assert low <= found["confidence"] <= high
