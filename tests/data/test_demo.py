"""The demo corpus: files, disjoint splits, correct German, and failure of word-by-word translation."""

import os
import subprocess
import sys
from collections import Counter
from importlib import resources
from pathlib import Path

import pytest
import sacrebleu
import yaml

from mtformer.data import demo
from mtformer.errors import DataError

LEXICON = yaml.safe_load(resources.files("mtformer.data").joinpath("demo_lexicon.yaml").read_text(encoding="utf-8"))
GENDERS: dict[str, set[str]] = {}
"""Genders of each German noun; "p" for the plural."""
for row in (row.split() for rows in LEXICON["nouns"].values() for row in rows):
    for form, gender in ((row[2], row[4]), (row[3], "p"), (row[3].removesuffix("n") + "n", "p")):
        GENDERS.setdefault(form, set()).add(gender)
ADJECTIVES = {row.split()[1].removesuffix("e") for rows in LEXICON["adjectives"].values() for row in rows}
VERBS = [row for rows in LEXICON["verbs"].values() for row in rows] + LEXICON["reporting_verbs"]
PREFIXES = {row[3].rpartition("|")[0] for row in VERBS}
STEMS = {row[3].rpartition("|")[2] for row in VERBS}
FINITE = STEMS | {stem[:-1] for stem in STEMS} | {row[4] for row in VERBS} | {"bin", "ist", "sind"}
FINITE |= {form for forms in LEXICON["auxiliaries"].values() for form in forms}
LAST = {prefix + form for prefix in PREFIXES for form in FINITE}
SHORT_SUBJECTS = {*LEXICON["names"]} | {row.split()[2] for row in LEXICON["pronouns"].values()}
TIMES = {german for times in LEXICON["times"].values() for german in times.values()}
# Each determiner with the ending of the following adjective; possessives are inflected like "ein".
ENDINGS = {
    "m": "der-e den-en dem-en dieser-e diesen-en diesem-en ein-er einen-en einem-en",
    "f": "die-e der-en diese-e dieser-en eine-e einer-en",
    "n": "das-e dem-en dieses-e diesem-en ein-es einem-en",
    "p": "die-en den-en diese-en diesen-en eine-en einen-en",
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    files = demo.write_demo(tmp_path_factory.mktemp("demo"))
    return {name: path.read_text(encoding="utf-8").split("\n")[:-1] for name, path in files.items()}


@pytest.mark.parametrize("language", ["en", "de"])
def test_no_sentence_occurs_twice_and_no_word_is_unknown(corpus: dict[str, list[str]], language: str) -> None:
    train, dev, test = (corpus[f"{split}.{language}"] for split in ("train", "dev", "test"))
    assert (len(train), len(dev), len(test)) == (20_000, 500, 500)
    assert len({*train, *dev, *test}) == 21_000
    assert {len(line.split()) for line in train} <= {*range(2, 17)}
    known = {word for line in train for word in words(line)}
    assert {word for line in dev + test for word in words(line)} <= known
    assert 250 < len(known) < 600


def test_each_english_sentence_has_one_translation() -> None:
    grammar = demo.Grammar(5)
    pairs = {grammar.sentence() for _ in range(20_000)}
    assert len(pairs) == len({english for english, _ in pairs}) > 10_000


def test_the_corpus_depends_on_the_seed_only() -> None:
    script = "from mtformer.data.demo import make_pairs; print(ascii(make_pairs(300, 7)))"
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    output = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=True).stdout
    assert output.decode().strip() == ascii(demo.make_pairs(300, 7))
    assert demo.make_pairs(300, 8) != demo.make_pairs(300, 7)


def test_german_is_correct(corpus: dict[str, list[str]]) -> None:
    assert [line for line in corpus["dev.de"] + corpus["train.de"][:3000] if not is_correct(line)] == []


def test_incorrect_german_is_detected() -> None:
    order = (
        "Heute die Frau kauft das Buch.",
        "Ich hoffe, dass sie kauft das Buch.",
        "Wenn er krank ist, er bleibt hier.",
    )
    agreement = "Das Mann kauft die Uhr.", "Sie kauft ein neuer Buch.", "Sie geht ins Küche."
    assert not any(is_correct(line) for line in order + agreement)


