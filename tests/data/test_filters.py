"""The filters remove pairs with the correct reason and keep good pairs in all languages."""

from itertools import groupby
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mtformer.config.data import FilterConfig
from mtformer.config.section import key_of
from mtformer.data.filters.filters import KEPT, MARKUP_PATTERN, Filter, Reason, reason_of

OFF = FilterConfig.model_validate(
    {name: off for name in FilterConfig.model_fields if (off := key_of(FilterConfig, name).off) is not ...}
)


def codes(filter_: Filter, pairs: list[tuple[str, str]]) -> list[int]:
    return filter_.by_text(([src for src, _ in pairs], [tgt for _, tgt in pairs])).tolist()


def reasons(pairs: list[tuple[str, str]], src_lang: str = "en", tgt_lang: str = "de", **settings: object) -> list[str]:
    """Return the reason for each pair ("" if kept) with only these filters enabled."""
    config = FilterConfig.model_validate({**OFF.model_dump(), **settings})
    return ["" if number == KEPT else reason_of(number) for number in codes(Filter(config, src_lang, tgt_lang), pairs)]


def lengths(*values: int) -> NDArray[np.int32]:
    return np.array(values, dtype=np.int32)


GOOD = {
    "en-de": [
        ("A dog runs.", "Ein Hund rennt."),
        ("Yes.", "Ja."),
        ("No!!!", "Nein!!!"),
        ("Well...", "Tja ..."),
        ("Hotel Sacher, Vienna", "Hotel Sacher Wien"),
        ("Louis XIV was born in 1638.", "Ludwig der 14. wurde 1638 geboren."),
        ("It costs $1,000.50 at www.example.org", "Es kostet 1.000,50 $ bei www.example.org"),
        ("no no no no no", "nein nein nein nein nein"),
        ("a < b and b > c", "a < b und b > c"),
        ("Straße", "street"),
    ],
    "ja-en": [
        ("京都の庭園", "Gardens of Kyoto"),
        ("Microsoft Windows Vistaの概要", "Overview of Microsoft Windows Vista"),
        ("平成18年3月、彼は25歳だった。", "In March 2006 he was twenty-five years old."),
        ("はい。", "Yes, that is so."),
        ("OK", "All right."),
        ("1992年", "Year 1992"),
        (
            "藤原 道長（ふじわら の みちなが）は、平安時代の公卿。",
            "FUJIWARA no Michinaga was a court noble in the Heian period.",
        ),
        ("これは何ですか。", "What is this?"),
        ("ええええっ！", "Whaaaat?!"),
    ],
    "zh-en": [
        ("我们昨天看到的房子很大。", "The house that we saw yesterday was large."),
        ("他出生于一九四五年。", "He was born in 1945."),
        ("哦……", "Oh..."),
        ("价格为2亿3500万元。", "The price is 235 million yuan."),
    ],
    "ar-en": [
        ("البيت الذي رأيناه أمس كان كبيرا.", "The house that we saw yesterday was large."),
        ("وصل ٢٥ ضيفا في عام ٢٠١٣.", "25 guests arrived in 2013."),
        ("ما هذا؟", "What is this?"),
        ("هاتف iPhone XS", "An iPhone XS phone"),
    ],
    "hi-en": [("यह घर बहुत बड़ा है।", "This house is very large."), ("वह १९४५ में पैदा हुआ था।", "He was born in 1945.")],
    "th-en": [("บ้านที่เราเห็นเมื่อวานใหญ่มาก", "The house we saw yesterday was very large."), ("ในปี 2556", "In 2013")],
    "ko-en": [("우리가 어제 본 집은 아주 컸다.", "The house that we saw yesterday was very large.")],
    "ru-uk": [("Дом, который мы видели вчера", "Будинок, який ми бачили вчора"), ("iPhone XS", "Айфон XS")],
    "sr_Latn-sr_Cyrl": [("Kuća koju smo videli juče", "Кућа коју смо видели јуче")],
    "tlh-mul": [("tlhIngan Hol Dajatlh'a'", "Вы говорите по-клингонски?"), ("漢字", "كلمة")],
}


