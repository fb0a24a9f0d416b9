"""Tests of the normalization of text: our own rules over all of Unicode, rule files, and the lines that they change."""

import re
import runpy
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies

from mtformer.config.schema import NORMALIZATIONS, TokenizerConfig
from mtformer.errors import DataError
from mtformer.text.normalization import COMPOSE_RULES, Normalizer, rules_of
from mtformer.text.tokenizer import Tokenizer
from mtformer.text.train import train_tokenizer

SCRIPT = Path(__file__).parents[2] / "scripts" / "normalization_rules.py"
CHARACTERS = [chr(code) for code in range(1, sys.maxunicode + 1) if not 0xD800 <= code <= 0xDFFF]
compose = Normalizer.of_config(TokenizerConfig())

SAMPLES = {
    "Amharic": "ሰላም ለዓለም፤ ይህ ፈተና ነው።",
    "Arabic": "أَكَلَ آدمُ التفاحةَ، وهو مُؤمِنٌ بشِيءٍ أَّوَّل",
    "Bengali": "আমার সোনার বাংলা, আমি তোমায় ভালোবাসি। কৌশল",
    "Burmese": "မြန်မာဘာသာစကား ဦးလေး",
    "Chinese": "你好，世界！（测试）“引号”：２０２６年",
    "French": "Où est l’élève ? Çà et là, naïf, cœur.",
    "Georgian": "გამარჯობა მსოფლიო",
    "Greek": "Ἐν ἀρχῇ ἦν ὁ λόγος· ΐ ᾧ ᾴ",
    "Gujarati": "નમસ્તે દુનિયા",
    "Hebrew": "שָׁלוֹם עוֹלָם בְּרֵאשִׁית",
    "Hindi": "नमस्ते दुनिया, ज़रूर पढ़ो, सड़क, ऩ",
    "Japanese": "ガギグゲゴ、パピプペポ。「が」ｶﾞ　全角",
    "Kannada": "ಕನ್ನಡ ಕೋಟಿ ಕೈ",
    "Khmer": "សួស្តី ពិភពលោក",
    "Korean": "안녕하세요, 세계! 값싼 닭고기",
    "Lao": "ນ້ຳ ສະບາຍດີ",
    "Malayalam": "മലയാളം കൊച്ചി കോഴി",
    "Nuer": "ɛ̱ ä̱ ö̱ kä̱n",
    "Odia": "ଓଡ଼ିଆ କୋଣାର୍କ",
    "Persian": "می‌خواهم کتاب‌ها را بخوانم",
    "Punjabi": "ਪੰਜਾਬੀ ਖ਼ਾਸ ਸ਼ਹਿਰ",
    "Russian": "Чей это ёж? Мой йогурт.",
    "Sinhala": "සිංහල කෝපි ගෙදෝ",
    "Tamil": "தமிழ் கொடு கோழி கௌரி",
    "Thai": "น้ำทำงาน กำลัง",
    "Tibetan": "བོད་སྐད། ཀྵ དྷ",
    "Urdu": "آپ کیسے ہیں؟ جرأت، لئے، ۂ",
    "Vietnamese": "Tiếng Việt đặc biệt: ặ ễ ữ ợ",
    "Yoruba": "Ẹ káàárọ̀, ó dára; ẹ̀kọ́ e̩kó̩ é̩",
}


@pytest.mark.parametrize("language", SAMPLES)
def test_text_of_each_language(language: str) -> None:
    """Text in NFC does not change; NFD becomes NFC."""
    text = unicodedata.normalize("NFC", SAMPLES[language])
    decomposed = unicodedata.normalize("NFD", SAMPLES[language])
    assert compose([text, decomposed]) == [text, text]


def test_each_character_stays_alone() -> None:
    """All characters except control characters, tab and SentencePiece's sign for a space stay as they are."""
    lines = [f"x-{character}-x" for character in CHARACTERS]
    changed = compose.changes(lines)
    rows = {CHARACTERS[row] for row in changed}
    controls = {character for character in CHARACTERS if unicodedata.category(character) == "Cc"}
    assert rows == controls - {"\t"} | {"▁"}
    for row, line in changed.items():
        has_space = CHARACTERS[row] in "\t\n\v\f\r\x85▁"
        assert line == ("x- -x" if has_space else "x--x")


def test_each_composite_is_composed_from_its_parts() -> None:
    """Except those that NFC itself decomposes or replaces, which stay decomposed."""
    composites = [one for one in CHARACTERS if unicodedata.normalize("NFD", one) != one]
    decomposed = [unicodedata.normalize("NFD", one) for one in composites]
    assert len(composites) > 13_000
    for composite, parts, normalized in zip(composites, decomposed, compose(decomposed), strict=True):
        is_primary = unicodedata.normalize("NFC", composite) == composite
        assert normalized == (composite if is_primary else unicodedata.normalize("NFC", parts))


PARTS = sorted({part for one in CHARACTERS for part in unicodedata.normalize("NFD", one) if part != one} | set("ab 각"))
MARKS = [one for one in CHARACTERS if unicodedata.combining(one)]


