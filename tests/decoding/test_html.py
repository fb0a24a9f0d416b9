"""Tests of HTML: every tag is kept, with its attributes and its parent, and stands where its words are aligned."""

import gc
import html
import random
import re
import time
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import random_lines

from mtformer.decoding.lines.glossary import Glossary
from mtformer.decoding.lines.translation import Attention, Flag, Translation
from mtformer.decoding.translator import Translator
from mtformer.documents.document import WORD, Mark, MarkedText, words_in
from mtformer.documents.html import Fragment, collector_paused, translate_html
from mtformer.documents.html_reader import MAX_NESTED
from mtformer.documents.inline import place_marks
from mtformer.run_dir import RunDir

VOID = ("br", "img", "wbr")
INLINE = ("b", "i", "a", "span", "x-tag", *VOID)
TAGS = (*INLINE, "p", "div", "li", "td")


class Structure(HTMLParser):
    """Independent reading of HTML: name, attributes and parent of each tag, and the text; it must be well-formed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, str, str]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((f"{tag} {attrs}", self.open[-1] if self.open else "", tag))
        if tag not in VOID:
            self.open.append(f"{tag} {attrs}")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().split()[0] == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        self.tags.append((data, "", "comment"))


def rendered(nodes: list[object], numbers: "list[int]") -> str:
    """Return the HTML of nested lists, whose first item is a tag name; each tag gets a number as an attribute."""
    parts = []
    for node in nodes:
        if isinstance(node, str):
            parts.append(node)
            continue
        assert isinstance(node, tuple)
        name, title, children = node
        numbers.append(len(numbers))
        start = f'<{name} id="{numbers[-1]}" title="{html.escape(title)}">'
        parts.append(start if name in VOID else f"{start}{rendered(children, numbers)}</{name}>")
    return "".join(parts)


WORDS = ["a", "dog", "cat's", "e-mail", "x.", ",", "42", "&amp;", "&lt;b&gt;", "猫犬", "ü", "\n"]


def random_nodes(rng: random.Random, depth: int = 3, parent: str = "") -> list[object]:
    """Return nodes for `rendered`: texts, comments and tags, most of them inline, and no paragraph in a paragraph."""
    nodes: list[object] = []
    for _ in range(rng.randint(1, 5)):
        if depth == 0 or rng.random() < 0.5:
            text = " ".join(rng.choices(WORDS, k=rng.randint(0, 5)))
            nodes.append(rng.choice([text, f"{text} ", f" {text}", "<!-- <b> -->"]))
        else:
            name = rng.choice(TAGS if rng.random() < 0.2 else INLINE)
            name = "div" if name == parent == "p" else name
            nodes.append((name, rng.choice(["", "a \"<&'"]), random_nodes(rng, depth - 1, name)))
    return nodes


def letters(text: str) -> Counter[str]:
    """Return the number of each character that is not a space; the case of texts without letters does not matter."""
    return Counter("".join(text.split()))


def translation(text: str, source: str, weight: Callable[[int, int], float]) -> Translation:
    """Return a translation whose pieces are words; `weight` returns the attention of a target to a source word."""
    src, tgt = ([f"▁{word}" for word in one.split()] for one in (source, text))
    weights = [[weight(i, j) for j in range(len(src))] for i in range(len(tgt))]
    return Translation(text, 0.0, [], attention=Attention(src, tgt, weights, [0] * len(tgt)))


def joined(source: str, *texts: str) -> str:
    """Return the HTML with these texts; each word is followed by the number of its source word, as in `Mann1`."""
    fragment, translations = Fragment(source), []
    for line, text in zip(fragment.lines, texts, strict=True):
        numbers = [int(re.sub(r"\D", "", word)) for word in text.split()]
        words = re.sub(r"\d", "", text)
        translations.append(translation(words, line, lambda i, j, numbers=numbers: 0.9 if numbers[i] == j else 0.01))
    return fragment.join(translations)


def test_bytes_of_characters_count_as_one_character() -> None:
    emoji = [f"<0x{byte:02X}>" for byte in "😀".encode()]
    src = ["▁A", "▁dog", "▁", *emoji, "▁runs"]
    tgt = ["▁Im", "▁Park", "▁läuft", "▁ein", "▁Hund", "▁", *emoji]
    source_of = [0, 0, 7, 0, 1, 2, 3, 4, 5, 6]
    weights = [[float(j == number) for j in range(len(src))] for number in source_of]
    found = Translation("Im Park läuft ein Hund 😀", 0.0, [], attention=Attention(src, tgt, weights, [0] * len(tgt)))
    assert Fragment("A <b>dog</b> 😀 runs").join([found]) == "Im Park läuft ein <b>Hund</b> 😀"


@given(st.integers(0, 2**32), st.booleans())
@settings(max_examples=1500, deadline=None)
def test_tags_and_words_are_neither_lost_nor_invented(seed: int, changes: bool) -> None:
    """The words of each text are shuffled, and sometimes removed or added."""
    rng = random.Random(seed)
    source = rendered(random_nodes(rng), [])
    fragment, translations = Fragment(source), []
    assert not fragment.is_repaired
    for line in fragment.lines:
        words = line.swapcase().split()
        rng.shuffle(words)
        words = rng.choices(["neu", "Wort.", *words], k=rng.randint(0, 6)) if changes else words
        translations.append(translation(" ".join(words), line, lambda *_: rng.random()))
    found, expected = Structure(fragment.join(translations)), Structure(source)
    assert sorted(found.tags) == sorted(expected.tags)  # comments too
    if not changes:
        assert letters(found.text) == letters(expected.text.swapcase())


@pytest.mark.parametrize(
    ("source", "texts", "expected"),
    [
        ("A <b>man</b> sleeps.", ["Ein0 Mann1 schläft.2"], "Ein <b>Mann</b> schläft."),
        ("A <b>man</b>, red.", ["Rot,2 ein0 Mann.1"], "Rot, ein <b>Mann</b>."),
        ("<b>A man.</b>", ["Ein0 Mann.1"], "<b>Ein Mann.</b>"),
        ("a <b>dog</b>?", ["هو0 كلب؟1"], "هو <b>كلب</b>؟"),
        ("<b>yes</b>.", ["है।0"], "<b>है</b>।"),
        ("<p>a <i><b>x</b> y</i></p>", ["Y2 X1 A0"], "<p><i>Y <b>X</b></i> A</p>"),
        ("<b>a</b><i>b</i> <u>c</u>", ["B0 C1"], "<b>B</b> <i></i> <u>C</u>"),
        ("he <b>took off</b> his hat", ["er0 nahm1 den3 Hut4 ab2"], "er <b>nahm</b> den Hut ab"),
        ("one<br>two <img src=a alt=''> three <wbr>", ["eins0 zwei1 drei2"],
         'eins <br>zwei <img src="a" alt=""> drei <wbr>'),
        (" <i class='icon x'></i> a <!-- <b> -->b ", ["A0 B1"], ' <i class="icon x"></i> A <!-- <b> -->B '),
        ("press <kbd translate=no>Ctrl-C &amp; x</kbd> now", ["jetzt4 Strg1 und2 X3 drücken0"],
         'jetzt <kbd translate="no">Ctrl-C &amp; x</kbd> drücken'),
        ("<p class='a notranslate'>no</p><p>a</p>42 &lt;<pre>x  y</pre><script>if (a<b) x()</script>", ["A0"],
         '<p class="a notranslate">no</p><p>A</p>42 &lt;<pre>x  y</pre><script>if (a<b) x()</script>'),
        ("<a title='&#10;\"&lt;' z=1 b=2>a&nbsp;&amp;b</a>", ["<A>0 B1"],
         "<a title='&#10;\"&lt;' z=\"1\" b=\"2\">&lt;A&gt; B</a>"),
        ("a <b>猫犬</b> c", ["A0 C2 B1"], "A C <b>B</b>"),
        ("a <i></i> b", ["A0, B1"], "A<i></i>, B"),
        ("a <!-- c --> b", ["A0! B1"], "A<!-- c -->! B"),
        ("a <i></i> b", ["ነው0። ለ1"], "ነው<i></i>። ለ"), ("a <i></i> b", ["है0। क1"], "है<i></i>। क"),
        ("a <i></i> b", ["ہے0؟ ک1"], "ہے<i></i>؟ ک"), ("a <i></i> b", ["ᱟ0᱾ ᱚ1"], "ᱟ<i></i>᱾ ᱚ"),
        ("<p>a\r\n<p>b</p>\r\n\r\n  <hr>\t<p>c", ["A0", "B0", "C0"],
         "<p>A\r\n</p><p>B</p>\r\n\r\n  <hr>\t<p>C</p>"),
        ("<!DOCTYPE html>\n<html><title>a</title><body><p>b\n c</body></html>", ["A0", "B0 C1"],
         "<!DOCTYPE html>\n<html><title>A</title><body><p>B C</p></body></html>"),
        ('<?xml version="1.0"?><p>a<br/>b</p>', ["A0 B1"], '<?xml version="1.0"?><p>A <br/>B</p>'),
        ("<?xml version='1.0' encoding='latin-1'?><p>a</p>", ["A0"], "<?xml version='1.0' encoding='utf-8'?><p>A</p>"),
        ("<p>a</p><![if !vml]><p>b</p><![endif]>", ["A0", "B0"], "<p>A</p><![if !vml]><p>B</p><![endif]>"),
        ("<b>a</b><script>if (a<b) x()", ["A0"], "<b>A</b><script>if (a<b) x()</script>"),
        ("a &#" + "9" * 5000 + ";", ["A0 \ufffd1"], "A \ufffd"),
        ("<!doctype html><p>b</p>", ["B0"], "<!DOCTYPE html><p>B</p>"),
        ("", [], ""), ("<br>", [], "<br>"), ("http://a.b", ["X0"], "X"),
        ("<a href='x?a=1&currency=2&copy=3&amp;b&lt;'>a</a>", ["A0"],
         '<a href="x?a=1&amp;currency=2&amp;copy=3&amp;b&lt;">A</a>'),
        ("<script>a&copy=b</script><!-- &copy=b -->&copy; 1&copy=2", ["A0 B1"],
         "<script>a&copy=b</script><!-- &copy=b -->A B"),
        ("a&b", ["A&B0"], "A&amp;B"), ("R&D", ["R&D0"], "R&amp;D"), ("a &unknown; b", ["A0 &X;1 B2"], "A &amp;X; B"),
        ("<p>a<!-->b<!--->c</p>", ["Abc0"], "<p>Abc<!--><!---></p>"),
        ("<p>a</ x>b</p>", ["Ab0"], "<p>Ab</ x></p>"),
        ("<meta http-equiv=Content-Type content='text/html; charset=cp1252'><p>a", ["A0"],
         '<meta http-equiv="Content-Type" content="text/html; charset=utf-8"><p>A</p>'),
        ("<b a=1 A=2 c>a</b>", ["A0"], '<b a="1" c="">A</b>'),
        ("<b/>a", ["A0"], "<b></b>A"),
        ("<style>a{b:'</p>'}</style ><p>c", ["C0"], "<style>a{b:'</p>'}</style><p>C</p>"),
        ("<ruby>漢<rt>kan</rt></ruby> b", ["漢0 B1"], "<ruby>漢<rt>kan</rt></ruby> B"),
    ],
)  # fmt: skip
def test_tags_stand_around_aligned_words(source: str, texts: list[str], expected: str) -> None:
    assert joined(source, *texts) == expected


@pytest.mark.parametrize(
    ("source", "target", "pieces", "expected"),
    [
        ("the <b>dog</b>", "ฉันรักหมา", ["ฉันรัก", "หมา"], "ฉันรัก<b>หมา</b>"),
        ("the <b>dog</b>", "ขี้น้ำ", ["ขี้", "น้ำ"], "ขี้<b>น้ำ</b>"),  # a vowel sign belongs to its consonant
        ("write <b>Python</b>", "เขียนPythonนะ", ["เขียน", "Python", "นะ"], "เขียน<b>Python</b>นะ"),
        ("the <b>king</b>", "ខ្ញុំក្សត្រ", ["ខ្ញុំ", "ក្សត្រ"], "ខ្ញុំ<b>ក្សត្រ</b>"),
        ("the <b>dog</b>", "ຂ້ອຍໝາ", ["ຂ້ອຍ", "ໝາ"], "ຂ້ອຍ<b>ໝາ</b>"),
        ("use <b>Python</b>", "မြန်မာPython", ["မြန်မာ", "Python"], "မြန်မာ<b>Python</b>"),
        ("big <b>dog</b>", "བོད་ཁྱི་", ["བོད་", "ཁྱི་"], "བོད་<b>ཁྱི་</b>"),
        ("use <b>Python</b>", "先生はPythonを", ["先生は", "Python", "を"], "先生は<b>Python</b>を"),
        ("the <b>dog</b>", "मेरा कुत्ता।", ["मेरा", "▁कुत्ता।"], "मेरा <b>कुत्ता</b>।"),
        ("the <b>dog</b>", "ዘ፡ውሻ።", ["ዘ፡", "ውሻ።"], "ዘ፡<b>ውሻ</b>።"),
        ("big <b>dog</b>", "ꆈꌠꈌ。", ["ꆈꌠ", "ꈌ。"], "ꆈꌠ<b>ꈌ</b>。"),
        ("big <b>dog</b>", "ꦲꦱꦸ꧉", ["ꦲ", "ꦱꦸ꧉"], "ꦲ<b>ꦱꦸ</b>꧉"),
        ("yes <b>dog</b>", "ہاں،کتا۔", ["ہاں،", "کتا۔"], "ہاں،<b>کتا</b>۔"),
        ("yes <b>dog</b>", "हाँ।कुत्ता", ["हाँ।", "कुत्ता"], "हाँ।<b>कुत्ता</b>"),
        ("yes <b>dog</b>", "はい！「犬」", ["はい！", "「犬」"], "はい！「<b>犬</b>」"),
    ],
)
def test_tags_follow_the_borders_of_words_in_any_script(
    source: str, target: str, pieces: list[str], expected: str
) -> None:
    """The second source word has the tag; in Python's case, so does the second piece of three."""
    weights = [[0.9, 0.1] if number != 1 else [0.1, 0.9] for number in range(len(pieces))]
    attention = Attention(
        [f"▁{word}" for word in re.sub("<.*?>", "", source).split()], pieces, weights, [0] * len(pieces)
    )
    assert Fragment(source).join([Translation(target, 0.0, [], attention=attention)]) == expected


