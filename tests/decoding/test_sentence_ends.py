"""Tests of sentence ends in many languages: where a line is split, where it is not, and how its parts are joined."""

import random
import unicodedata

import pytest
import regex

from mtformer.decoding.lines.postprocessing import _has_fewer_sentences
from mtformer.decoding.lines.sentences import COMMAS, join_lines, split_line, split_sentences

LANGUAGES = [
    # language, a line of two sentences, a line that must stay whole
    ("Amharic", ["ሰላም ነው። ", "እዚህ ነኝ።"], "ሰላም፣ እዚህ ነኝ።"),
    ("Amharic without a space", ["ሰላም ነው።", "እዚህ ነኝ።"], "አንድ፡ሁለት፡ሦስት።"),
    ("Amharic, two wordspaces", ["ሰላም፡ነው፡፡ ", "እዚህ፡ነኝ፡፡"], "ሰላም፡ ነው።"),
    ("Amharic, colons", ["ሰላም ነው:: ", "እዚህ ነኝ::"], "ሰዓቱ 12:30 ነው::"),
    ("Arabic", ["هل هذا صحيح؟ ", "نعم."], "نعم، هذا صحيح؛ شكرا."),
    ("Arabic without a space", ["هل هذا صحيح؟", "نعم."], "قال: نعم."),
    ("Armenian without a space", ["Բարև ձեզ։", "Ես Արամն եմ։"], "Ժամը 12։30 է։"),
    ("Armenian", ["Բարև ձեզ։ ", "Ես Արամն եմ։"], "Ո՞վ ես դու, Արա՛մ։"),
    ("Armenian, a colon", ["Բարև ձեզ: ", "Ես Արամն եմ:"], "Ժամը 12:30 է:"),
    ("Assamese", ["মই যাওঁ। ", "সি আহিব।"], "ড° বৰুৱা আহিব।"),
    ("Balinese", ["ᬩᬮᬶ᭟ ", "ᬅᬓ᭄ᬱᬭ᭟"], "ᬩᬮᬶ᭞ ᬅᬓ᭄ᬱᬭ᭟"),
    ("Bengali", ["আমি যাই। ", "সে আসে।"], "ড. রহমান ও মো. আলী এলেন।"),
    ("Bengali without a space", ["আমি যাই।", "সে আসে।"], "দাম ৩.৫ টাকা।"),
    ("Bulgarian", ["Той дойде. ", "Тя отиде."], "Той дойде... и отиде."),
    ("Burmese", ["သူလာသည်။ ", "ငါသွားမည်။"], "သူ၊ ငါနှင့် သူမ၊ လာသည်။"),
    ("Burmese without a space", ["သူလာသည်။", "၂၀၂၀ တွင်သွားမည်။"], "သူလာ၊သွားသည်။"),
    ("Cantonese", ["我嚟咗。", "你呢?"], "佢話：「好！我嚟。」"),
    ("Cherokee", ["ᏙᎯᏧ. ", "ᎣᏏᏉ."], "ᏙᎯᏧ, ᎣᏏᏉ."),
    ("Chinese", ["我来了！", "iPhone很好。"], "他看了《你好！李焕英》吗？"),
    ("Dzongkha", ["ང་འགྱོ་ནི་ཨིན། ", "ཁྱོད་ག་ར་ཨིན།"], "ང་འགྱོ་ནི་ཨིན།"),
    ("French", ["« Tu viens ? » ", "Il sourit."], "« Tu viens ? » demanda-t-il."),
    ("Georgian", ["ის მოვიდა. ", "NATO-ს წევრია."], "ბ. კაპანაძე მოვიდა."),
    ("Georgian beside capitals", ["NATO აქ არის. ", "ის მოვიდა."], "NATO, ის მოვიდა."),
    ("German", ["Er ging (Warum?). ", "Sie blieb."], "Dr. Müller kam am 3. Mai, z. B. um 5 Uhr."),
    ("Greek", ["Πού είσαι; ", "Είμαι εδώ."], "Είμαι εδώ· πού είσαι;"),
    ("Hebrew", ["הוא בא. ", "היא הלכה."], "צה״ל הגיע ב־3.5 שעות."),
    ("Hindi", ["वह आया। ", "क्या वह गई?"], "डॉ. शर्मा ३.५ बजे आए।"),
    ("Japanese", ["来ました。", "本当ですか？"], "「はい！行きます。」と言った。"),
    ("Javanese", ["ꦲꦏ꧀ꦱꦫ꧉ ", "ꦗꦮ꧉"], "ꦲꦏ꧀ꦱꦫ꧈ ꦗꦮ꧉"),
    ("Javanese without a space", ["ꦲꦏ꧀ꦱꦫ꧉", "ꦗꦮ꧉"], "ꦲꦏ꧀ꦱꦫ꧈ꦗꦮ꧉"),
    ("Khmer", ["ខ្ញុំទៅ។ ", "គាត់មក។"], "ប៉ោម ក្រូច ។ល។ នៅទីនេះ។"),
    ("Khmer with spaces", ["ខ្ញុំទៅ ។ ", "គាត់មក ។"], "ប៉ោម ក្រូច ។ ល ។"),
    ("Khmer without a space", ["ខ្ញុំទៅ។", "គាត់មក៕"], "ខ្ញុំទៅ៖ គាត់មក។"),
    ("Korean", ["그는 왔다. ", "너는 가니?"], "가격은 3.5달러다."),
    ("Lao", ["ເຈົ້າໄປໃສ? ", "ຂ້ອຍຢູ່ນີ້"], "ຂ້ອຍໄປ ຕະຫຼາດ ແລະ ກັບມາ"),
    ("Maithili", ["हम जाइ छी। ", "ओ आयल।"], "॥ १२ ॥ हम जाइ छी।"),
    ("Manipuri", ["ꯑꯩ ꯆꯠꯂꯤ꯫ ", "ꯃꯍꯥꯛ ꯂꯥꯛꯂꯤ꯫"], "ꯑꯩ꫰ ꯃꯍꯥꯛ ꯂꯥꯛꯂꯤ꯫"),
    ("Marathi", ["तो आला. ", "ती गेली."], "प्रा. डॉ. शिंदे आले."),
    ("Mongolian", ["ᠪᠢ ᠢᠷᠡᠪᠡ᠃ ", "ᠴᠢ ᠶᠠᠪᠤᠪᠠ᠃"], "ᠪᠢ ᠢᠷᠡᠪᠡ᠂ ᠴᠢ ᠶᠠᠪᠤᠪᠠ᠃"),
    ("N'Ko", ["ߌ ߣߌ ߗߍ߹ ", "ߒ ߓߘߊ߫ ߣߊ߬."], "ߌ ߣߌ ߗߍ߸ ߒ ߓߘߊ߫ ߣߊ߬."),
    ("Odia", ["ମୁଁ ଯାଏ। ", "ସେ ଆସେ।"], "ଡ. ଦାସ ଆସିଲେ।"),
    ("Persian", ["او آمد. ", "کجا رفت؟"], "او آمد، رفت؛ و ماند."),
    ("Punjabi", ["ਉਹ ਆਇਆ। ", "ਉਹ ਗਈ।"], "ਡਾ. ਸਿੰਘ ਆਏ।"),
    ("Russian", ["Он пришёл. ", "Она ушла!"], "А. С. Пушкин родился в 1799 г. в Москве."),
    ("Sanskrit", ["स गच्छति ॥१॥ ", "सा तिष्ठति ॥२॥"], "स गच्छति ॥ १ ॥"),
    ("Santali", ["ᱤᱧ ᱪᱟᱞᱟᱜ ᱠᱟᱱᱟ᱾ ", "ᱩᱱᱤ ᱦᱤᱡᱩᱜ ᱠᱟᱱᱟᱭ᱾"], "ᱤᱧ, ᱩᱱᱤ ᱦᱤᱡᱩᱜ ᱠᱟᱱᱟᱭ᱾"),
    ("Shan", ["မၼ်းမႃး။ ", "ၵဝ်ၵႂႃႇ။"], "မၼ်း၊ ၵဝ်ၵႂႃႇ။"),
    ("Sinhala", ["මම යමි. ", "ඔහු එයි෴"], "එය රු. 3.50 කි."),
    ("Spanish", ["¿Vienes? ", "¡Claro!"], "El Sr. Pérez y la Sra. Ruiz vienen."),
    ("Syriac", ["ܫܠܡܐ܂ ", "ܐܢܐ ܗܪܟܐ܂"], "ܫܠܡܐ، ܐܢܐ ܗܪܟܐ܂"),
    ("Tamil", ["அவன் வந்தான். ", "அவள் போனாள்."], "கே. ஆர். நாராயணன் வந்தார்."),
    ("Thai", ["ไปไหนมา? ", "อยู่บ้าน!"], "เขาเกิดปี พ.ศ. 2500 ที่ กทม. และ เชียงใหม่"),
    ("Tibetan", ["ཁྱི་ཉ་མཐོང། ", "ཞི་མི་ཤ་ཟ།"], "༄༅། །ཁྱི་ཉ་མཐོང།"),
    ("Tibetan, two shads", ["ཁྱི་ཉ་མཐོང། །", "ཞི་མི་ཤ་ཟ༎"], "ཁྱི་ཉ་མཐོང། །"),
    ("Tibetan without a space", ["ཁྱི་ཉ་མཐོང།", "ཞི་མི་ཤ་ཟ།"], "ཁྱི་ ཉ་མཐོང།"),
    ("Tibetan, a question mark", ["ཁྱོད་ག་པར་འགྲོ?", "ང་འདིར་ཡོད!"], "ཁྱི(ཉ་མཐོང? ཞི་མི)།"),
    ("Thai without a space", ["ไปไหนมา?", "อยู่บ้าน!"], "ราคา 3.50 บาท"),
    ("Tibetan after ga", ["ཁོང་འདུག ", "ང་ཡོད།"], "ཁོང་འདུག"),
    ("Turkish", ["O geldi. ", "Şimdi gitti!"], "Saat 3.30'da geldi, vb. şeyler."),
    ("Urdu", ["وہ آیا۔ ", "کیا وہ گئی؟"], "پی۔ایچ۔ڈی مکمل ہوئی۔"),
    ("Uyghur", ["ئۇ كەلدى. ", "سەن باردىڭمۇ؟"], "ئۇ كەلدى، سەن باردىڭ؛"),
    ("Vai", ["ꕉꔤ꘎ ", "ꕢꕊ꘏"], "ꕉꔤ꘍ ꕢꕊ꘎"),
    ("Vietnamese", ["Anh ấy đến. ", "Chị ấy đi rồi."], "Ông N. V. An có 3.500.000 đồng."),
    ("Yi", ["ꆈꌠꉙ。", "ꌠꅇ。"], "ꆈꌠ、ꉙꌠ。"),
]


