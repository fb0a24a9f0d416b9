"""Tests of long lines, prefixes and required phrases, at the level of text."""

import itertools
import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from toy import WORDS, random_lines

from mtformer.config.schema import TokenizerConfig
from mtformer.decoding.lines.glossary import Glossary
from mtformer.decoding.lines.inputs import Requirements, TargetText, check_inputs, without_case
from mtformer.decoding.lines.sentences import join_lines, split_line
from mtformer.decoding.lines.translation import Translation, flag_phrases
from mtformer.decoding.translator import Translator
from mtformer.errors import ConfigError, DataError
from mtformer.run_dir import RunDir
from mtformer.text.case import title_case, upper_case
from mtformer.text.tokenizer import SPACE, Tokenizer
from mtformer.text.train import train_tokenizer


@pytest.fixture(scope="module")
def translator(run: RunDir) -> Translator:
    return Translator.load(run.path, device="cpu", precision="fp32")


def sentences(count: int, seed: int) -> list[str]:
    return [f"{line} {line}." for line in random_lines(count, seed)]


def parts_of(translator: Translator, line: str) -> list[str]:
    def num_tokens(texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in translator.tokenizers.src.encode(texts)]

    return split_line(line, num_tokens, translator.preferred_tokens, translator.max_tokens)


def test_the_sentences_of_a_long_line_are_translated_separately_and_joined(translator: Translator) -> None:
    line = " ".join(sentences(12, seed=1))
    alone = [translator.translate([part.strip()], n_best=2, attention=True)[0] for part in parts_of(translator, line)]
    assert 8 <= len(alone) <= 12, "all but very short sentences are translated separately"
    for whole in (translator.translate([line], n_best=2, attention=True)[0],
                  translator.translate(["der hund", line, "", "die katze"], n_best=2, attention=True)[1]):  # fmt: skip
        pairs = [(whole, alone), (whole.alternatives[0], [one.alternatives[0] for one in alone])]
        assert len(whole.alternatives) == 1
        for joined, parts in pairs:
            assert joined.text == join_lines(part.text for part in parts)
            assert joined.tokens == [token for part in parts for token in part.tokens]
            log_probs = [value for part in parts for value in part.token_log_probabilities]
            assert joined.token_log_probabilities == pytest.approx(log_probs, abs=1e-4)
            assert joined.log_probability == pytest.approx(sum(log_probs), abs=1e-3)
            assert joined.score == pytest.approx(sum(log_probs) / len(log_probs), abs=1e-4)
            assert len(joined.pieces) == len(log_probs)
        assert whole.attention is not None
        assert whole.attention.src_pieces == [p for one in alone if one.attention for p in one.attention.src_pieces]
        rows = [row for one in alone if one.attention for row in one.attention.weights]
        for row, expected in zip(whole.attention.weights, rows, strict=True):
            assert row == pytest.approx(expected, abs=1e-4)
        counts = [len(part.split()) for part in parts_of(translator, line)]
        offsets = list(itertools.accumulate(counts, initial=0))
        words_before = list(itertools.accumulate((len(one.text.split()) for one in alone), initial=0))
        expected_pairs = [
            (src + offsets[i], tgt + words_before[i])
            for i, one in enumerate(alone) if one.attention for src, tgt in one.attention.alignment
        ]  # fmt: skip
        assert whole.attention.alignment == expected_pairs


def test_a_sentence_longer_than_training_sources_is_not_split_if_the_model_supports_it(translator: Translator) -> None:
    line = " ".join(WORDS * 3)
    line = line[:300]
    num_tokens = len(translator.tokenizers.src.encode([line])[0])
    assert 50 < num_tokens <= 63
    assert parts_of(translator, line) == [line]
    assert len(parts_of(translator, f"{line} {line}")) == 3


