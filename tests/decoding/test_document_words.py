"""Words of documents, around which tags are placed, in many scripts."""

import pytest

from mtformer.documents.document import PART_OF_WORD, WORD, words_in


def words_of(text: str) -> list[str]:
    """Return the words of a text; punctuation is in parentheses."""
    return [f"({word.text})" if word.is_punctuation else word.text for word in words_in(text, WORD)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Das T-Shirt kostet 3.5 €, sagt l'homme.", "Das T-Shirt kostet 3.5 (€,) sagt l'homme (.)"),
        ("Он—врач…", "Он (—) врач (…)"),
        ("你好，世界！「是」", "你 好 (，) 世 界 (！) (「) 是 (」)"),
        ("ＡＢＣ １２", "ＡＢＣ １２"),
        ("यह अच्छा है।वह गया॥", "यह अच्छा है (।) वह गया (॥)"),
        ("ሰላም፡ዓለም።እንዴት፣ነህ፧", "ሰላም (፡) ዓለም (።) እንዴት (፣) ነህ (፧)"),
        ("ကျွန်တော်၊သွားသည်။", "ကျွ န် တော် (၊) သွား သ ည် (။)"),
        ("བོད་ཡིག་abcརེད།ཡིན", "བོད་ ཡིག་ abc རེད (།) ཡིན"),
        ("Ինչո՞ւ ես գնում։Այո", "Ինչո՞ւ ես գնում (։) Այո"),
        ("آپ کیسے ہیں؟میں،ٹھیک۔", "آپ کیسے ہیں (؟) میں (،) ٹھیک (۔)"),
        ("ߣߌ߫߸ߕߟߋ߬", "ߣߌ߫ (߸) ߕߟߋ߬"),
        ("ᱥᱟᱱᱛᱟᱲᱤ᱾ᱚᱠᱚᱭ", "ᱥᱟᱱᱛᱟᱲᱤ (᱾) ᱚᱠᱚᱭ"),
        ("ꦲꦏ꧀ꦱꦫ꧈ꦗ", "ꦲ ꦏ꧀ꦱ ꦫ (꧈) ꦗ"),
        ("ꆈꌠꉙ", "ꆈ ꌠ ꉙ"),
        ("ភាសាខ្មែរ។", "ភា សា ខ្មែ រ (។)"),
        ("สวัสดี โลก", "ส วั ส ดี โ ล ก"),
        ("한국어 《책》을.", "한국어 (《) 책 (》) 을 (.)"),
        ("צה״ל אמר", "צה״ל אמר"),
        ("ⵜⴰⵎⴰⵣⵉⵖⵜ, ᏣᎳᎩ!", "ⵜⴰⵎⴰⵣⵉⵖⵜ (,) ᏣᎳᎩ (!)"),
        ("👍🏽 @user", "👍🏽 (@) user"),
    ],
)
def test_words_of_a_text(text: str, words: str) -> None:
    assert words_of(text) == words.split()


@pytest.mark.parametrize(("text", "words"), [("T-Shirt", ["T", "-", "Shirt"]), ("d’eau", ["d", "’", "eau"])])
def test_parts_of_words_have_no_punctuation_inside(text: str, words: list[str]) -> None:
    assert [word.text for word in words_in(text, PART_OF_WORD)] == words