@pytest.mark.parametrize(("language", "parts", "whole"), LANGUAGES)
def test_lines_are_split_at_the_ends_of_sentences_only(language: str, parts: list[str], whole: str) -> None:
    assert split_sentences("".join(parts)) == parts, language
    assert split_sentences(whole) == [whole], language


def test_all_marks_of_unicode_end_sentences() -> None:
    marks = [chr(point) for point in range(0x20000) if regex.match(r"\p{Sentence_Terminal}", chr(point))]
    assert len(marks) > 140
    for mark in marks:
        parts = [f"Aaa{mark} ", f"Bbb{mark}"]
        is_split = split_sentences("".join(parts)) == parts
        assert is_split == (mark not in COMMAS), unicodedata.name(mark, hex(ord(mark)))


@pytest.mark.parametrize(
    ("parts", "joined"),
    [
        (["ཁྱི་ཉ་མཐོང།", "ཞི་མི་ཤ་ཟ།"], "ཁྱི་ཉ་མཐོང། ཞི་མི་ཤ་ཟ།"),
        (["ཁྱི་ཉ་", "མཐོང།"], "ཁྱི་ཉ་མཐོང།"),
        (["เขามา", "เธอไป"], "เขามา เธอไป"),
        (["ຂ້ອຍໄປ", "ເຈົ້າມາ"], "ຂ້ອຍໄປ ເຈົ້າມາ"),
        (["ខ្ញុំទៅ។", "គាត់មក។"], "ខ្ញុំទៅ។ គាត់មក។"),
        (["သူလာသည်။", "ငါသွားမည်။"], "သူလာသည်။ ငါသွားမည်။"),
        (["वह आया।", "वह गई।"], "वह आया। वह गई।"),
        (["ሰላም።", "እዚህ ነኝ።"], "ሰላም። እዚህ ነኝ።"),
        (["ꆈꌠꉙ。", "ꌠꅇ。"], "ꆈꌠꉙ。ꌠꅇ。"),
        (["ㄅㄆ", "ㄇ"], "ㄅㄆㄇ"),
        (["来ました。", "本当？"], "来ました。本当？"),
        (["”", "a"], "” a"),
        (["他说：“好。”", "“是。”"], "他说：“好。”“是。”"),
        (["他说：«好»", "是"], "他说：«好»是"),
        (["「はい。」", "『いいえ。』"], "「はい。」『いいえ。』"),
        (["나는 《책》", "그리고"], "나는 《책》 그리고"),
        (["그는 갔다。", "왔다。"], "그는 갔다。 왔다。"),
        (["ｶﾅ｡", "ﾊﾝｶｸ"], "ｶﾅ｡ﾊﾝｶｸ"),
        (["ﾡﾢ.", "ﾡ"], "ﾡﾢ. ﾡ"),
        (["𗼇𗟲", "𗼻"], "𗼇𗟲𗼻"),
        (["⼈⼝", "⽇"], "⼈⼝⽇"),
        (["ሰላም፡፡", "እዚህ ነኝ፡ ፡"], "ሰላም፡፡ እዚህ ነኝ፡ ፡"),
        (["ሰላም፡", "ዓለም"], "ሰላም፡ዓለም"),
        (["😀", "ok"], "😀 ok"),
    ],
)
def test_parts_are_joined_as_the_script_separates_sentences(parts: list[str], joined: str) -> None:
    assert join_lines(parts) == joined


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("သူ၊ငါ၊သူမလာသည်။", ["သူ၊", "ငါ၊", "သူမလာသည်။"]),
        ("ሰላም፣ እዚህ፡ነኝ።", ["ሰላም፣ ", "እዚህ፡", "ነኝ።"]),
        ("ཁྱི་ཉ་མཐོང", ["ཁྱི་", "ཉ་", "མཐོང"]),
        ("ᠪᠢ ᠢᠷᠡᠪᠡ᠂ ᠴᠢ", ["ᠪᠢ ", "ᠢᠷᠡᠪᠡ᠂ ", "ᠴᠢ"]),
    ],
)
def test_long_sentences_are_split_at_the_marks_of_their_script(line: str, parts: list[str]) -> None:
    def num_letters(texts: list[str]) -> list[int]:
        return [sum(map(str.isalpha, text)) for text in texts]

    limit = max(num_letters(parts))
    assert split_line(line, num_letters, 1, limit) == parts  # type: ignore[arg-type]