def test_sentences_are_split_unless_training_had_many_multi_sentence_lines(
    translator: Translator, run: RunDir, tmp_path: Path
) -> None:
    parts = ["der hund läuft.", "die katze schläft!", "das buch?"]
    line, alone = " ".join(parts), translator.translate(parts, n_best=2, attention=True)
    whole = translator.translate([line], split="never")[0]
    joined = join_lines(one.text for one in alone)
    assert joined != whole.text

    found, other = translator.translate([line, "im park"], n_best=2, attention=True)
    assert found.text == joined
    assert found.alternatives[0].text == join_lines(one.alternatives[0].text for one in alone)
    assert found.attention is not None
    assert len(found.attention.tgt_pieces) == len(found.tokens)
    assert other.text == translator.translate(["im park"])[0].text

    copied = RunDir(shutil.copytree(run.path, tmp_path / "copy"))
    for share, expected in ((0.05, joined), (0.5, whole.text), ("damaged", joined)):
        copied.data_report.write_text(json.dumps({"multi_sentence_share": share}))
        loaded = Translator.load(copied.path, device="cpu")
        assert loaded.translate([line])[0].text == expected
        assert loaded.translate([line], split="always")[0].text == joined
        assert loaded.translate([line], split="never")[0].text == whole.text
    copied.data_report.write_text(json.dumps({"multi_sentence_share": 0.5}))
    other = RunDir(shutil.copytree(copied.path, tmp_path / "other"))
    for share, expected in ((0.2, True), (0.0, False), (None, False)):
        other.data_report.write_text(json.dumps({"multi_sentence_share": share}))
        ensemble = Translator.load([copied.path, other.path], device="cpu")
        assert ensemble.knows_several_sentences is expected


@pytest.mark.parametrize(
    "given", [{"prefixes": ["im park"]}, {"required": [["katze"]]}, {"min_length": 4}, {"max_length": 6}], ids=str
)
def test_settings_that_apply_to_the_whole_line_prevent_splitting(translator: Translator, given: dict[str, Any]) -> None:
    line = ["der hund läuft. die katze schläft."]
    assert translator.translate(line, split="always", **given) == translator.translate(line, split="never", **given)


def test_document_of_ten_thousand_words(translator: Translator) -> None:
    rng = random.Random(5)
    document = " ".join(
        rng.choice(WORDS) + rng.choice(["", "", "", ","]) + rng.choice([""] * 40 + [". "]) for _ in range(10_000)
    )
    counts: list[int] = []
    settings = {"beam_size": 1, "max_length_ratio": 0.1, "beam_tokens": 30_000}
    whole, short = translator.translate([document, "der hund"], attention=True, progress=counts.append, **settings)
    assert sum(counts) == 2
    assert len(whole.tokens) > 2_000
    assert whole.attention is not None
    assert sum(map(len, whole.attention.weights)) < 60 * len(whole.tokens), "only weights within segments are stored"
    assert max(src for src, _ in whole.attention.alignment) > 9_000
    assert short.text == translator.translate(["der hund"], **settings)[0].text


def test_very_long_words_and_scripts_without_spaces(translator: Translator) -> None:
    giant, chinese = "läuft" * 100, "我来了。" * 60
    found = translator.translate([giant, chinese, f"   {giant}"], beam_size=1, attention=True)
    assert all(one.tokens for one in found)
    for one, line in zip(found, (giant, chinese, giant), strict=True):
        assert one.attention is not None
        assert "".join(one.attention.src_pieces).replace("▁", "") == line
        assert {src for src, _ in one.attention.alignment} == {0}


