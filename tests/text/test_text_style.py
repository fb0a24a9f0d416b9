"""Tokenized and lowercased text is recognized in any script, and usual text is not."""

import unicodedata

import pytest

from mtformer.text.style import CASE, TOKENIZED, Sign, StyleCounts, describe_differences, differences, signs_of

USUAL = {
    "en": ["He said that it's late, and we can't wait.", "Dr. Smith paid $1,000.50, i.e. too much (as usual).", "Why?"],
    "fr": [
        "Qu'est-ce que c'est ? Je ne sais pas !",
        "Il a dit : « Bonjour », puis il est parti.",
        "L'eau, c'est bon ;",
    ],
    "de": ["Er sagt, dass er 3,5 km läuft.", "„Gut“, sagte sie.", "Im Jahr 1990 war es z. B. kalt, nass usw."],
    "el": ["Είπε ότι θα έρθει, αλλά δεν ήρθε.", "Τι είναι αυτό;", "Ναι· πράγματι."],
    "ru": ["Он сказал, что придёт, но не пришёл.", "«Да», — ответила она.", "Что это?"],
    "hy": ["Նա ասաց, որ կգա, բայց չեկավ։", "Ի՞նչ է սա։", "Այո, իհարկե, դա այդպես է։"],
    "ka": ["მან თქვა, რომ მოვა, მაგრამ არ მოვიდა.", "რა არის ეს?", "დიახ, რა თქმა უნდა."],
    "chr": ["ᎠᏂᏴᏫ ᏂᎦᏓ ᎠᎾᏕᎿ ᎤᎾᏓᎵᎪᎯ ᎤᏂᎾᏟ, ᎠᎴ ᎾᏍᏉ."],
    "ja": ["彼は昨日、東京へ行った。", "そうだね 明日また行こう", "Python 3を使う。", "ＡＢＣ株式会社　東京支店"],
    "zh": ["他昨天去了北京，今天回来。", "這是什麼？", "我用 Python 写程序。"],
    "th": ["วันนี้อากาศดีมาก เราจึงออกไปเดินเล่น", "เขาพูดว่า จะมาพรุ่งนี้เช้า"],
    "km": ["មនុស្សទាំងអស់ កើតមកមានសេរីភាព និងសមភាព ។"],
    "my": ["လူတိုင်းသည် တူညီ လွတ်လပ်သော ဂုဏ်သိက္ခာဖြင့် လည်းကောင်း၊ မွေးဖွားလာသူများ ဖြစ်သည်။"],
    "bo": ["འགྲོ་བ་མིའི་རིགས་རྒྱུད་ཡོངས་ལ། སྐྱེས་ཙམ་ཉིད་ནས། རང་དབང་དང་འདྲ་མཉམ་ཡོད།"],
    "ko": ["그는 어제 서울에 갔다, 그리고 오늘 왔다.", "이것은 무엇입니까?"],
    "vi": ["Hôm qua anh ấy đã đi Hà Nội, hôm nay anh ấy về."],
    "hi": ["वह कल दिल्ली गया था, और आज वापस आया ।"],
    "ar": ["ذهب أمس إلى القاهرة، وعاد اليوم.", "ما هذا؟"],
    "nl": ["'s Morgens is het koud, 's avonds ook.", "In 's-Hertogenbosch regent het, zegt men."],
    "mt": ["Ġanni mar il-Ġimgħa, u Ġorġ ukoll."],
    "code": ["def f(x): return x.y, x[0]", "git commit -m '## Title' && echo a@b.org @user"],
}
"""Usual text in several languages."""


def counts(*lines: str) -> StyleCounts:
    return StyleCounts.of_lines(lines * 120)


@pytest.mark.parametrize("language", USUAL)
def test_usual_text_has_no_signs(language: str) -> None:
    assert signs_of(counts(*USUAL[language])) == {}


@pytest.mark.parametrize(
    ("sign", "lines"),
    [
        (Sign.SPACED_STOPS, ["He said that it is late , and he left ."]),
        (Sign.SPACED_STOPS, ["Er sagte „ Gut “ , und ging ."]),
        (Sign.SPACED_STOPS, ["Είπε ότι θα έρθει , αλλά δεν ήρθε ."]),
        (Sign.SPACED_STOPS, ["그는 어제 서울 에 갔다 ."]),
        (Sign.SPACED_STOPS, ["ذهب أمس إلى القاهرة ، وعاد اليوم ."]),
        (Sign.SPLIT_CONTRACTIONS, ["we ca n't wait", "they 've gone and we 'll go", "i do n’t know"]),
        (Sign.SPACED_WORDS, ["彼 は 昨日 、 東京 へ 行っ た 。"]),
        (Sign.SPACED_WORDS, ["他 昨天 去 了 北京 ， 今天 回来 。"]),
        (Sign.SPACED_WORDS, ["他昨天去了北京，今天回来。".replace("", " ").strip()]),
        (Sign.SPACED_WORDS, ["วันนี้ อากาศ ดี มาก เรา จึง ออก ไป เดิน เล่น"]),
        (Sign.SPACED_WORDS, ["မနေ့ က သူ ရန်ကုန် ကို သွား တယ်"]),
        (Sign.SPACED_WORDS, ["བོད་ ཡིག་ གི་ སློབ་ དེབ་ འདི་ ཡག་པོ་ རེད།"]),
        (Sign.SUBWORDS, ["ein hoch@@ begab@@ ter Mann", "▁Ein ▁Ma nn", "play ##ing"]),
        (Sign.JOINERS, ["ein deutsch @-@ französischer Film"]),
        (Sign.ESCAPES, ["he said &quot; yes &quot;", "it &apos;s &#91; here &#93;"]),
        (Sign.SMALL, ["der mann geht über die straße"]),
        (Sign.SMALL, ["он сказал что придёт завтра"]),
        (Sign.SMALL, ["είπε ότι θα έρθει αύριο"]),
        (Sign.SMALL, ["նա ասաց որ կգա վաղը"]),
        (Sign.CAPITALS, ["DER MANN GEHT ÜBER DIE STRASSE"]),
        (Sign.DECOMPOSED, [unicodedata.normalize("NFD", "Hôm qua anh ấy đã đi Hà Nội")]),
        (Sign.FULL_WIDTH, ["Ｔｈｅ　ｍａｎ　ｗｅｎｔ"]),
    ],
)
def test_each_sign_is_found(sign: Sign, lines: list[str]) -> None:
    assert sign in signs_of(counts(*lines))