def test_the_concatenation_of_the_parts_is_the_line_in_all_scripts() -> None:
    rng = random.Random(1)
    lines = ["".join(parts) for _, parts, _ in LANGUAGES] + [whole for _, _, whole in LANGUAGES]
    alphabet = sorted(set("".join(lines))) + [" ", "\u3000", "(", ")", "「", "」", "“", "”", "༽", ". ", "॥"] * 5
    for _ in range(500):
        line = "".join(rng.choices(alphabet, k=rng.randint(0, 80)))
        assert "".join(split_sentences(line)) == line
        parts = split_line(line, lambda texts: [len(text) for text in texts], 5, 9)
        assert "".join(parts) == line
        assert all(len(part) <= 9 for part in parts)


@pytest.mark.parametrize("text", ["ཁྱི་ཉ་མཐོང།", "The dog sees the fish.", "狗看见鱼。"])
def test_a_lost_tibetan_sentence_is_flagged(text: str) -> None:
    has_fewer = _has_fewer_sentences("ཁྱི་ཉ་མཐོང། ཞི་མི་ཤ་ཟ།", text)
    assert has_fewer


@pytest.mark.parametrize("text", ["เขามา เธอไป", "ລາວມາ ນາງໄປ"])
def test_languages_without_marks_of_sentences_are_not_flagged(text: str) -> None:
    has_fewer = _has_fewer_sentences("He came. She went.", text)
    assert not has_fewer


@pytest.mark.parametrize("kind", ["(a. B. ", "... ", "། ", "A。「", "ག ", 'x." ', ":( No. "])
def test_long_lines_take_linear_time(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the characters that are read again for each possible end."""
    from mtformer.decoding.lines import sentences

    def num_characters(line: str) -> int:
        read = 0
        is_continued = sentences._is_continued

        def counted(before: str, after: str, has_capitals: bool) -> bool:
            nonlocal read
            read += len(before)
            return is_continued(before, after, has_capitals)

        with monkeypatch.context() as context:
            context.setattr(sentences, "_is_continued", counted)
            assert "".join(split_sentences(line)) == line
        return read

    assert num_characters(kind * 2000) <= 2.2 * num_characters(kind * 1000) + 100