def test_translations_begin_with_their_prefixes(translator: Translator) -> None:
    lines = [*random_lines(5, seed=3), "", " ".join(sentences(12, seed=1))]
    prefixes = ["die frau", "", "  Ein\u3000rot", "☃ b☃ das", "der", "die", "im park"]
    settings: dict[str, Any]
    for settings in ({"beam_size": 1}, {"beam_size": 4, "n_best": 2}, {"sampling": True, "n_best": 2}):
        found = translator.translate(lines, prefixes=prefixes, **settings)
        for one, prefix in zip(found[:5], ["die frau", "", "Ein rot", "☃ b☃ das", "der"], strict=True):
            assert all(each.text.startswith(prefix) for each in (one, *one.alternatives))
            assert not any(flag.startswith("missing") for flag in one.flags)
        assert (found[5].text, found[5].flags) == ("", ("missing: die",))
        assert found[6].text.startswith("im park")
        assert found[6].text.count("im park") < 3, "the prefix occurs only at the beginning"
    free = translator.translate(lines)
    assert translator.translate(lines, prefixes=[""] * 7) == free
    assert not any(one.text.startswith(p.strip()) for one, p in zip(free[:1], prefixes, strict=False))


def test_invalid_prefixes_raise_data_error(translator: Translator) -> None:
    with pytest.raises(DataError, match="1 prefixes for 2 lines; give one per line"):
        translator.translate(["der hund", "die katze"], prefixes=["a"])
    with pytest.raises(DataError, match=r"the prefix of line 12 has \d+ tokens; the model supports at most 63"):
        translator.translate(["der hund", "die katze"], prefixes=["", "hund " * 70], first_line=10)


def test_required_phrases_are_in_the_text_or_flagged_as_missing(translator: Translator) -> None:
    lines = random_lines(6, seed=4)
    required = [["katze"], ["die frau", "park"], [], ["buch", "buch"], ["☃"], ["rot"]]
    found = translator.translate(lines, required=required, beam_size=6, n_best=2)
    for number in (0, 1, 3, 5):
        assert all(phrase in found[number].text for phrase in required[number])
        assert not any(flag.startswith("missing") for flag in found[number].flags)
    free = translator.translate(lines, beam_size=6, n_best=2)
    assert found[4].text == free[4].text
    assert found[4].flags == (*free[4].flags, "missing: ☃")
    assert found[2] == free[2]
    assert not all(all(phrase in one.text for phrase in of_one) for one, of_one in zip(free, required, strict=True))


def test_required_phrases_of_long_and_blank_lines_are_checked(translator: Translator) -> None:
    line = " ".join(sentences(12, seed=1))
    found = translator.translate([line, ""], required=[["katzeläuftrot"], ["hund"]])
    assert "missing: katzeläuftrot" in found[0].flags
    assert found[1].flags == ("missing: hund",)


@pytest.mark.parametrize(
    ("text", "phrase", "is_found"),
    [
        ("die Art", "Art", True),
        ("die Artikel", "Art", False),
        ("die Abart", "art", False),
        ("Dr. Art, der", "Art", True),
        ("das 犬猫", "犬", True),
        ("ฉันเห็นหมาวิ่ง", "หมา", True),
        ("ຂ້ອຍເຫັນໝາແລ່ນ", "ໝາ", True),
        ("ខ្ញុំឃើញឆ្កែរត់", "ឆ្កែ", True),
        ("ခွေးပြေးနေသည်", "ပြေး", True),
        ("das C++ hier", "C++", True),
    ],
)
def test_a_part_of_a_word_is_not_the_required_phrase(text: str, phrase: str, is_found: bool) -> None:
    found = flag_phrases(Translation(text, 0.0, []), "", [phrase])
    assert found.flags == (() if is_found else (f"missing: {phrase}",))


def test_invalid_required_phrases_raise_one_line_errors(translator: Translator) -> None:
    with pytest.raises(DataError, match="1 lists of required phrases for 2 lines"):
        translator.translate(["a", "b"], required=[["a"]])
    with pytest.raises(DataError, match="a required phrase of line 2 is blank; leave it out"):
        translator.translate(["der", "die"], required=[["a"], ["b", " \n "]])
    with pytest.raises(DataError, match=r"phrases of line 8 have \d+ tokens; the model supports at most 63"):
        translator.translate(["der"], required=[["hund " * 35, "katze " * 35]], first_line=7)
    settings: dict[str, Any]
    for settings in ({"sampling": True}, {"mbr_samples": 4}):
        with pytest.raises(ConfigError, match="required phrases need beam search"):
            translator.translate(["der"], required=[["hund"]], **settings)