@settings(max_examples=1000)
@given(text=strategies.text(strategies.one_of(strategies.sampled_from(PARTS), strategies.sampled_from(MARKS))))
def test_normalization_is_idempotent_and_keeps_nfc(text: str) -> None:
    [once] = compose([text])
    composed = unicodedata.normalize("NFC", text)
    assert compose([once]) == [once]
    assert unicodedata.normalize("NFC", once) == unicodedata.normalize("NFC", " ".join(text.split(" ")).strip(" "))
    assert not compose.changes([composed])


@settings(max_examples=300)
@given(text=strategies.text(strategies.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_any_text(text: str) -> None:
    [once] = compose([text])
    assert compose([once]) == [once]
    assert once == " ".join(re.split("[ \t]+", once)), "single spaces between words"


def test_the_rule_file_is_made_by_the_script() -> None:
    """The file has the data of a newer Unicode version, so rules with characters that are new to Python are ignored."""
    script = runpy.run_path(str(SCRIPT))
    code_points = script["code_points"]
    expected = {code_points(sequence): code_points(result) for sequence, result in script["rules"]().items()}

    def is_known(sequence: str) -> bool:
        return all(unicodedata.category(chr(int(number, 16))) != "Cn" for number in sequence.split())

    lines = [line.split("\t") for line in COMPOSE_RULES.read_text(encoding="ascii").splitlines()]
    rules = {sequence: result for sequence, result in lines if is_known(sequence) and is_known(result)}
    assert rules == {sequence: result for sequence, result in expected.items() if is_known(sequence)}
    assert len(lines) - len(rules) < 100


# ---- rule files ------------------------------------------------------------------------------------------------------

LINES = [f"Љубав и човек {number}" for number in range(50)]


def rule_file(folder: Path, text: str) -> str:
    path = folder / "rules.tsv"
    path.write_text(text, encoding="utf-8")
    return str(path)


def config(normalization: str) -> TokenizerConfig:
    return TokenizerConfig(normalization=normalization, vocab_size=40, model_type="bpe")


def test_a_rule_file_is_compiled_and_copied(tmp_path: Path) -> None:
    rules = rule_file(tmp_path, "# Serbian letters\n0409\t004C 006A\n\n446\t63\tts\n2A\t\n")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for name in ("a", "b"):
        train_tokenizer(LINES, config(rules), tmp_path / name / "joint.model")
    tokenizer = Tokenizer.load(tmp_path / "a" / "joint.model")
    assert tokenizer.decode(tokenizer.encode(["Љубав* 1"])) == ["Ljубав 1"]
    assert tokenizer.rules == Path(rules).read_bytes()
    # The path of the file is not in the model.
    assert tokenizer.model == (tmp_path / "b" / "joint.model").read_bytes()
    assert str(tmp_path).encode() not in tokenizer.model


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no rules"),
        ("# only a comment\n", "has no rules"),
        ("61\t62\nhello\t62\n", ":2: 'hello' is not a list of code points"),
        ("61\tzz\n", ":1: 'zz' is not"),
        ("61\t\x1b[2Jzz\n", r":1: '\\x1b\[2Jzz' is not"),
        ("61 \td800\n", ":1: "),
        ("110000\t61\n", ":1: "),
        ("\t61\n", "a rule replaces nothing"),
        ("0\t61\n", "a rule replaces nothing, or NUL"),
    ],
)
def test_faults_of_a_rule_file_are_user_errors(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        rules_of(config(rule_file(tmp_path, text)))
    assert "\n" not in str(error.value)
    assert "rules.tsv" in str(error.value)


def test_a_missing_rule_file_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"tokenizer\.normalization cannot be read"):
        rules_of(config(str(tmp_path / "missing.tsv")))


# ---- changed lines ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_a_tokenizer_has_the_normalization_of_its_config(tmp_path: Path, normalization: str) -> None:
    train_tokenizer(LINES, config(normalization), tmp_path / "joint.model")
    normalizer = Tokenizer.load(tmp_path / "joint.model").normalizer
    assert normalizer.name == normalization
    texts = ["Ａｂ　ﬁ", "e\u0301", "น้ำ，", "a\u200cb", " a \t b ", "\x07", "ÀÉ"]
    assert normalizer(texts) == Normalizer.of_config(config(normalization))(texts)


def test_spaces_are_not_changes() -> None:
    lines = ["a  b", " a", "a\t b ", "a\u00a0b", "a\u3000b", "", "   "]
    assert compose.changes(lines) == {}
    assert compose.changes(["a", "e\u0301"]) == {1: "é"}


def test_a_warning_has_two_examples_and_a_remedy() -> None:
    normalizer = Normalizer("nmt_nfkc")
    lines = ["你好，世界", "这是（测试）", "再见！"] + ["没有"] * 997
    changes = normalizer.changes(lines)
    examples = [(lines[row], changed) for row, changed in changes.items()]
    message = normalizer.warning(len(changes), len(lines), examples, "target lines of train")
    assert message is not None
    assert "tokenizer.normalization nmt_nfkc changes 3 of 1,000 target lines of train" in message
    assert "'你好，世界' becomes '你好,世界', '这是（测试）' becomes '这是(测试)'" in message
    assert "再见" not in message
    assert message.endswith("train with tokenizer.normalization: compose")
    assert normalizer.warning(1, 1000, examples, "lines") is None
