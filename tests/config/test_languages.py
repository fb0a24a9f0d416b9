"""Properties of text that codes of languages and scripts imply."""

import regex

from mtformer.config.languages import SCRIPTS_OF_THOUSANDS, UNSPACED_SCRIPTS, has_many_characters

ALL_CHARACTERS = "".join(chr(point) for point in range(0x110000) if not 0xD800 <= point < 0xE000)
ALPHABETS = {"latn", "arab"}
"""Scripts with more than 1,000 letters, of which each language uses few."""
MANY = (
    "zh zho cmn zh-TW zho_Hans zh_Hani yue lzh wuu nan nan_Hant nan-Hans hak gan hsn cdo cjy ja jpn_Jpan yoi ko "
    "kor_Hang ko-Kore jje ii iii ii_Yiii nos txg vi-Hani"
)
FEW = "de en th km my bo am hy he ar hi nan_Latn zh-Latn ko_Latn ja-Hira ain_Kana vi iu chr nqo zhx xx"


def test_languages_with_many_characters() -> None:
    assert [code for code in MANY.split() if not has_many_characters(code)] == []
    assert [code for code in FEW.split() if has_many_characters(code)] == []


def test_scripts_of_thousands_are_those_of_unicode() -> None:
    combined = {"hanb": "Hani", "hans": "Hani", "hant": "Hani", "jpan": "Hani", "kore": "Hang"}
    scripts = {*UNSPACED_SCRIPTS, *SCRIPTS_OF_THOUSANDS, "latn", "arab", "ethi", "cans", "vaii", "bamu", "cher", "deva"}
    large = set()
    for code in scripts - {"hrkt", "kits", "kawi"}:
        script = combined.get(code, code)
        letters = regex.findall(rf"[\p{{L}}&&\p{{Script={script}}}]", ALL_CHARACTERS, regex.V1)
        if len(letters) > 1000:
            large.add(code)
    assert large - ALPHABETS == set(SCRIPTS_OF_THOUSANDS)