@pytest.mark.parametrize("languages", GOOD)
def test_default_filters_keep_good_pairs_in_all_languages(languages: str) -> None:
    src_lang, tgt_lang = languages.split("-")
    pairs = GOOD[languages]
    assert codes(Filter(FilterConfig(), src_lang, tgt_lang), pairs) == [KEPT] * len(pairs)
    turned = [(tgt, src) for src, tgt in pairs]
    assert codes(Filter(FilterConfig(), tgt_lang, src_lang), turned) == [KEPT] * len(pairs)


def test_empty() -> None:
    pairs = [("a", "b"), ("", "b"), ("a", " \u3000\t"), ("", ""), ("\u2028", "x"), ("a", ".")]
    assert reasons(pairs) == ["", Reason.EMPTY, Reason.EMPTY, Reason.EMPTY, Reason.EMPTY, ""]


def test_identical_except_for_case_punctuation_and_whitespace() -> None:
    pairs = [
        ("same ", " same"),
        ("Same, line", "same line."),
        ("「京都」", "京都"),
        ("!", "!"),
        ("210km/h。", "210 km/h"),
        ("!", "?"),
        ("1.5", "15"),
        ("कि", "का"),
        ("one", "two"),
    ]
    assert reasons(pairs, drop_identical=True) == [Reason.IDENTICAL] * 5 + [""] * 4


def test_repetition_of_a_character_or_a_word() -> None:
    pairs = [
        ("a!!!!", "b"),
        ("a", "b....."),
        ("aaaa", "b"),
        ("10000000", "b"),
        ("a        b", "b"),
        ("a", "no no no no"),
        ("a", "well: no no no no no !"),
        ("a", "no  no no no no"),
        ("a", "no yes no yes no yes no yes no"),
        ("ち", "あああああ"),
    ]
    expected = ["", Reason.REPETITION, "", "", "", "", Reason.REPETITION, Reason.REPETITION, "", Reason.REPETITION]
    assert reasons(pairs, max_repeats=4) == expected
    wherever = [("b c " * shift + "a " * 8, "c") for shift in range(20)]
    assert reasons(wherever, max_repeats=7) == [Reason.REPETITION] * 20
    assert reasons(wherever, max_repeats=8) == [""] * 20


def test_urls_and_markup() -> None:
    pairs = [
        ("https://example.org/a?b=c", "siehe dort"),
        ("see", "www.example.org"),
        ("someone@example.org", "jemand"),
        ("<div class='a'><br/></div> x", "x"),
        ("&nbsp;&amp;&#160; x", "x"),
        ("<!-- nothing to see --> x", "x"),
        (f"{' ' * 20}https://a.b", "x"),
        ("see https://example.org for all of the details of it", "siehe dort"),
        ("<Bus>", "a < b"),
        ("R&D", "F&E; mehr"),
        ("@home // & <", "x"),
        ("for all questions, please write to info@example.com", "ご質問やご意見はinfo@example.comまでお送りください。"),
        ("www.example.com has all of the details", "www.example.comから無料でお試しいただくことができます。"),
    ]
    assert reasons(pairs, max_markup_share=0.5) == [Reason.MARKUP] * 7 + [""] * 6


def test_long_lines_that_only_resemble_markup_are_kept() -> None:
    lines = ["x" * 100_000 + " @", "<!-- " * 20_000, "<a " * 30_000, "&" * 100_000, "a.b-" * 25_000 + "@"]
    assert reasons([(line, "x") for line in lines], max_markup_share=0.5) == [""] * 5


WORDS = st.sampled_from(["a", "b", "cc", "dd", "www.x", "<b>", "&amp;", "u@v.w", "https://x", "\u3000", "ä"])


