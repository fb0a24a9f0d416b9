"""Language checks with function words and with the py3langid identifier."""

import sys
import unicodedata
from collections.abc import Iterator

import pytest

from mtformer.config.data import FilterConfig
from mtformer.data.filters import language
from mtformer.data.filters.filters import KEPT, Filter, Reason
from mtformer.data.filters.language import CLOSE, SAME_WORDS, WordCheck, confidences, probabilities, table, words_of
from mtformer.errors import ConfigError

LOW_GERMAN = [
    "Wi gaht hüüt Avend noch eenmal an'n Haven un kiekt de Scheep to.",
    "De Jung hett sien Fohrrad in'n Schuppen stellt.",
    "Ik weet nich, wat dat morgen regen deit.",
    "Mien Grootmoder hett jümmers seggt, dat dat Brood vundaag beter smeckt.",
]
AFRIKAANS = [
    "Ons gaan vanaand weer na die hawe om na die skepe te kyk.",
    "Die seun het sy fiets in die skuur gebêre.",
    "Ek weet nie of dit môre gaan reën nie.",
    "My ouma het altyd gesê dat die brood vandag beter smaak.",
]
ALEMANNIC = ["Mir gönd hüt zabig no einisch an Hafe abe.", "Das isch nöd wahr, wo isch er gsi?"]
LUXEMBOURGISH = ["Mir ginn haut den Owend nach eng Kéier bei den Hafen.", "Ech hunn haut méi Zäit wéi gëschter."]
GALICIAN = ["Esta noite imos outra vez ao porto ver os barcos.", "Non sei se mañá vai chover na cidade."]
RELATIVES = [
    *(("de", line) for line in (*LOW_GERMAN, *ALEMANNIC, *LUXEMBOURGISH)),
    *(("nl", line) for line in (*AFRIKAANS, *LOW_GERMAN)),
    *(("pt", line) for line in GALICIAN),
    ("en", "We're gaun tae the harbour again the nicht."),
    ("nb", "I aften går vi igen ned til havnen for at se på skibene."),
    ("sk", "Dnes večer půjdeme znovu do přístavu podívat se na lodě."),
]
UNKNOWN = [("nds", line) for line in LOW_GERMAN] + [("af", line) for line in AFRIKAANS] + [("tlh", "tlhIngan maH!")]
OTHERS = [
    ("en", "Dom, który widzieliśmy wczoraj, był duży, ale nie ma ogrodu."),
    ("de", "El perro que vimos ayer no está en la calle."),
    ("nl", "Cette maison est plus grande que la nôtre, mais elle n'a pas d'arbre."),
]


@pytest.mark.parametrize(("line", "other", "is_foreign"), [
    ("La casa que vimos ayer", "Das Haus, das wir gestern sahen", True),
    ("Dom jest duży, ale nie ma ogrodu", "Das Haus ist groß", True),
    ("Das Haus ist groß und hat keinen Garten", "Das Haus ist groß und hat keinen Garten.", True),
    ("Это не дом", "Das ist kein Haus", True),
    ("The house", "Das Haus", False),
    ("", "", False),
    ("12 %", "12 %", False),
    ("Hotel de la Paix", "Hotel de la Paix", False),
    ("Hotel Sacher in Vienna", "Hotel Sacher in Wien", False),
    ("Ludwig van Beethoven", "Ludwig van Beethoven", False),
    ("A walk on the Playa de las Américas", "Ein Gang am Strand", False),
    ("Die Zeit, und", "Die Zeit, und", False),
    ("»The« casa que los vimos", "Das Haus", False),
    ("o e y ö", "x", False),
])  # fmt: skip
def test_foreign_lines(line: str, other: str, is_foreign: bool) -> None:
    assert WordCheck("en", "de").is_foreign(line, other) == is_foreign


def test_an_untranslated_line_is_foreign() -> None:
    line = "Download here the file that you have"
    assert WordCheck("de", "en").is_foreign(line, line)
    assert not WordCheck("en", "de").is_foreign(line, line)