@pytest.mark.parametrize(
    ("source", "terms"),
    [
        ("my <b>data <i>base</i></b>s", []),
        ("my data <b>base</b>, new", ["Datenbank"]),
        ("my data<br>base", ["Datenbank"]),
        ("my data&nbsp;base", ["Datenbank"]),
        ("my <b>data</b>base", []),
        ("<p>my data</p><p>base</p>", []),
        ("<a title='data base'>my</a> <!-- data base --> dog", []),
        ("<script>data base</script> dog", []),
        ("先生は<b>Python</b>を使う。", ["Rust"]),
        ("先生はPyth<b>on</b>を使う。", ["Rust"]),
        ("<p>&#80;ython</p>", ["Rust"]),
        ("เขียน<i>Python</i>นะ", ["Rust"]),
        ("<b>R&amp;D</b>-Etat", ["FuE"]),
        ("R<b>&amp;</b>D", ["FuE"]),
        ("&lt;2en&gt; R&amp;Dx", []),
    ],
)
def test_glossary_terms_are_found_as_in_lines(source: str, terms: list[str]) -> None:
    """Terms may cross inline tags, but not blocks; attributes, comments and scripts have none."""
    glossary = Glossary.from_mapping({"data base": "Datenbank", "Python": "Rust", "R&D": "FuE"})
    found = [glossary.required_terms(line) for line in Fragment(source).lines]
    assert [term for terms_of_line in found for term in terms_of_line] == terms