@given(lines=st.lists(st.lists(WORDS, max_size=12), min_size=1, max_size=6))
def test_preselection_for_repetition_and_markup_is_complete(lines: list[list[str]]) -> None:
    """The filters only test lines that may fail, which are selected from many lines at once."""
    texts = [" ".join(line) for line in lines]
    runs = [max((len(list(same)) for _, same in groupby(text.split())), default=0) for text in texts]
    found = codes(Filter(OFF.model_copy(update={"max_repeats": 3}), "en", "de"), [(text, "x") for text in texts])
    blank = [Reason.EMPTY.code if not text.strip() else KEPT for text in texts]
    assert found == [
        empty or (Reason.REPETITION.code if run > 3 else KEPT) for empty, run in zip(blank, runs, strict=True)
    ]
    shares = [sum(map(len, MARKUP_PATTERN.findall(text))) > 0.3 * len(text.strip()) for text in texts]
    found = codes(Filter(OFF.model_copy(update={"max_markup_share": 0.3}), "en", "de"), [("x", text) for text in texts])
    assert found == [
        empty or (Reason.MARKUP.code if share else KEPT) for empty, share in zip(blank, shares, strict=True)
    ]


def test_share_of_letters() -> None:
    pairs = [
        ("12 34 56 %", "x"),
        ("a 1 2 3 4", "x"),
        ("a 1 2 3 4 5", "x"),
        ("漢 1 2 3 4 5 6 7 8 9 1", "x"),
        ("e\u0301 1 2 3 4", "x"),
        ("हिं १ २ ३ ४ ५", "x"),
    ]
    assert reasons(pairs, min_letter_share=0.2) == [Reason.LETTERS, "", Reason.LETTERS, "", "", ""]


@pytest.mark.parametrize(("languages", "pairs", "expected"), [
    ("ja-en", [("これは庭園です。", "これは庭園です。")], [Reason.SCRIPT]),
    ("ja-en", [("庭園は美しい。", "The Taiho Ritsuryo (大宝律令)"), ("ROUND1", "ROUND 1 (Bowling)")], ["", ""]),
    ("ja-en", [("This is a garden.", "This is a garden.")], [Reason.SCRIPT]),
    ("ru-en", [("Это вовсе не дом", "Это вовсе не дом"), ("It is no house", "x")], [Reason.SCRIPT, Reason.SCRIPT]),
    ("ru-en", [("новый iPhone XS Max", "x"), ("Это", "Это")], ["", ""]),
    ("zh-ja", [("これはかなだけです", "漢字漢字漢字"), ("漢字漢字漢字", "これは庭園です")], [Reason.SCRIPT, ""]),
    ("tlh-en", [("Это не дом вовсе", "a house")], [""]),
])  # fmt: skip
def test_scripts(languages: str, pairs: list[tuple[str, str]], expected: list[str]) -> None:
    assert reasons(pairs, *languages.split("-"), min_script_share=0.3) == expected


def test_difference_in_length() -> None:
    short, long = "twelve chars", "this line has a lot more characters than one would ever need to translate twelve"
    assert reasons([(short, long), (long, short), (short, long[:60])], max_length_difference=3.0) == [
        Reason.DIFFERENCE
    ] * 2 + [""]
    # The same difference is normal for long lines.
    assert reasons([(long * 5, long * 4), (short, long + short)], max_length_difference=3.0) == ["", Reason.DIFFERENCE]
    assert reasons([("庭" * 30, "x" * 105), ("庭" * 30, "x" * 30)], "ja", "en", max_length_difference=1.0) == [
        "",
        Reason.DIFFERENCE,
    ]


def test_numbers() -> None:
    pairs = [("Hotels (19)", "Hotels (6)"), ("35 dogs", "Hunde"), ("3 dogs", "drei Hunde"), ("2.5", "2,5"), ("a", "b")]
    assert reasons(pairs, drop_different_numbers=True) == [Reason.NUMBERS, Reason.NUMBERS, "", "", ""]
    assert reasons([("35匹の犬", "dogs"), ("35匹の犬", "43 dogs")], "ja", "en", drop_different_numbers=True) == [
        "",
        Reason.NUMBERS,
    ]


def test_punctuation() -> None:
    pairs = [
        ("What? (really)", "Was? (Wirklich)"),
        ("“What”, she said; well…", "„Was“, sagte sie; nun..."),
        ("What?", "Was!"),
        ("a | b | c", "a, b, c"),
    ]
    assert reasons(pairs, max_different_punctuation=1) == ["", "", Reason.PUNCTUATION, Reason.PUNCTUATION]
    pairs = [("何（本当）？「庭園」【注】", '[What] (really)? "Garden"'), ("ما هذا؟", "What is this?")]
    assert reasons(pairs, max_different_punctuation=0) == ["", ""]


