"""Tests of required phrases: translations contain them, and are the best ones that do."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from toy import (
    Limits,
    ToyModel,
    assert_same,
    batch,
    beam_search,
    begin_with,
    forbid,
    no_repeated,
    sentences,
    tiny_transformer,
    up_to,
)

from mtformer.config.data import DataConfig
from mtformer.config.schema import DecodingConfig, TokenizerConfig
from mtformer.data.filters.numbers import NumberRules
from mtformer.decoding.lines import postprocessing
from mtformer.decoding.lines.glossary import Glossary
from mtformer.decoding.lines.inputs import Line, Requirements, Splitting, TargetText, check_inputs, make_segments
from mtformer.decoding.lines.translation import Flag, Translation, flag_phrases
from mtformer.decoding.search.candidates import Step
from mtformer.decoding.search.constraints import RequiredPhrases, missing, num_met
from mtformer.decoding.search.hypotheses import Hypothesis
from mtformer.decoding.search.rules import Rule
from mtformer.decoding.search.segments import Phrase, Segment
from mtformer.decoding.translator import Translator
from mtformer.errors import DataError
from mtformer.run_dir import RunDir
from mtformer.text.tokenizer import EOS, SPACE, UNK, Tokenizer, TokenizerPair
from mtformer.text.train import train_tokenizer

TEN = [4, 5, 6, 5, 4, 6, 6, 4, 5, 5]


def search(
    model: ToyModel,
    many: list[list[int]],
    phrases: Sequence[Sequence[Phrase]],
    beam_size: int,
    limits: Limits,
    rules: Sequence[Rule] = (),
) -> list[list[Hypothesis]]:
    required = RequiredPhrases(phrases)
    return beam_search(model, *batch(*many), beam_size, 0.6, limits, rules=rules, choose=required.choose)


def contains_all(hypothesis: Hypothesis, phrases: Sequence[Phrase]) -> bool:
    """Return True if the hypothesis contains all phrases, computed differently than in the search."""
    text = " ".join(["", *map(str, hypothesis.tokens), ""])
    return all(" ".join(["", *map(str, phrase), ""]) in text for phrase in phrases)


def random_phrases(count: int, seed: int) -> list[list[Phrase]]:
    """Return up to three phrases of one to four tokens for each sentence; they may share tokens."""
    rng = random.Random(seed)
    return [
        [tuple(rng.choices((UNK, 4, 5, 6), k=rng.randint(1, 4))) for _ in range(rng.randint(0, 3))]
        for _ in range(count)
    ]


def limits_for(phrases: Sequence[Sequence[Phrase]], more: int) -> Limits:
    """Return limits that allow `more` tokens in addition to the phrases."""
    return Limits(max_length=1, reserved=[sum(map(len, of_one)) + more for of_one in phrases])


SHARING = [
    [(4,)],
    [(5, 5)],
    [(4, 5), (5, 6)],  # the end of one is the beginning of the other
    [(4, 5), (4, 5, 6)],  # one is the beginning of the other
    [(5,), (4, 5, 6)],  # one within the other
    [(4, 4, 5), (4, 5)],
    [(4, 6), (4, 5)],  # the same beginning
    [(6, 4, 6), (6, 4)],
    [(4,), (5,), (6,)],
    [(1, 4), (6,)],
    [(4, 5), (4, 5)],
]


@pytest.mark.parametrize("phrases", SHARING)
def test_very_wide_beam_finds_all_translations_with_the_phrases(phrases: list[Phrase]) -> None:
    model = ToyModel(seed=1)
    whole = model.exhaustive((*TEN, EOS), 0.6, 0, 4)
    expected = [h for h in whole if contains_all(h, phrases)]
    assert 0 < len(expected) < len(whole)
    assert_same(search(model, [TEN], [phrases], 400, up_to(4))[0], expected)


@pytest.mark.parametrize("beam_size", [1, 2, 5])
@pytest.mark.parametrize("phrases", SHARING)
def test_narrow_beams_find_translations_with_the_phrases(phrases: list[Phrase], beam_size: int) -> None:
    model, many = ToyModel(seed=2), sentences(6, seed=1)
    for limits in (Limits(max_length_ratio=0.5), limits_for([phrases] * 6, 2), limits_for([phrases] * 6, 0)):
        found = search(model, many, [phrases] * 6, beam_size, limits)
        for source, n_best in zip(many, found, strict=True):
            assert 0 < len(n_best) <= beam_size
            assert len({tuple(h.tokens) for h in n_best}) == len(n_best)
            for one in n_best:
                assert contains_all(one, phrases)
                assert {*one.tokens} <= {UNK, 4, 5, 6}
                expected = model.token_log_probabilities((*source, EOS), one.tokens)
                assert one.token_log_probabilities == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_phrases_are_generated_even_if_the_limit_allows_nothing_else() -> None:
    phrases = [of_one or [(4,)] for of_one in random_phrases(60, seed=3)]
    for n_best, of_one in zip(
        search(ToyModel(seed=3), sentences(60), phrases, 4, limits_for(phrases, 0)), phrases, strict=True
    ):
        assert n_best
        assert all(contains_all(h, of_one) for h in n_best)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_constrained_search_does_not_depend_on_the_batch(beam_size: int) -> None:
    model, many, phrases = ToyModel(seed=4), sentences(60, seed=2), random_phrases(60, seed=1)
    together = search(model, many, phrases, beam_size, Limits())
    plain = beam_search(model, *batch(*many), beam_size, 0.6, Limits())
    assert sum(not of_one for of_one in phrases) >= 10
    for source, of_one, n_best, without in zip(many, phrases, together, plain, strict=True):
        assert_same(n_best, search(model, [source], [of_one], beam_size, Limits())[0])
        assert all(contains_all(h, of_one) for h in n_best)
        if not of_one:
            assert n_best == without


class PositionalModel(ToyModel):
    """Model in which a token depends on the previous one and on its position, so each phrase has natural positions."""

    def logits(self, source: tuple[int, ...], prefix: tuple[int, ...]) -> torch.Tensor:
        position = len(prefix)
        logits = 2.5 * super().logits(source, prefix[-1:]) / 2 + super().logits(source, (-1, position))
        logits[EOS] = 1.2 * (position - 8) - 6
        return logits


def test_phrases_occur_at_natural_positions() -> None:
    """A narrow beam scores nearly as well as a wide one: phrases are not forced at the start or followed by eos."""
    model, rng = PositionalModel(seed=3, vocab=24), random.Random(4)
    many = [[rng.randrange(4, 24) for _ in range(10)] for _ in range(10)]
    natural = beam_search(model, *batch(*many), 5, 0.6, Limits())
    phrases = [[tuple(n_best[-1].tokens[4:9])] for n_best in natural]
    narrow, wide = (search(model, many, phrases, beam_size, Limits()) for beam_size in (5, 16))
    losses = [b[0].score - a[0].score for a, b in zip(narrow, wide, strict=True)]
    assert sum(losses) / len(losses) < 0.3, "it is 2.5 if all beams generate their phrases immediately"


def test_phrases_that_cannot_be_generated_still_give_a_translation() -> None:
    model, many = ToyModel(seed=5), sentences(10)
    for n_best in search(model, many, [[(4, 5, 6, 4, 5)]] * 10, 3, Limits(max_length=3)):
        assert n_best
        assert all(len(h.tokens) == 3 and not contains_all(h, [(4, 5, 6, 4, 5)]) for h in n_best)
    for n_best in search(model, many, [[(4,), (5, 6)]] * 10, 3, Limits(max_length=8), [forbid(6)]):
        assert n_best
        assert not any(contains_all(h, [(5, 6)]) for h in n_best)


def test_hypotheses_without_a_phrase_are_returned_only_if_there_are_no_others() -> None:
    """Tokens do not repeat, so a beam that used only 4 or 5 cannot contain (4, 5); it ends if no token is allowed."""
    model, many = ToyModel(seed=6), sentences(30, seed=3)
    for limits in (Limits(), up_to(3)):
        for n_best in search(model, many, [[(4, 5)]] * 30, 5, limits, [no_repeated(1)]):
            assert n_best
            assert all(contains_all(h, [(4, 5)]) for h in n_best)


def test_a_translation_is_found_if_it_ends_among_the_first_candidates() -> None:
    """The others do not become hypotheses, so the sentence may still need one without the phrase."""
    required, log_prob_URV = RequiredPhrases([[(4,)]]), torch.full((1, 1, 7), -9.0)
    step = Step(log_prob_URV, log_prob_URV, torch.tensor([[[4]]]), torch.tensor([0]))
    for log_prob, found in ((-2.0, set[int]()), (-0.5, {0})):
        log_prob_URV[..., 5], log_prob_URV[..., EOS] = -1.0, log_prob
        assert EOS in required.choose(step, torch.zeros(1, 1), 2).token_BK
        assert required.completed == found


def test_prefixes_and_required_phrases_can_be_combined() -> None:
    many, prefix = sentences(15, seed=4), [6, 1, 4]
    phrases = [[(4, 5), (6, 6)]] * 15
    limits = Limits(max_length=2, reserved=[3 + 4] * 15)
    found = search(ToyModel(seed=7), many, phrases, 4, limits, [begin_with([prefix] * 15)])
    for n_best in found:
        assert n_best
        assert all(h.tokens[:3] == prefix and contains_all(h, phrases[0]) for h in n_best)


def test_num_met_and_missing() -> None:
    phrases: list[Phrase] = [(4, 5, 6), (6, 4), (5,)]
    assert missing([], phrases) == phrases
    assert missing([6, 4, 5], phrases) == [(4, 5, 6)]
    assert missing([4, 5, 4, 5, 6], phrases) == [(6, 4)]
    assert num_met([], phrases) == 0
    assert num_met([1, 4], phrases) == 1
    assert num_met([6], phrases) == 1
    assert num_met([6, 4], phrases) == 3, "one is complete, and another begins with its last token"
    assert num_met([4, 5], phrases) == 3
    assert num_met([4, 4, 1], phrases) == 0
    assert num_met([4, 5, 6], phrases[:2]) == 4


TERMS = [
    ("new york times", "NYT"),
    ("new york", "Neu-York"),
    ("times", "Mal"),
    ("c++", "C"),
    ("US", "USA"),
    ("us", "uns"),
]


OTHERS = [
    ("子猫", "kitten"), ("猫", "cat"), ("café", "Kaffeehaus"), ("कम", "less"), ("istanbul", "Istanbul"),
    ("ırmak", "river"), ("สุนัข", "dog"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  New York Times", ["NYT"]),
        ("New York, three TIMES", ["Neu-York", "Mal"]),
        ("a newyork Times2 sometimes", []),
        ("us in the US", ["USA", "uns"]),
        ("Us", ["uns"]),
        ("c++ or C++.", ["C"]),
        ("a cafe\u0301", ["Kaffeehaus"]),
        ("子猫が走る", ["kitten"]),
        ("यह कमी है", []),
        ("यह कम है।", ["less"]),
        ("İstanbul'a ve ISTANBUL", ["Istanbul"]),
        ("Irmak ile ırmak", ["river"]),
        ("ฉันเห็นสุนัขวิ่ง", ["dog"]),
        ("先生はUSの人", ["USA"]),
        ("用C++写", ["C"]),
        ("2.5 times 5", ["Mal"]),
        ("", []),
    ],
)
def test_terms_are_whole_words_and_the_longest_first(text: str, expected: list[str]) -> None:
    assert Glossary((*TERMS, *OTHERS)).required_terms(text) == expected


def test_a_phrase_without_spaces_has_no_leading_space(tmp_path: Path) -> None:
    lines = ["我看到一只狗在跑。", "狗在跑。", "猫看狗。", "หมาวิ่ง", "a dog runs"] * 20
    train_tokenizer(lines, TokenizerConfig(vocab_size=40, model_type="bpe"), tmp_path / "model")
    tokenizer = Tokenizer.load(tmp_path / "model")
    for phrase in ("狗", "หมา"):
        [ids] = TargetText(tokenizer, 50).phrase_ids([phrase])
        assert "".join(tokenizer.id_pieces(ids)) == phrase
        assert tokenizer.pieces(phrase)[0].startswith(SPACE)
    assert TargetText(tokenizer, 50).phrase_ids(["dog", "\u3000"]) == [tuple(tokenizer.encode(["dog"])[0]), ()]


JAPANESE = ["先生はPythonを使う。", "犬はPCを買う。", "猫は3本のペンを見る。", "Pythonは便利だ。"]


@pytest.fixture(scope="module")
def japanese(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("japanese") / "model"
    lines = [*JAPANESE, "the teacher uses Python", "a dog buys a PC"] * 20
    train_tokenizer(lines, TokenizerConfig(vocab_size=70, model_type="bpe"), path)
    return Tokenizer.load(path)


@pytest.mark.parametrize("phrase", ["Python", "PC", "3本", "犬", "Python PC"])
def test_the_target_language_decides_about_the_space_before_a_phrase(japanese: Tokenizer, phrase: str) -> None:
    [within] = TargetText(japanese, 50, has_spaces=False).phrase_ids([phrase])
    assert "".join(japanese.id_pieces(within)) == phrase.replace(" ", SPACE)
    [after_space] = TargetText(japanese, 50).phrase_ids([phrase])
    is_unspaced = phrase == "犬"
    assert "".join(japanese.id_pieces(after_space)) == ("" if is_unspaced else SPACE) + phrase.replace(" ", SPACE)


@pytest.mark.parametrize("has_spaces", [True, False])
@pytest.mark.parametrize("phrase", ["Python", "PC", "犬"])
def test_required_phrases_and_glossary_terms_have_the_same_form(
    japanese: Tokenizer, phrase: str, has_spaces: bool
) -> None:
    target = TargetText(japanese, 50, has_spaces)
    expected = target.phrase_ids([phrase])
    [line] = check_inputs(["a dog"], Requirements(phrases=[[phrase]]), target, first_line=0)
    assert line.required_ids == expected
    free = Line("a dog", "", [], [], [], [])
    glossary = Glossary((("dog", phrase),))
    [segment] = make_segments([free], japanese, target, glossary, Splitting(50, 50, splits_sentences=True), 0)
    assert segment.required == expected


@pytest.mark.parametrize(
    ("language", "has_spaces"), [("ja", False), ("zh-TW", False), ("tha", False), ("de", True), ("ko", True)]
)
def test_the_translator_knows_whether_its_target_language_has_spaces(
    tmp_path: Path, language: str, has_spaces: bool
) -> None:
    settings = TokenizerConfig(vocab_size=80, model_type="bpe")
    train_tokenizer(JAPANESE * 20, settings, tmp_path / "model", [f"<2{language}>", "<2en>"])
    tokenizer = Tokenizer.load(tmp_path / "model")
    pair = TokenizerPair(tokenizer, tokenizer)
    model = tiny_transformer(0, tokenizer.vocab_size)
    data = DataConfig(src_lang="en", tgt_lang=language, both_directions=True, language_tags="source")
    translator = Translator([model], pair, DecodingConfig(), data=data)
    assert translator.has_spaces == translator.into(language).has_spaces == has_spaces
    assert translator.into("en").has_spaces
    assert translator.into("en").into(language).has_spaces == has_spaces
    assert Translator([model], pair, DecodingConfig()).has_spaces


@pytest.mark.parametrize(("line", "phrase"), [(line, word) for line in JAPANESE[:2] for word in ("Python", "PC", "犬")])
def test_a_phrase_beside_japanese_is_not_missing(line: str, phrase: str) -> None:
    flags = flag_phrases(Translation(line, 0.0, []), "", [phrase]).flags
    assert flags == (() if phrase in line else (f"missing: {phrase}",))


def test_a_phrase_with_composed_accents_is_found_in_decomposed_ones() -> None:
    for text, phrase in (("ein Cafe\u0301.", "Café"), ("ein Café.", "Cafe\u0301")):
        assert flag_phrases(Translation(text, 0.0, []), "", [phrase]).flags == ()


@pytest.fixture
def translator(run: RunDir) -> Translator:
    return Translator.load(run.path, device="cpu")


def test_a_glossary_equals_required_phrases_of_each_sentence(translator: Translator) -> None:
    lines = ["der hund schläft. die frau liest.", "die katze", "ein hund"]
    first, *others = translator.translate(lines, glossary={"Hund": "nie", " hund  ": "rot "})
    assert [one.text for one in others] == [one.text for one in translator.translate(lines[1:], required=[[], ["rot"]])]
    sentences = translator.translate(["der hund schläft. ", "die frau liest."], required=[["rot"], []])
    assert first.text == " ".join(one.text for one in sentences)
    for blank in ({"hund": " "}, {"": "rot"}):
        with pytest.raises(DataError, match="a glossary term is blank, or its translation is"):
            translator.translate(lines, glossary=blank)
    assert "missing: grün" in translator.translate(["hund"], glossary={"hund": "grün"}, max_length=1)[0].flags


def test_a_term_across_a_sentence_end_leaves_no_shorter_one(translator: Translator) -> None:
    line = Line("I work at Yahoo! Inc in Berlin.", "", [], [], [], [])
    glossary = Glossary((("Yahoo! Inc", "Yahoo"), ("Inc", "GmbH")))
    src, tgt = translator.tokenizers
    splitting = Splitting(100, 100, splits_sentences=True)
    segments = make_segments([line], src, TargetText(tgt, 100), glossary, splitting, 0)
    assert [segment.required for segment in segments] == [[], []]


@pytest.mark.parametrize(
    "case",
    [
        ("rot,blau", ["rot blau", "rot"], "blau", ["rot"]),
        ("rot,blau", ["rot blau", "rot", "blau"], "", ["rot", "blau"]),
        ("rot", ["rot"], "", ["rot"]),
        ("rot", ["rot", ""], "rot", []),
        ("rot", [], "rot", []),
        ("Rot.,Blau.", [], "", ["Rot.", "Blau."]),
    ],
)
def test_a_phrase_that_needs_a_repetition_is_dropped(
    translator: Translator, monkeypatch: pytest.MonkeyPatch, case: tuple[str, list[str], str, list[str]]
) -> None:
    given, repeated, used, missed = case

    def search(segments: Sequence[Segment], *_: object) -> list[list[Translation]]:
        found = []
        for segment in segments:
            tokens = [token for phrase in segment.required for token in phrase]
            text = translator.tokenizers.tgt.decode([tokens])[0]
            found.append([Translation(text, 0.0, tokens, flags=(Flag.REPETITION,) * (text in repeated))])
        return found

    monkeypatch.setattr(translator, "_search", search)
    [one] = translator.translate(["der hund"], required=[given.split(",")])
    assert one.text == used
    assert [flag for flag in one.flags if flag != Flag.REPETITION] == [f"missing: {phrase}" for phrase in missed]


@pytest.mark.parametrize(
    ("phrase", "found", "used"),
    [("rot", "der rot hund", "der rot hund"), ("rot", "der hund z rot", "der hund"), ("rotz", "der rotz", "der rotz")],
)
def test_a_phrase_that_needs_a_further_sentence_is_dropped(
    translator: Translator, monkeypatch: pytest.MonkeyPatch, phrase: str, found: str, used: str
) -> None:
    def search(segments: Sequence[Segment], *_: object) -> list[list[Translation]]:
        tokens = [[token for phrase in segment.required for token in phrase] for segment in segments]
        return [[Translation(found if ids else "der hund", 0.0, ids)] for ids in tokens]

    monkeypatch.setattr("mtformer.decoding.lines.unfit_phrases.split_sentences", lambda text: text.split("z"))
    monkeypatch.setattr(translator, "_search", search)
    assert translator.translate(["der hund"], required=[[phrase]])[0].text == used


def test_numbers_are_compared_in_the_languages_of_each_direction(tmp_path: Path) -> None:
    settings = TokenizerConfig(vocab_size=80, model_type="bpe")
    train_tokenizer(JAPANESE * 20, settings, tmp_path / "model", ["<2am>", "<2de>", "<2en>"])
    tokenizer = Tokenizer.load(tmp_path / "model")
    model = tiny_transformer(0, tokenizer.vocab_size)
    pairs = ["en de", "ja en", "de en"]
    data = DataConfig(src_lang="en", tgt_lang="am", language_pairs=pairs, language_tags="source")
    translator = Translator([model], TokenizerPair(tokenizer, tokenizer), DecodingConfig(), data=data)

    def flags(source: str, text: str, language: str) -> list[Flag]:
        return list(postprocessing.text_flags(source, text, translator.into(language).number_rules))

    assert translator.number_rules == translator.into("am").number_rules
    assert flags("It opened in 2016.", "በ2008 ተከፈተ።", "am") == []
    assert flags("It opened in 2016.", "Es wurde 2008 eröffnet.", "de") == [Flag.NUMBERS]
    assert flags("彼は３７ 歳です。", "He is thirty-seven years old.", "en") == []
    assert flags("彼は３７ 歳です。", "He is three years old.", "en") == [Flag.NUMBERS]


@pytest.mark.parametrize("flag", [Flag.NUMBERS, Flag.LOST_ADDRESS])
def test_keep_returns_the_first_hypothesis_without_lost_numbers(
    translator: Translator, monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    def flags(source: str, text: str, number_rules: NumberRules) -> list[str]:
        return [flag] * (len(text.strip()) % 3 > 0)

    monkeypatch.setattr(postprocessing, "text_flags", flags)
    lines = ["der hund", "die katze im park", "ein mann liest", "rot und blau"]
    kept, plain = (translator.translate(lines, beam_size=4, n_best=2, keep=keep) for keep in ("numbers", None))
    for one, all_of in zip(kept, translator.translate(lines, beam_size=4, n_best=4), strict=True):
        hypotheses = sorted([all_of, *all_of.alternatives], key=lambda found: len(found.text) % 3 > 0)
        assert [found.text for found in (one, *one.alternatives)] == [found.text for found in hypotheses[:2]]
    assert [one.text for one in kept] != [one.text for one in plain]