@pytest.mark.parametrize(
    ("source", "text", "expected"),
    [
        ("a <b>man</b> sleeps", "Ein0 Mann1 schläft2", ""),
        ("<b>a</b><i>b</i> <u>c</u>", "B0 C1", "<i></i>"),
        ("a <b>very</b> red <i>dog</i>", "Hund3", "<b></b> <i>Hund</i>"),
        ("a <kbd translate=no>Ctrl</kbd> key", "Taste2", '<kbd translate="no">Ctrl</kbd>'),
        ("a <kbd translate=no>Ctrl</kbd> key", "Ctrl1 Taste2", ""),
        ("a <br> <i></i> <!-- x --> b", "B1", ""),
    ],
)
def test_lost_tags_are_reported(source: str, text: str, expected: str) -> None:
    """A tag whose words have no counterpart; tags without words cannot be lost."""
    fragment = Fragment(source)
    [line] = fragment.lines
    numbers = [int(re.sub(r"\D", "", word)) for word in text.split()]
    found = translation(re.sub(r"\d", "", text), line, lambda i, j: 0.9 if numbers[i] == j else 0.01)
    written = fragment.write([found])
    assert written.has_lost_marks == (expected != "")
    assert expected in written.text
    same = fragment.join([translation(line, line, lambda i, j: float(i == j))])
    assert sorted(re.findall("<.*?>", written.text)) == sorted(re.findall("<.*?>", same))