def test_decomposed_characters_do_not_make_a_line_foreign() -> None:
    line = unicodedata.normalize("NFD", "Nó có con mèo nhỏ.")
    assert not WordCheck("vi", "en").is_foreign(line, "It has a small cat.")


def test_function_words_detect_other_languages_except_close_and_unknown_ones() -> None:
    for expected, line in (*RELATIVES, *UNKNOWN):
        assert not WordCheck(expected, "fr").is_foreign(line, "C'est autre chose."), line
        assert not WordCheck(expected, "en").is_foreign(line, "Something else."), line
    for expected, line in OTHERS:
        assert WordCheck(expected, "hu").is_foreign(line, "x"), line


def test_word_lists_are_consistent() -> None:
    lists = {code: entry["words"].split() for code, entry in table().items() if "words" in entry}
    assert len(lists) == 29
    for language_code, words in lists.items():
        assert len(words) == len(set(words)) >= 20, language_code
        assert words == [word.lower() for word in words]
    for entry in table().values():
        relatives = set(entry.get("relatives", "").split())
        assert all(relatives.isdisjoint(words) for words in lists.values())
    assert all(words_of(code) for code in SAME_WORDS)
    assert words_of("pt-BR") == words_of("pt") == words_of("por_Latn")


@pytest.fixture
def no_identifier(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Simulate that the `langid` extra is not installed."""
    monkeypatch.setitem(sys.modules, "py3langid", None)
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    language._identifier.cache_clear()
    yield
    language._identifier.cache_clear()


@pytest.mark.usefixtures("no_identifier")
def test_only_the_language_filter_needs_the_identifier() -> None:
    Filter(FilterConfig(), "en", "de")
    assert probabilities("the house", ["en", "de"]) is None
    with pytest.raises(ConfigError, match=r"needs py3langid: pip install 'mtformer\[langid\]', or"):
        Filter(FilterConfig(min_language_confidence=0.01), "en", "de")


@pytest.fixture
def identifier() -> None:
    pytest.importorskip("py3langid", reason="the extra `langid` is not installed")


@pytest.mark.usefixtures("identifier")
def test_the_identifier_detects_other_languages_except_close_and_unknown_ones() -> None:
    for expected, line in (*RELATIVES, *UNKNOWN):
        assert confidences(expected)([line])[0] > 0.05, line
    for expected, line in OTHERS:
        assert confidences(expected)([line])[0] < 0.001, line


@pytest.mark.usefixtures("identifier")
def test_codes_of_close_languages_are_supported_by_the_identifier() -> None:
    known = set(language._identifier().labels)
    assert all(known & set(group.split()) for group in CLOSE)
    norwegian = "I kveld går vi til havnen igjen for å se på skipene."
    for code_of_norwegian in ("no", "nb", "nb-NO"):
        assert confidences(code_of_norwegian)([norwegian])[0] > 0.9


@pytest.mark.usefixtures("identifier")
def test_pairs_with_a_side_in_another_language() -> None:
    english, german = "The house that we saw yesterday was large.", "Das Haus, das wir gestern sahen, war groß."
    pairs = [(english, german), (german, german), (english, english), ("short", "kurz")]
    config = FilterConfig(min_language_confidence=0.01, drop_other_languages=False, drop_identical=False)
    codes = Filter(config, "en", "de").by_text(([src for src, _ in pairs], [tgt for _, tgt in pairs]))
    assert codes.tolist() == [KEPT, Reason.LANGUAGE.code, Reason.LANGUAGE.code, KEPT]


@pytest.mark.usefixtures("identifier")
def test_probabilities_of_the_given_languages() -> None:
    shares = probabilities("Das Haus, das wir gestern sahen, war groß.", ["en", "de", "nb"])
    assert shares is not None
    assert sum(shares) == pytest.approx(1)
    assert shares[1] > 0.99
    assert probabilities("", ["en", "de"]) == pytest.approx([0.5, 0.5])
    assert probabilities("Das Haus", ["en", "nds"]) is None
