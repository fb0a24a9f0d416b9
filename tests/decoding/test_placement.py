"""A required phrase that has no place in a translation is left out, and the translation is flagged."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
from toy import tiny_transformer

from mtformer.config.schema import DecodingConfig, TokenizerConfig
from mtformer.decoding.lines.translation import Translation
from mtformer.decoding.lines.unfit_phrases import Trial, UnfitPhrases
from mtformer.decoding.search.segments import Segment
from mtformer.decoding.translator import Translator
from mtformer.text.tokenizer import Tokenizer, TokenizerPair
from mtformer.text.train import train_tokenizer

UNLIKELY, LIKELY = -8.0, -0.2


class Case(NamedTuple):
    """A source, its translation without and with a phrase, and the phrase."""

    source: str
    free: str
    constrained: str
    phrase: str


APPENDED = [
    Case("The dog sleeps.", "Der Hund schläft.", "Der Hund schläft. Lampe", "Lampe"),
    Case("The dog sleeps.", "Der Hund schläft.", "Der Hund schläft. lampe", "lampe"),
    Case("The dog sleeps.", "Der Hund schläft.", "Der Hund schläft Lampe.", "Lampe"),
    Case("The dog sleeps.", "Der Hund schläft.", "Der Hund schläft. sein Hund Lampe.", "Lampe"),
    Case("The dog sleeps.", "Der Hund schläft.", "Ein Hund schläft. ihre Lampe", "Lampe"),
    Case("The dog sleeps.", "Der Hund schläft.", "Lampe der Hund schläft.", "Lampe"),
    Case("the dog sleeps", "der hund schläft", "der hund schläft lampe", "lampe"),
    Case("Does he sleep?", "Schläft er?", "Schläft er? ist Lampe?", "Lampe"),
    Case("A. B.", "Ja. Nein.", "Ja. Nein. Lampe", "Lampe"),
    Case("The dog sleeps.", "犬が寝る。", "犬が寝る。車", "車"),
    Case("The dog sleeps.", "犬が寝る。", "犬が寝る。猫は車。", "車"),
    Case("The dog sleeps", "犬が寝る", "犬が寝る車", "車"),
    Case("The dog sleeps.", "หมานอน", "หมานอนปลา", "ปลา"),
    Case("The dog sleeps.", "الكلب ينام.", "الكلب ينام. مصباح", "مصباح"),
    Case("The dog sleeps.", "कुत्ता सोता है।", "कुत्ता सोता है। दीपक", "दीपक"),
    Case("The dog sleeps.", "Собака спит.", "Собака спит лампа.", "лампа"),
    Case("The dog sleeps.", "ውሻው ይተኛል።", "ውሻው ይተኛል። መብራት", "መብራት"),
]
PLACED = [
    Case("He bought a lamp.", "Er kaufte ein Licht.", "Er kaufte eine Lampe.", "Lampe"),
    Case("He bought a lamp", "er kaufte ein licht", "er kaufte eine lampe", "lampe"),
    Case("A lamp shines.", "Ein Licht scheint.", "Lampe scheint.", "Lampe"),
    Case("The dog sleeps. A lamp.", "Der Hund schläft. Ein Licht.", "Der Hund schläft. Lampe", "Lampe"),
    Case("This is Dr. Lampe.", "Das ist Dr. Licht.", "Das ist Dr. Lampe.", "Lampe"),
    Case("This is a car.", "これは自動車。", "これは車。", "車"),
    Case("He likes it etc. and sleeps.", "Er mag es etc. und schläft.", "Er mag Lampe etc. und schläft.", "Lampe"),
    Case("He likes lamps.", "Er mag Licht.", "Er mag Lampen usw. und so.", "Lampen usw."),
    Case("A fish.", "ปู", "ปลา", "ปลา"),
    Case("A summer.", "कम", "कमी कामी", "कामी"),
]
LIKELY_AT_THE_END = [
    Case("He sleeps now.", "Er schläft.", "Er schläft jetzt.", "jetzt"),
    Case("he sleeps now", "er schläft", "er schläft jetzt", "jetzt"),
    Case("Today he sleeps.", "Er schläft.", "Heute er schläft.", "Heute"),
]
ALL = [*APPENDED, *PLACED, *LIKELY_AT_THE_END]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    texts = [text for case in ALL for text in (*case, *case.constrained.split())]
    path = tmp_path_factory.mktemp("placement") / "model"
    train_tokenizer(texts * 3, TokenizerConfig(vocab_size=260, model_type="bpe"), path)
    return Tokenizer.load(path)


Search = Callable[[Sequence[str]], str]
"""Function of the required phrases that returns the translation with them."""


@pytest.fixture
def translate(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Translation]:
    """Return a function that translates with given results of the search.

    Its arguments are the source, the required phrases, the search, and the log-probability of tokens that only the
    translation with phrases has.
    """

    def run(source: str, phrases: Sequence[str], search: Search, log_prob: float, **options: object) -> Translation:
        model = tiny_transformer(0, tokenizer.vocab_size)
        translator = Translator([model], TokenizerPair(tokenizer, tokenizer), DecodingConfig())

        def found(segments: Sequence[Segment], *_: object) -> list[list[Translation]]:
            return [[result(segment)] for segment in segments]

        def result(segment: Segment) -> Translation:
            text = search([phrase.strip() for phrase in tokenizer.decode(segment.required)])
            # The phrase has the ids with which it is required.
            tokens = list[int]()
            rest = text
            for phrase, ids in zip(tokenizer.decode(segment.required), segment.required, strict=True):
                before, rest = rest.split(phrase.strip(), 1)
                tokens += [*tokenizer.encode([before])[0], *ids]
            tokens += tokenizer.encode([rest])[0]
            common = set(tokenizer.encode([search([])])[0])
            log_probs = [log_prob if token not in common else LIKELY for token in tokens]
            score = -1.0 - len(segment.required)
            return Translation(text, score, tokens, token_log_probabilities=[*log_probs, LIKELY])

        monkeypatch.setattr(translator, "_search", found)
        [translation] = translator.translate([source], required=[list(phrases)], **options)
        return translation

    return run


def search_of(case: Case) -> Search:
    return lambda phrases: case.constrained if phrases else case.free


@pytest.mark.parametrize("case", APPENDED)
def test_an_appended_phrase_is_left_out(case: Case, translate: Callable[..., Translation]) -> None:
    found = translate(case.source, [case.phrase], search_of(case), UNLIKELY)
    assert found.text == case.free
    assert [flag for flag in found.flags if flag.startswith("missing")] == [f"missing: {case.phrase}"]


@pytest.mark.parametrize("log_prob", [UNLIKELY, LIKELY])
@pytest.mark.parametrize("case", PLACED)
def test_a_phrase_in_the_sentence_is_kept(case: Case, log_prob: float, translate: Callable[..., Translation]) -> None:
    found = translate(case.source, [case.phrase], search_of(case), log_prob)
    assert found.text == case.constrained
    assert not any(flag.startswith("missing") for flag in found.flags)


@pytest.mark.parametrize("case", LIKELY_AT_THE_END)
def test_a_likely_phrase_at_the_end_is_kept(case: Case, translate: Callable[..., Translation]) -> None:
    assert translate(case.source, [case.phrase], search_of(case), LIKELY).text == case.constrained
    unlikely = translate(case.source, [case.phrase], search_of(case), UNLIKELY)
    assert (unlikely.text, f"missing: {case.phrase}" in unlikely.flags) == (case.free, True)


THREE = {
    (): "Er kaufte ein Licht.",
    ("Lampe",): "Er kaufte eine Lampe.",
    ("車",): "Er kaufte ein Licht. 車",
    ("jetzt",): "Er kaufte ein Licht jetzt.",
    ("Lampe", "車"): "Er kaufte eine Lampe. 車",
    ("Lampe", "jetzt"): "Er kaufte eine Lampe jetzt.",
    ("車", "jetzt"): "Er kaufte ein Licht. 車 jetzt",
    ("Lampe", "車", "jetzt"): "Er kaufte eine Lampe. 車 jetzt.",
}


@pytest.mark.parametrize("phrases", [["Lampe", "車"], ["車", "jetzt"], ["Lampe", "車", "jetzt"]])
def test_of_several_phrases_those_with_a_place_are_kept(
    phrases: list[str], translate: Callable[..., Translation]
) -> None:
    found = translate("He bought a lamp.", phrases, lambda used: THREE[tuple(used)], UNLIKELY)
    kept = [phrase for phrase in phrases if phrase == "Lampe"]
    assert found.text == THREE[tuple(kept)]
    missing = [flag for flag in found.flags if flag.startswith("missing")]
    assert missing == [f"missing: {phrase}" for phrase in phrases if phrase not in kept]


def test_a_search_without_phrases_is_needed_only_for_unlikely_tokens(tokenizer: Tokenizer) -> None:
    """Otherwise each translation with a phrase would cost a second search."""
    case = PLACED[0]
    unfit_phrases = UnfitPhrases(lambda segments: [], tokenizer)
    ids = tuple(tokenizer.encode([case.phrase])[0])
    segment = Segment([3], required=[ids], text=case.source)
    tokens = tokenizer.encode([case.constrained])[0]
    for log_prob, expected in ((LIKELY, False), (UNLIKELY, True)):
        log_probs = [LIKELY] * len(tokens) + [log_prob]
        translation = Translation(case.constrained, 0.0, [*tokens, *ids], token_log_probabilities=log_probs)
        assert unfit_phrases.may_fail(Trial(segment, [translation])) == expected


def test_glossary_terms_of_each_sentence_are_treated_alike(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_transformer(0, tokenizer.vocab_size)
    translator = Translator([model], TokenizerPair(tokenizer, tokenizer), DecodingConfig(split="always"))

    def search(segments: Sequence[Segment], *_: object) -> list[list[Translation]]:
        found = []
        for segment in segments:
            text = "Der Hund schläft." if "dog" in segment.text else "Er kaufte ein Licht."
            tokens = tokenizer.encode([text])[0]
            log_probs = [LIKELY] * len(tokens)
            for ids in segment.required:
                text += f" {tokenizer.decode([ids])[0].strip()}"
                tokens = [*tokens, *ids]
                log_probs += [UNLIKELY] * len(ids)
            found.append([Translation(text, -1.0, tokens, token_log_probabilities=log_probs)])
        return found

    monkeypatch.setattr(translator, "_search", search)
    [found] = translator.translate(["The dog sleeps. He bought a lamp."], glossary={"lamp": "Lampe"})
    assert found.text == "Der Hund schläft. Er kaufte ein Licht."
    assert "missing: Lampe" in found.flags