@pytest.mark.parametrize("is_closed", [True, False])
def test_tags_in_many_others_keep_their_order(is_closed: bool) -> None:
    """Deep tags are not moved with their words, and a translation without words loses no tag."""
    depth = MAX_NESTED + 20
    source = "".join(f"<b id='{number}'>x{number} " for number in range(depth)) + "</b>" * (depth if is_closed else 0)
    [line] = Fragment(source).lines
    starts = [f'<b id="{number}">' for number in range(depth)]
    for text in (line, " ".join(reversed(line.split())), "neu", ""):
        fragment = Fragment(source)
        written = fragment.write([translation(text, line, lambda i, j: float(i == j))])
        assert re.findall("<b.*?>", written.text) == starts
        structure = Structure(written.text)
        assert "".join(structure.text.split()) == "".join(text.split())
        assert written.has_lost_marks
        assert fragment.is_repaired != is_closed
    same = Fragment(source).join([translation(line, line, lambda i, j: float(i == j))])
    assert re.sub("</b>", "", same) == "".join(f"{tag}x{number} " for number, tag in enumerate(starts)).strip()


def test_positions_have_the_fewest_crossings() -> None:
    """Compare the positions of marks without words with all others, for labels in any order."""
    rng = random.Random(0)
    for _ in range(300):
        num_words, num_labels = rng.randint(1, 200), rng.randint(1, 12)
        source = "w " + " ".join(f"w<br id={number}>" for number in range(num_labels)) + " w"
        labels = [rng.randrange(num_labels + 2) for _ in range(num_words)]
        if rng.random() < 0.3:
            labels.sort()
        fragment = Fragment(source)
        [line] = fragment.lines
        words = [f"t{number}" for number in range(num_words)]
        found = translation(" ".join(words), line, lambda i, j, labels=labels: float(labels[i] == j))
        written = fragment.join([found])
        for number in range(num_labels):
            first = number + 2
            before = len(re.findall(r"t\d+", written.partition(f'<br id="{number}">')[0]))
            crossings = []
            for position in range(num_words + 1):
                later_before = sum(label >= first for label in labels[:position])
                earlier_after = sum(label < first for label in labels[position:])
                crossings.append(later_before + earlier_after)
            assert before == crossings.index(min(crossings))


