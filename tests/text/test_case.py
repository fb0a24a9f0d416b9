"""Tests of upper, lower and title case by the rules of languages; the expected texts are those of Unicode and CLDR."""

import random
import unicodedata

import pytest

from mtformer.text.case import capitalize, case_of, lower_case, title_case, upper_case, upper_case_with_mtavruli

UPPER = [
    # CLDR, el-Upper: no accents; a dialytika where the accent separated two vowels; ή keeps its accent
    ("el", "άδικος, κείμενο, ίριδα", "ΑΔΙΚΟΣ, ΚΕΙΜΕΝΟ, ΙΡΙΔΑ"),
    ("ell_Grek", "Μαΐου, τρόλεϊ, ρωμέικα", "ΜΑΪΟΥ, ΤΡΟΛΕΪ, ΡΩΜΕΪΚΑ"),
    ("el", "άυλος, ΰ, παϊδάκια", "ΑΫΛΟΣ, Ϋ, ΠΑΪΔΑΚΙΑ"),
    ("el", "Το ένα ή το άλλο. Ή", "ΤΟ ΕΝΑ Ή ΤΟ ΑΛΛΟ. Ή"),
    ("grc", "Ἐπειδὴ ἡ ἀναγνώριση, ᾳ", "ΕΠΕΙΔΗ Η ΑΝΑΓΝΩΡΙΣΗ, ΑΙ"),
    ("", "ο κόσμος", "Ο ΚΟΣΜΟΣ"),
    # SpecialCasing.txt
    ("tr", "istanbul ısrar", "İSTANBUL ISRAR"),
    ("az-Latn", "bakı şəhəri", "BAKI ŞƏHƏRİ"),
    ("tur_Latn", "iyi", "İYİ"),
    ("lt", "i̇́ į̇́ jį", "Í Į́ JĮ"),
    ("de", "straße, ﬁnden", "STRASSE, FINDEN"),
    ("en", "i see a façade", "I SEE A FAÇADE"),
    ("hr", "ǆep ljubav", "ǄEP LJUBAV"),
    # ICU
    ("hy", "և Երևան", "ԵՎ ԵՐԵՎԱՆ"),
    ("hyw", "և Երևան", "ԵՒ ԵՐԵՒԱՆ"),
    # CSS Text Level 3
    ("ga", "ar aon tslí", "AR AON tSLÍ"),
    ("ga", "an bhfuil tú i mBaile Átha Cliath?", "AN bhFUIL TÚ I mBAILE ÁTHA CLIATH?"),
    ("gle_Latn", "an t-úll, na n-éan, na hÉireann", "AN tÚLL, NA nÉAN, NA hÉIREANN"),
    ("ga", "ar an gcat, a dtír, an bpáirc, i nGaeilge, a ndán", "AR AN gCAT, A dTÍR, AN bPÁIRC, I nGAEILGE, A nDÁN"),
    ("ga", "b'fhearr liom hata agus bord", "B'FHEARR LIOM HATA AGUS BORD"),
    ("en", "bhfuil tslí", "BHFUIL TSLÍ"),
    # Georgian capitals are not used
    ("ka", "საქართველო და nato", "საქართველო და NATO"),
    ("", "მე ვარ", "მე ვარ"),
    ("ka", "ᲡᲐᲥᲐᲠᲗᲕᲔᲚᲝ", "ᲡᲐᲥᲐᲠᲗᲕᲔᲚᲝ"),
    # no rules
    ("ru", "ёж и чай", "ЁЖ И ЧАЙ"),
    ("vi", "tiếng việt", "TIẾNG VIỆT"),
    ("ja", "日本のios", "日本のIOS"),
    ("nl", "ijsland", "IJSLAND"),
]
TITLE = [
    ("nl", "het ijs van ijsland, 'ijl'", "Het IJs Van IJsland, 'IJl'"),
    ("nld_Latn", "ĳsland íj́s bijna", "Ĳsland ÍJ́s Bijna"),
    ("de", "das ijsselmeer", "Das Ijsselmeer"),
    ("ka", "საქართველოს ქალაქი nato", "საქართველოს ქალაქი Nato"),
    ("tr", "istanbul'un ışığı", "İstanbul'un Işığı"),
    ("lt", "i̇́sakas", "Ísakas"),
    ("el", "άδικος κόσμος", "Άδικος Κόσμος"),
    ("hr", "ǆep ǌegov", "ǅep ǋegov"),
    ("ga", "an tsráid i nGaillimh, an t-úll, an bhfear", "An tSráid I nGaillimh, An tÚll, An bhFear"),
    ("hy", "և երևան", "Եվ Երևան"),
    ("en", 'it\'s "so" (old)', 'It\'s "So" (Old)'),
]
LOWER = [
    ("el", "Ο ΟΔΥΣΣΕΥΣ ΣΤΟΝ ΔΡΟΜΟ", "ο οδυσσευς στον δρομο"),
    ("tr", "ISPARTA İSTANBUL I\u0307", "ısparta istanbul i"),
    ("en", "ISPARTA", "isparta"),
    ("lt", "Í Ĩ Ì J̃ Į́ I", "i̇́ i̇̃ i̇̀ j̇̃ į̇́ i"),
    ("ga", "AN tÚLL, NA nÉAN, AR AON tSLÍ", "an t-úll, na n-éan, ar aon tslí"),
    ("ka", "ᲡᲐᲥᲐᲠᲗᲕᲔᲚᲝ", "საქართველო"),
    ("de", "GROẞ", "groß"),
]
SENTENCES = [
    ("nl", "IJSLAND IS MOOI.", "IJsland is mooi."),
    ("tr", "ISPARTA VE İSTANBUL", "Isparta ve istanbul"),
    ("tr", "İYİ", "İyi"),
    ("el", "ΟΔΟΣ ΟΔΥΣΣΕΥΣ", "Οδος οδυσσευς"),
    ("ka", "ᲡᲐᲥᲐᲠᲗᲕᲔᲚᲝ ᲐᲠᲘᲡ", "საქართველო არის"),
    ("ga", "NA nÉAN", "Na n-éan"),
    ("de", "„DER HUND“", "„der hund“"),
    ("de", "ÄRGER IM PARK  ", "Ärger im park  "),
    ("", "", ""),
]