def test_a_few_lines_are_not_judged() -> None:
    few = StyleCounts.of_lines(["he is late , he says .", "彼 は 行っ た 。", "a small line without capitals"])
    assert signs_of(few) == {}


def test_lines_of_spaces_and_marks_are_counted_in_linear_time() -> None:
    """A pattern that tries each part of a run of spaces would need hours."""
    for character in (" ", ".", ",", "'", "@", "&", "#", "▁", " .", "@ ", "彼 "):
        StyleCounts.of_lines([f"彼{character * 50_000}彼"])


def test_one_escape_is_no_sign() -> None:
    assert signs_of(StyleCounts.of_lines(["Research &amp; development", *["Er geht heute."] * 19])) == {}


def test_counts_are_added_and_restored() -> None:
    first = counts("Er geht , sagt er .", "彼は行った。")
    second = counts("Он пришёл.")
    total = StyleCounts.of_lines(["Er geht , sagt er .", "彼は行った。"] * 120 + ["Он пришёл."] * 120)
    assert first + second == total
    assert StyleCounts.from_dict(total.to_dict()) == total
    assert set(total.scripts) == {"Latin", "Cjk", "Hiragana", "Cyrillic"}


TOKENIZED_JA = "彼 は 昨日 、 東京 へ 行っ た 。"
RAW_JA = TOKENIZED_JA.replace(" ", "")


@pytest.mark.parametrize(
    ("training", "text", "keys"),
    [
        (TOKENIZED_JA, RAW_JA, {Sign.SPACED_STOPS, Sign.SPACED_WORDS}),
        (RAW_JA, TOKENIZED_JA, {Sign.SPACED_STOPS, Sign.SPACED_WORDS}),
        (TOKENIZED_JA, TOKENIZED_JA, set()),
        ("er geht heute , sagt er .", "Er geht heute, sagt er.", {Sign.SPACED_STOPS, Sign.SMALL}),
        ("Er geht heute, sagt er.", "er geht heute, sagt er.", {Sign.SMALL}),
        ("Er geht heute, sagt er.", "Он идёт сегодня, говорит он.", {"Cyrillic"}),
        ("Он идёт сегодня, говорит он.", "On ide danas, kaže on.", {"Latin"}),
        ("Er geht heute, sagt er.", "ER GEHT HEUTE, SAGT ER.", set()),
        ("ein hoch@@ begab@@ ter Mann", "Ein hochbegabter Mann geht.", {Sign.SUBWORDS}),
        ("it &apos;s a well @-@ known man", "It is a well-known man.", {Sign.JOINERS, Sign.ESCAPES, Sign.SMALL}),
    ],
)
def test_differences(training: str, text: str, keys: set[str]) -> None:
    assert set(differences(counts(text), counts(training))) == keys


def test_differences_are_described() -> None:
    found = differences(counts(RAW_JA), counts(TOKENIZED_JA))
    assert describe_differences(found, "the input") == (
        "the training text has spaces before commas and full stops and spaces between words, the input does not"
    )
    found = differences(counts("Он идёт сегодня, говорит он."), counts("er geht heute, sagt er."))
    expected = "most letters of the input are Cyrillic, those of the training text are not"
    assert describe_differences(found, "the input") == expected
    found = differences(counts("Er geht heute , sagt er ."), counts("er geht heute, sagt er."))
    assert describe_differences(found, "the input") == (
        "the training text has only small letters, the input does not, and the input has spaces before commas and full "
        "stops, the training text does not"
    )


def test_differences_of_case_are_ignored_for_a_model_that_accepts_any_case() -> None:
    text = counts("er geht heute, sagt er.")
    assert differences(text, counts("Er geht heute, sagt er."), ignores_case=True) == {}


@pytest.mark.parametrize("text", ["wie geht es dir", "彼は行った。", "Он"])
def test_one_short_line_does_not_differ(text: str) -> None:
    assert differences(StyleCounts.of_lines([text]), counts("Er geht heute , sagt er .", TOKENIZED_JA)) == {}


def test_signs_of_tokenization_and_case_are_distinct() -> None:
    assert set(TOKENIZED).isdisjoint(CASE)
