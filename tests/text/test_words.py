"""Terms are found as whole words, in any script."""

import pytest

from mtformer.text.words import whole_words

FOUND = [
    # Latin letters and digits beside scripts without spaces
    ("先生はPythonを使う。", "Python"),
    ("Pythonは先生が使う。", "Python"),
    ("「Python」と言う", "Python"),
    ("人々Python社", "Python"),
    ("サーバーLinuxサーバー", "Linux"),
    ("我们用Python写", "Python"),
    ("我们用Python３写", "Python３"),
    ("第3章", "3"),
    ("3ヶ月", "3"),
    ("3キロ", "3"),
    ("ㄅPython", "Python"),
    ("ใช้Pythonที่นี่", "Python"),
    ("ที่PCบ้าน", "PC"),
    ("ໃຊ້Pythonຢູ່", "Python"),
    ("ខ្ញុំប្រើPythonនៅ", "Python"),
    ("ကျွန်တော်Pythonသုံး", "Python"),
    ("ངས་Pythonབེད་སྤྱོད", "Python"),
    ("Ａ社", "Ａ"),
    # scripts without spaces
    ("コーヒーカップ", "コーヒー"),
    ("子猫が走る", "猫"),
    ("葛\U000e0100城", "葛"),
    ("ฉันเห็นสุนัขวิ่ง", "สุนัข"),
    ("ຂ້ອຍເຫັນໝາ", "ໝາ"),
    ("ខ្ញុំឃើញឆ្កែ", "ឆ្កែ"),
    ("ခွေးကိုမြင်", "ခွေး"),
    ("ཁྱི་ཉ་མཐོང།", "ཁྱི"),
    ("ཁྱི་ཉ་མཐོང།", "ཉ"),
    ("ꆈꌠꉙꆀ", "ꌠꉙ"),
    ("ꦲꦏꦱꦫꦗꦮ", "ꦱꦫ"),
    ("ᬅᬓᬱᬭᬩᬮᬶ", "ᬱᬭ"),
    ("ᦑᦺᦟᦹᧉ", "ᦟᦹᧉ"),
    ("𗼇𗟲𗼻", "𗟲"),
    ("ꆈꌠPythonꉙ", "Python"),
    ("ꦲPythonꦏ", "Python"),
    # scripts with spaces
    ("Der Straße.", "Straße"),
    ("foo-bar", "bar"),
    ("«eau»", "eau"),
    ("новый дом", "дом"),
    ("σπίτι μου", "σπίτι"),
    ("यह कम है।", "कम"),
    ("এই ভালো।", "ভালো"),
    ("৩ দিন", "৩"),
    ("كتاب جديد", "كتاب"),
    ("שלום, עולם", "שלום"),
    ("ውሻ።", "ውሻ"),
    ("서울 시", "서울"),
    ("մեծ տուն։", "տուն"),
    ("დიდი სახლი", "სახლი"),
    # Latin letters with a prefix or suffix in another script
    ("서울에서 Python을 쓴다", "Python"),
    ("GPT4를 쓴다", "GPT4"),
    ("በPython፡ይሰራል", "Python"),
    ("ಅವನು Pythonನಲ್ಲಿ", "Python"),
    ("नेपालमा Pythonको", "Python"),
    ("ב-Python", "Python"),
    ("בPython", "Python"),
    ("بPython", "Python"),
    ("Python-ով Linuxում", "Linux"),
    ("на Pythonе", "Python"),
    ("Pythonში", "Python"),
    ("ইউPythonএর", "Python"),
    # apostrophes
    ("de l'eau.", "eau"),
    ("l’homme", "homme"),
    ("dell'amico", "amico"),
    ("Yahoo's profit", "Yahoo"),
    ("İstanbul'a", "İstanbul"),
    ("απ'τον", "τον"),
    ("I don't", "don't"),
    ("rock'n'roll", "roll"),
    # punctuation at the edge
    ("in C++.", "C++"),
    ("C++を使う", "C++"),
    ("a .NET program", ".NET"),
    ("用.NET开发", ".NET"),
    ("my #1 song", "#1"),
    ("it costs $5.", "$5"),
    ("A&B Inc.", "A&B"),
    ("an e-mail", "e-mail"),
    ("100%", "100%"),
    ("-3 degrees", "3"),
    ("(C)", "(C)"),
]
ABSENT = [
    ("3.5", "3"),
    ("3,5", "5"),
    ("1,300", "1"),
    ("３．５", "３"),
    ("३.५", "३"),
    ("13", "3"),
    ("3D", "3"),
    ("先生はCPythonを使う", "Python"),
    ("Python3を使う", "Python"),
    ("JavaScriptを", "Java"),
    ("newyork", "york"),
    ("домой", "дом"),
    ("यह कमी है", "कम"),
    ("ভালো", "ভাল"),
    ("הלב", "לב"),
    ("לֵב", "ל"),
    ("الكتاب", "كتاب"),
    ("كتابٌ", "كتاب"),
    ("cafe\u0301", "cafe"),
    ("서울에서", "서울"),
    ("የውሻ", "ውሻ"),
    ("ปูดำ", "ป"),
    ("ꦏꦶꦱ", "ꦏ"),
    ("ꦏ꧀ꦱ", "ꦏ"),
    ("ᬓᬶᬱ", "ᬓ"),
    ("ཁང་པ", "ཁ"),
    ("don't", "don"),
    ("can’t", "can"),
    ("isn't", "t"),
    ("м'ясо", "ясо"),
    ("C++11", "C++"),
    ("XC++", "C++"),
    ("ASP.NET", ".NET"),
    ("#12", "#1"),
    ("#1.5", "#1"),
    ("$5.50", "$5"),
    ("$50", "$5"),
    ("A&BC", "A&B"),
    ("e-mails", "e-mail"),
    ("5 μm", "m"),
    ("5 µm", "m"),
    ("ΔT", "T"),
    ("CPython을", "Python"),
    ("Python3을", "Python"),
    ("Pythons를", "Python"),
    ("1100%", "100%"),
    ("a_b", "a"),
]


@pytest.mark.parametrize(("text", "term"), FOUND)
def test_a_term_is_found(text: str, term: str) -> None:
    match = whole_words(term).search(text)
    assert match is not None
    assert match[0] == term


@pytest.mark.parametrize(("text", "term"), ABSENT)
def test_a_part_of_a_word_is_no_term(text: str, term: str) -> None:
    assert term in text
    assert whole_words(term).search(text) is None


@pytest.mark.parametrize("term", sorted({term for _, term in [*FOUND, *ABSENT]}))
@pytest.mark.parametrize("form", ["{}", "({})", "{}.", "a {} b", "日{}日", "ก {} ก", "“{}”", "{}。"])
def test_terms_are_found_alone_and_between_spaces_and_punctuation(term: str, form: str) -> None:
    text = form.format(term)
    assert whole_words(term).search(text) is not None


@pytest.mark.parametrize(("text", "term"), [("USING PYTHONを", "python"), ("İSTANBUL", "istanbul"), ("Irmak", "ırmak")])
def test_case_can_be_ignored(text: str, term: str) -> None:
    assert whole_words(term, ignore_case=True).search(text) is not None
    assert whole_words(term).search(text) is None