def test_the_collector_is_paused_only_while_a_page_is_read() -> None:
    with collector_paused():
        with collector_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError, match="x"), collector_paused():
        raise ValueError("x")
    assert gc.isenabled()


def test_kept_text_that_is_a_part_of_a_word() -> None:
    """A T-shirt, whose T the page excludes from translation, is one word in German."""
    source = 'a <b translate="no">Nike</b> shirt'
    words = ["▁ein", "▁Ni", "ke", "-", "Hemd"]
    weights = [[1.0, 0, 0], [0, 1.0, 0], [0, 1.0, 0], [0, 0.4, 0.6], [0, 0, 1.0]]
    attention = Attention(["▁a", "▁Nike", "▁shirt"], words, weights, [0] * 5)
    found = Fragment(source).join([Translation("ein Nike-Hemd", 0.0, [], attention=attention)])
    assert found == 'ein <b translate="no">Nike</b>-Hemd'


def test_many_words_in_nested_tags_take_linear_time() -> None:
    """Also compare the best span of words with all spans; before, this line took half a minute."""
    line = " ".join(["a", "b"] * 2000)
    texts = [" ".join(f"{word}{number % 2}" for number, word in enumerate(line.split()))]
    start = time.process_time()
    assert joined(f"<b><i><u>{line}</u></i></b>", *texts) == f"<b><i><u>{line}</u></i></b>"
    assert time.process_time() - start < 20


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("<b>a", "<b>A</b>"),
        ("<b>" * 2000 + "a", "<b>" * 2000 + "A" + "</b>" * 2000),
        ("a</b>", "A"),
        ("<b><i>a</b></i>", "<b><i>A</i></b>"),
        ("<p>a<p>", "<p>A</p><p></p>"),
        ("<p>a<p></p></p>", "<p>A</p><p></p>"),
        ("a <![x", "A &lt;![x"),
    ],
)
def test_wrong_tags_are_repaired(source: str, expected: str) -> None:
    assert Fragment(source).is_repaired == ("[" not in source)
    assert joined(source, "A0" if "[" not in source else "A0 <![x1") == expected