def test_word_by_word_translation_fails(corpus: dict[str, list[str]]) -> None:
    """Even with the best of six candidate translations of each word, the source word order gives a low score."""
    english, german, both = Counter[str](), Counter[str](), Counter[tuple[str, str]]()
    for source, target in zip(corpus["train.en"][:3000], corpus["train.de"][:3000], strict=True):
        sources, targets = {*words(source)}, {*words(target)}
        english.update(sources)
        german.update(targets)
        both.update((one, other) for one in sources for other in targets)
    dictionary: dict[str, list[str]] = {word: [] for word in english}
    for one, other in sorted(both, key=lambda pair: -both[pair] / (english[pair[0]] + german[pair[1]])):
        dictionary[one].append(other)
    likeliest = {"yesterday": "gestern", "because": "weil", "tired": "müde", "city": "Stadt", "arrived": "angekommen"}
    assert {word: dictionary[word][0] for word in likeliest} == likeliest
    scores = {}
    for choices in (1, 6):
        translations = []
        for line, reference in zip(corpus["test.en"], corpus["test.de"], strict=True):
            ranked = [dictionary[word][:choices] for word in words(line)]
            chosen = [next((other for other in row if other in words(reference)), row[0]) for row in ranked]
            translations.append(f"{chosen[0][0].upper()}{' '.join(chosen)[1:]}{line[-1]}")
        scores[choices] = sacrebleu.corpus_bleu(translations, [corpus["test.de"]]).score
    assert 1 < scores[1] < 20 < scores[6] < 40


def test_other_files_are_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "SIZES", {"train": 20, "dev": 5, "test": 5})
    files = demo.write_demo(tmp_path, seed=3)
    before = {path: path.read_bytes() for path in files.values()}
    assert demo.write_demo(tmp_path, seed=3) == files
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before

    files["dev.en"].write_text("my own corpus\n")
    files["train.de"].unlink()
    with pytest.raises(DataError, match=r"dev\.en: exists and is not part of this demo corpus"):
        demo.write_demo(tmp_path, seed=3)
    assert files["dev.en"].read_text() == "my own corpus\n"
    assert not files["train.de"].exists()
    with pytest.raises(DataError, match=r"dev\.en: is a file; give a folder"):
        demo.write_demo(files["dev.en"])


def words(line: str) -> list[str]:
    """Return the words of a line without punctuation; the first one is capitalized as inside a sentence."""
    first, *others = line.rstrip(".?").replace(",", "").split()
    return [first if first in {*LEXICON["names"], "I", "On"} else first.lower(), *others]


def is_correct(german: str) -> bool:
    """Check the position of the finite verb in each clause, and agreement in each noun phrase."""
    condition, question = german.startswith("Wenn"), german.endswith("?")
    first, *others = german.rstrip(".?").split(", ")
    clauses = [words(first), *(clause.split() for clause in others)]
    place = "last" if condition else "first" if question else "second"
    for clause in clauses:
        if clause[0] in ("wenn", "dass", "weil", "aber"):
            place = "second" if clause[0] == "aber" else "last"
            clause = clause[1:]
        elif condition:
            place = "first"
        if not (verb_is_at(clause, place) and all(agrees(clause[:end]) for end in noun_ends(clause))):
            return False
    return True


def verb_is_at(clause: list[str], place: str) -> bool:
    if place == "last":
        return clause[-1] in LAST
    time = next((time.split() for time in TIMES if " ".join(clause).startswith(time)), [])
    subject = 1 if clause[0] in SHORT_SUBJECTS else next(iter(noun_ends(clause)), 1)
    return clause[0 if place == "first" else len(time) or subject] in FINITE


def noun_ends(clause: list[str]) -> list[int]:
    return [at + 1 for at, word in enumerate(clause) if word in GENDERS]


def agrees(words_before: list[str]) -> bool:
    """Check that determiner and adjective agree with the gender of the noun in the final noun phrase."""
    determiner, adjective, noun = ["", *words_before][-3:]
    ending = next((adjective.removeprefix(stem) for stem in ADJECTIVES if adjective.startswith(stem)), None)
    if ending is None:
        determiner = adjective
    determiner = {short: long.split()[1] for long, short in LEXICON["contractions"].items()}.get(determiner, determiner)
    for possessive in ("mein", "sein", "ihr", "unser"):
        determiner = determiner.replace(possessive, "ein")
    allowed = [form.split("-") for gender in GENDERS[noun] for form in ENDINGS[gender].split()]
    return any(determiner == other and ending in (None, right) for other, right in allowed)
