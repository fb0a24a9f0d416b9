"""The demo corpus: one answer to each sentence, nothing of dev or test in training, no word-by-word way to it."""

import os
import random
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import sacrebleu

from mtformer.data import demo
from mtformer.data import demo_lexicon as lexicon
from mtformer.data.demo_grammar import CASES
from mtformer.errors import DataError


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    files = demo.write_demo(tmp_path_factory.mktemp("demo"))
    return {name: path.read_text(encoding="utf-8").split("\n")[:-1] for name, path in files.items()}


def test_sizes_and_lengths(corpus: dict[str, list[str]]) -> None:
    assert {name: len(lines) for name, lines in corpus.items()} == {
        "train.en": 20_000,
        "train.de": 20_000,
        "dev.en": 500,
        "dev.de": 500,
        "test.en": 500,
        "test.de": 500,
    }
    lengths = {len(line.split()) for lines in corpus.values() for line in lines}
    assert (min(lengths), max(lengths)) == (4, 14)


@pytest.mark.parametrize("language", ["en", "de"])
def test_no_sentence_stands_twice(corpus: dict[str, list[str]], language: str) -> None:
    lines = [line for split in ("train", "dev", "test") for line in corpus[f"{split}.{language}"]]
    assert len(set(lines)) == len(lines)


@pytest.mark.parametrize("language", ["en", "de"])
def test_no_word_of_dev_or_test_is_new(corpus: dict[str, list[str]], language: str) -> None:
    known = {word for line in corpus[f"train.{language}"] for word in words(line)}
    heldout = {word for split in ("dev", "test") for line in corpus[f"{split}.{language}"] for word in words(line)}
    assert heldout <= known
    assert len(known) < 800


def test_one_english_sentence_has_one_german_answer() -> None:
    speaker = demo.Speaker(random.Random(5))
    answers: dict[str, set[str]] = defaultdict(set)
    for _ in range(50_000):
        english, german = speaker.sentence()
        answers[english].add(german)
    assert len(answers) > 20_000
    assert [both for both in answers.items() if len(both[1]) > 1] == []


def test_the_seed_decides_and_nothing_else() -> None:
    script = "from mtformer.data.demo import make_pairs; print(make_pairs(300, 7))"
    runs = [
        subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            check=True,
        ).stdout.decode()
        for hash_seed in ("1", "2")
    ]
    assert runs[0] == runs[1]
    assert runs[0].strip() == str(demo.make_pairs(300, 7))
    assert demo.make_pairs(300, 8) != demo.make_pairs(300, 7)


def test_word_by_word_fails(corpus: dict[str, list[str]]) -> None:
    """A dictionary learned from the corpus itself (IBM model 1), applied word by word, is far from the answer."""
    sources = [words(line) for line in corpus["train.en"][:4000]]
    targets = [words(line) for line in corpus["train.de"][:4000]]
    dictionary = word_dictionary(sources, targets)
    # It is a good dictionary: where German has one form for the word, it is there.
    assert {english: dictionary[english] for english in ("yesterday", "whether", "because", "tired", "they")} == {
        "yesterday": "gestern",
        "whether": "ob",
        "because": "weil",
        "tired": "müde",
        "they": "sie",
    }
    hypotheses = []
    for line in corpus["test.en"]:
        text = " ".join(dictionary[word] for word in words(line))
        hypotheses.append(text[0].upper() + text[1:] + line[-1])
    score = sacrebleu.corpus_bleu(hypotheses, [corpus["test.de"]]).score
    assert 1 < score < 30


def word_dictionary(sources: list[list[str]], targets: list[list[str]], rounds: int = 5) -> dict[str, str]:
    """For each source word the target word that explains it best: IBM model 1 by expectation maximisation."""
    probability: dict[tuple[str, str], float] = defaultdict(lambda: 1.0)
    for _ in range(rounds):
        counts: dict[tuple[str, str], float] = defaultdict(float)
        totals: dict[str, float] = defaultdict(float)
        for source, target in zip(sources, targets, strict=True):
            for word in target:
                weights = [probability[other, word] for other in source]
                whole = sum(weights)
                for other, weight in zip(source, weights, strict=True):
                    counts[other, word] += weight / whole
                    totals[other] += weight / whole
        probability = defaultdict(float, {key: count / totals[key[0]] for key, count in counts.items()})
    best: dict[str, str] = {}
    for (english, german), share in probability.items():
        if english not in best or share > probability[english, best[english]]:
            best[english] = german
    return best


def words(line: str) -> list[str]:
    """Without marks, the first word as it stands within a sentence: nouns and names keep their capital."""
    found = line.rstrip(".?").replace(",", "").split()
    capital = {noun.inflected(case, plural) for noun in lexicon.NOUNS for case in CASES for plural in (False, True)}
    capital |= {name.text for name in lexicon.NAMES} | {"I"}
    return [word if word in capital or at else word[0].lower() + word[1:] for at, word in enumerate(found)]


def test_writing_again_changes_nothing_and_other_files_are_left_alone(tmp_path: Path) -> None:
    files = demo.write_demo(tmp_path, seed=3)
    before = {path: path.read_bytes() for path in files.values()}
    assert demo.write_demo(tmp_path, seed=3) == files
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before

    files["dev.en"].write_text("my own corpus\n")
    files["train.de"].unlink()
    with pytest.raises(DataError, match=r"dev\.en: is there already and is not this demo corpus"):
        demo.write_demo(tmp_path, seed=3)
    assert files["dev.en"].read_text() == "my own corpus\n"
    assert not files["train.de"].exists()


def test_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "demo").write_text("")
    with pytest.raises(DataError, match="demo: is a file; name a folder"):
        demo.write_demo(tmp_path / "demo")