def test_a_string_instead_of_a_list_raises_data_error(translator: Translator) -> None:
    for given in ({"lines": "der hund"}, {"prefixes": "a"}, {"required": "b"}, {"required": ["c"]}):
        with pytest.raises(DataError, match="must be a list of strings, not a string"):
            translator.translate(**{"lines": ["x"], **given})


def test_lone_surrogates_and_line_breaks_are_replaced(translator: Translator) -> None:
    odd = "die \ud800frau\nund"
    found = translator.translate(["der"], prefixes=[odd])[0]
    assert found.text.startswith("die ?frau und")
    assert "missing: die ?frau und" in translator.translate(["der"], required=[[odd]])[0].flags
    assert translator.score([odd], [odd])[0] == translator.score(["die ?frau und"], ["die ?frau und"])[0]


@pytest.mark.parametrize("settings", [{"n_best": 3}, {"beam_size": 1}, {"split": "always"}])
def test_a_line_in_capital_letters_is_translated_in_lower_case(
    translator: Translator, settings: dict[str, Any]
) -> None:
    lines = ["Der hund schläft. Die katze liest.", "Ein hund im park liest"]
    expected = translator.translate(lines, attention=True, **settings)
    for change in (upper_case, title_case):
        found = translator.translate([change(line) for line in lines], attention=True, **settings)
        for one, other in zip(found, expected, strict=True):
            assert one.text == change(other.text) != other.text
            assert [each.text for each in one.alternatives] == [change(each.text) for each in other.alternatives]
            assert (one.tokens, one.score) == (other.tokens, other.score)
            assert one.attention is not None
            assert other.attention is not None
            joined = "".join(one.attention.tgt_pieces).replace(SPACE, " ")
            assert joined == change("".join(other.attention.tgt_pieces).replace(SPACE, " "))
            pairs = zip(one.attention.tgt_pieces, other.attention.tgt_pieces, strict=True)
            assert all(piece.lower() == plain.lower() for piece, plain in pairs)


@pytest.mark.parametrize(
    ("line", "prefix", "required", "expected"),
    [
        ("DER HUND UND DIE KATZEN", "", [], "Der hund und die katzen"),
        ("ÄRGER IM PARK", "", [], "Ärger im park"),
        ("HUND", "", [], "HUND"),
        ("Der HUND IM PARK", "", [], "Der HUND IM PARK"),
        ("A 4", "", [], "A 4"),
        ("犬 NATO", "", [], "犬 NATO"),
        ("犬は DER HUND UND DIE KATZEN です", "", [], "犬は DER HUND UND DIE KATZEN です"),
        ("DER HUND UND 2 KATZEN!", "", [], "Der hund und 2 katzen!"),
        ("", "", [], ""),
        ("DER HUND", "ein", [], "DER HUND"),
        ("DER HUND", "", ["katze"], "DER HUND"),
        ("Der Hund Und Die Katzen", "", [], "Der hund und die katzen"),
        ("„Der Hund Und 2 Katzen, Geht's?“", "", [], "„der hund und 2 katzen, geht's?“"),
        ("Die Katzen Im Park", "", [], "Die Katzen Im Park"),
        ("Die USA Und Der Hund", "", [], "Die USA Und Der Hund"),
        ("犬は Der Hund Und Die Katzen です", "", [], "犬は Der Hund Und Die Katzen です"),
        ("Der Hund und Die Katzen", "", [], "Der Hund und Die Katzen"),
        ("Die Frau Und Der Hund", "", [], "Die Frau Und Der Hund"),
        ("Der Hund Und Die Katzen", "", ["katze"], "Der Hund Und Die Katzen"),
    ],
)
def test_lines_without_capitals(
    translator: Translator, line: str, prefix: str, required: list[str], expected: str
) -> None:
    src, tgt = translator.tokenizers.src, translator.tokenizers.tgt
    requirements = Requirements([prefix], [required], Glossary((("Frau", "rot"),)))
    lines = check_inputs([line], requirements, TargetText(tgt, translator.max_tokens), first_line=0)
    assert [one.text for one in without_case(lines, src)] == [expected]