@pytest.mark.parametrize(("source", "is_cut"), [
    ("a <!-- b", True), ('<p>a</p><a href="x', True), ("<p>a</p></p", True), ("a <!-- b --> c", False),
    ("<script><!-- a < b </script> c", False), ("1 < 2", False), ("a &lt;!-- b", False), ("a <b>c</b> &", False),
])  # fmt: skip
def test_comments_and_tags_without_an_end_are_reported(source: str, is_cut: bool) -> None:
    assert Fragment(source).is_repaired == is_cut


def test_texts_are_in_the_order_of_the_page() -> None:
    page = "<div>one<p>two <b>a</b></p>three<ul><li>four</li><li>five</li></ul></div><p>six</p>"
    assert Fragment(page).lines == ["one", "two a", "three", "four", "five", "six"]


def test_fragments_are_translated_like_their_texts(run: RunDir) -> None:
    """Attention of a real model: only the tags distinguish the text of a fragment from the plain translation."""
    translator = Translator.load(run.path, device="cpu", precision="fp32")
    lines = [f"der {line}" for line in random_lines(6, seed=3)]
    plain = translator.translate(lines)
    tagged = ["<b>{}</b> {}".format(*line.split(maxsplit=1)) for line in lines]
    found = translate_html(translator, [*tagged, "", "<br>", f"<p>{lines[0]}</p><i>{lines[1]}"])
    for fragment, translation in zip(found, plain, strict=False):
        assert Structure(fragment.text).text == translation.text
        assert fragment.text.count("<b>") == 1
        assert set(fragment.flags) - {Flag.LOST_TAG} == set(translation.flags)
    paragraphs = f"<p>{plain[0].text}</p><i>{plain[1].text}</i>"
    assert [fragment.text for fragment in found[len(lines) :]] == ["", "<br>", paragraphs]
    assert Flag.REPAIRED in found[-1].flags


def test_marks_of_any_format_are_placed() -> None:
    """A mark contains the second word, and a comment with a space on both sides is before the third."""
    root = Mark(first_word=0, is_element=True, end_word=3)
    emphasis = Mark(first_word=1, is_element=True, end_word=2)
    comment = Mark(first_word=2, is_element=False, end_word=2, follows_space=True, precedes_space=True)
    root.marks += [emphasis, comment]
    source = MarkedText("a red dog", words_in("a red dog", WORD), root, [emphasis, comment], WORD)
    found = translation("ein Hund rot", "a red dog", lambda i, j: float(j == (0, 2, 1)[i]))
    contents = place_marks(source, found).contents
    assert list(contents) == [root, emphasis]
    assert contents[emphasis] == ["rot"]
    assert contents[root] == ["ein ", comment, " ", "Hund ", emphasis, ""]