@pytest.mark.parametrize(
    ("src", "tgt"),
    [
        ("What is this?", "ይህ ምንድን ነው፧"),
        ("What is this?", "Ի՞նչ է սա"),
        ("What a day!", "Ի՜նչ օր է:"),
        ("What is this?", "Τι είναι αυτό;"),
        ("He said: “yes?”", "Είπε: «ναι;»"),
        ("What is this?", "یہ کیا ہے؟"),
        ("Look!", "ߊ߬ ߝߟߍ߫߹"),
        ("Really?!", "真的⁈"),
        ("He says “yes”", "他说﹁是﹂"),
        ("It is good.", "ጥሩ ነው::"),
        ("Five percent (5%)", "خمسة في المئة (٥٪)"),
    ],
)
def test_marks_of_different_scripts_are_the_same(src: str, tgt: str) -> None:
    assert reasons([(src, tgt)], max_different_punctuation=0) == [""]
    assert reasons([(f"{src}?", tgt)], max_different_punctuation=0) == [Reason.PUNCTUATION]


def test_a_semicolon_is_no_question_in_other_scripts() -> None:
    pairs = [("Ja; nein.", "Yes? No."), ("Да; нет.", "Yes? No.")]
    assert reasons(pairs, max_different_punctuation=0) == [Reason.PUNCTUATION] * 2


def test_other_languages() -> None:
    pairs = [("La casa que vimos ayer", "Das Haus von gestern"), ("The house", "La casa que vimos ayer"), ("a", "b")]
    assert reasons(pairs, drop_other_languages=True) == [Reason.LANGUAGE, Reason.LANGUAGE, ""]


def test_disabled_filters_remove_nothing() -> None:
    pairs = [("a", "a"), ("!" * 50, "x"), ("www.example.org", "x"), ("12", "43"), ("Это не дом вовсе", "x" * 900)]
    pairs += [("La casa que vimos ayer", "x"), ("a?", "b!"), ("no " * 50, "x")]
    assert reasons(pairs) == [""] * len(pairs)
    assert all(reasons([pair], **FilterConfig(max_different_punctuation=0).model_dump()) != [""] for pair in pairs)


def test_each_pair_is_filtered_independently() -> None:
    random = Random(1)
    lines = ["", "a dog", "ein Hund", "12", "!!!!!!!!!", "Это не дом вовсе", "www.a.org", "La casa que vimos", "é" * 90]
    pairs = [(random.choice(lines), random.choice(lines)) for _ in range(4000)]
    filter_ = Filter(FilterConfig(), "en", "de")
    together = codes(filter_, pairs)
    alone = {pair: codes(filter_, [pair])[0] for pair in set(pairs)}
    assert together == [alone[pair] for pair in pairs]
    assert len(set(together)) > 5


def test_the_first_reason_is_reported() -> None:
    assert reasons([("12", "12"), ("", "")], **FilterConfig().model_dump()) == [Reason.IDENTICAL, Reason.EMPTY]
    assert [reason.code for reason in Reason] == list(range(1, 1 + len(Reason)))


def test_token_counts_at_the_limits() -> None:
    src = lengths(20, 21, 5, 0, 10, 11, 12, 12)
    tgt = lengths(20, 5, 21, 4, 1, 1, 3, 2)
    found = Filter(FilterConfig(max_tokens=20, max_length_ratio=4.0), "en", "de").by_length(src, tgt)
    # 10 to 1 is too short to be checked, 12 to 3 is at the maximum ratio.
    expected = [
        KEPT,
        Reason.TOO_LONG.code,
        Reason.TOO_LONG.code,
        Reason.EMPTY.code,
        KEPT,
        Reason.RATIO.code,
        KEPT,
        Reason.RATIO.code,
    ]
    assert found.tolist() == expected


def test_dev_keeps_all_pairs_and_empty_input_is_allowed() -> None:
    filter_ = Filter(None, "en", "de")
    assert not any(codes(filter_, [("", "b"), ("a", "a"), ("a", "a")]))
    assert not filter_.by_length(lengths(0, 5000, 1), lengths(1, 1, 1)).any()
    assert codes(Filter(FilterConfig(), "en", "de"), []) == []