@pytest.mark.parametrize(("language", "text", "capitals"), UPPER)
def test_capitals(language: str, text: str, capitals: str) -> None:
    assert upper_case(text, language) == capitals
    assert upper_case(capitals, language) == capitals


@pytest.mark.parametrize(("language", "text", "title"), TITLE)
def test_titles(language: str, text: str, title: str) -> None:
    assert title_case(text, language) == title
    assert title_case(title, language) == title


@pytest.mark.parametrize(("language", "text", "lower"), LOWER)
def test_lower_case(language: str, text: str, lower: str) -> None:
    assert lower_case(text, language) == lower


@pytest.mark.parametrize(("language", "text", "sentence"), SENTENCES)
def test_sentences_begin_with_a_capital(language: str, text: str, sentence: str) -> None:
    assert capitalize(text, language) == sentence


@pytest.mark.parametrize(
    ("language", "text", "case"),
    [
        ("ga", "AN bhFUIL TÚ I mBAILE", upper_case),
        ("ga", "An tUachtarán I mBaile Átha Cliath", title_case),
        ("nl", "IJsland Is Een Mooi Land", title_case),
        ("nl", "Ijsland Is Een Mooi Land", None),
        ("de", "Ijsland Ist Ein Schönes Land", title_case),
        ("el", "Ο ΚΟΣΜΟΣ ΕΙΝΑΙ ΜΙΚΡΟΣ", upper_case),
        ("tr", "İSTANBUL VE ISPARTA", upper_case),
        ("ka", "ᲡᲐᲥᲐᲠᲗᲕᲔᲚᲝ ᲐᲠᲘᲡ", upper_case_with_mtavruli),
        ("ka", "საქართველო არის დიდი და ლამაზი", None),
        ("ka", "NATO და საქართველო", None),
        ("hr", "ǅep I Lijepa Velika Nova Kuća", title_case),
        ("ja", "犬は DER HUND です", None),
    ],
)
def test_the_case_of_a_line(language: str, text: str, case: object) -> None:
    assert case_of(text, language) is case


def test_georgian_has_the_capitals_of_its_source() -> None:
    change = case_of("ᲡᲐᲥᲐᲠᲗᲕᲔᲚᲝ ᲐᲠᲘᲡ", "ka")
    assert change is not None
    assert change("ქორთუ nato", "xmf") == "ᲥᲝᲠᲗᲣ NATO"


def test_text_without_special_letters_has_the_case_of_python() -> None:
    rng = random.Random(1)
    letters = [
        chr(point) for point in range(0x20, 0x600) if not unicodedata.name(chr(point), "GREEK").startswith("GREEK")
    ]
    letters = [letter for letter in letters if letter not in "\x85\xa0" and unicodedata.category(letter) != "Mn"]
    for _ in range(300):
        text = "".join(rng.choices(letters, k=40))
        assert upper_case(text) == upper_case(text, "en") == text.upper()
        assert lower_case(text) == lower_case(text, "fr") == text.lower()