@pytest.mark.parametrize(
    ("languages", "others", "is_changed"),
    [
        (("de", "en"), [], True),
        (("en", "az"), [], True),
        (("de", "en"), ["en tr"], True),
        (("tr", "en"), ["de en"], False),
    ],
)
def test_capitals_are_kept_if_it_is_unknown_whether_they_are_turkic(
    translator: Translator,
    monkeypatch: pytest.MonkeyPatch,
    languages: tuple[str, str],
    others: list[str],
    is_changed: bool,
) -> None:
    assert translator.data is not None
    changes = {"src_lang": languages[0], "tgt_lang": languages[1], "language_pairs": others}
    monkeypatch.setattr(translator, "data", translator.data.model_copy(update=changes))
    lines = [line.upper() for line in random_lines(1, seed=1)]
    found = translator.translate(lines, attention=True)[0].attention
    assert found is not None
    assert ("".join(found.src_pieces).isupper()) != is_changed


@pytest.mark.parametrize(("language", "letter"), [("tr", "İ"), ("ga", "t"), ("de", "I")])
def test_translations_of_capitals_have_those_of_the_target_language(
    translator: Translator, monkeypatch: pytest.MonkeyPatch, language: str, letter: str
) -> None:
    assert translator.data is not None
    text = "ein mann liest in tS und tÚ"
    monkeypatch.setattr(translator, "data", translator.data.model_copy(update={"tgt_lang": language}))
    monkeypatch.setattr(Translator, "_search", lambda *_: [[Translation(text, 0.0, [])]])
    [found] = translator.translate(["DER HUND UND DIE KATZEN"])
    assert found.text == upper_case(text, language)
    assert letter in found.text


def test_the_language_determines_lower_case(tmp_path: Path) -> None:
    lines = ["ısı iyi", "ısrar iki", "Irmak", "Ilık", "sıcak ırmak"]
    train_tokenizer(iter(lines * 20), TokenizerConfig(vocab_size=22), tmp_path / "tr.model")
    tokenizer = Tokenizer.load(tmp_path / "tr.model")
    checked = check_inputs(["ISI SICAK IRMAK"], Requirements(), TargetText(tokenizer, 100), first_line=0)
    assert [line.text for line in without_case(checked, tokenizer, "tr")] == ["Isı sıcak ırmak"]


@pytest.mark.parametrize(
    ("language", "term", "text"),
    [
        ("el", "ομάδα", "Η ΟΜΑΔΑ ΕΙΝΑΙ ΕΔΩ"),
        ("el", "ομάδα", "Η Ομάδα είναι εδώ"),
        ("de", "straße", "DIE LANGE STRASSE"),
        ("ga", "t-úll", "AN tÚLL MÓR"),
        ("tr", "ışık", "BU IŞIK"),
        ("hy", "և", "ԱՅՍ ԵՎ ԱՅՆ"),
    ],
)
def test_terms_are_found_in_capitals(language: str, term: str, text: str) -> None:
    assert Glossary.from_mapping({term: "x"}, language).required_terms(text) == ["x"]


def test_capitals_that_the_tokenizer_knows_are_kept(translator: Translator, tmp_path: Path) -> None:
    lines = random_lines(200, seed=1)
    train_tokenizer(iter([*lines, *map(str.upper, lines)]), TokenizerConfig(vocab_size=80), tmp_path / "both.model")
    line = lines[0].upper()
    target = TargetText(translator.tokenizers.tgt, translator.max_tokens)
    checked = check_inputs([line], Requirements(), target, first_line=0)
    assert without_case(checked, Tokenizer.load(tmp_path / "both.model"))[0].text == line
