"""Synthetic English-German corpus for a first training run without data.

The corpus cannot be translated word by word: in German, the verb is in second position or at the end of a clause, its
prefix may be separated, and articles, adjectives and pronouns are inflected for gender and case. Each English sentence
has exactly one German translation. The words are in `demo_lexicon.yaml`.
"""

import random
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import yaml

from mtformer.data.data_report import Pair
from mtformer.errors import DataError
from mtformer.files import write_text

SIZES = {"train": 20_000, "dev": 500, "test": 500}
MAX_WORDS = 12
TENSES = ("present", "present", "past", "past", "can", "should", "will")


class Verb(NamedTuple):
    """A verb of the lexicon; several words in a field are separated by spaces."""

    subjects: str
    base: str
    third: str
    past: str
    infinitive: str
    german_third: str
    perfect: str
    government: str = ""
    """German preposition, if any, and case of the object; empty for intransitive verbs."""
    objects: str = ""
    complements: str = ""


class Nominal(NamedTuple):
    """A noun phrase, pronoun or name with all its forms."""

    english: str
    english_object: str
    german: Sequence[str]
    """German nominative, accusative and dative."""
    person: int
    """Index of the verb form: 0 for I, 1 for he, 2 for we."""
    pronoun: str
    """Key of the pronoun that refers to it."""
    word: str
    kinds: str = "person"

    def german_object(self, government: str) -> str:
        """Return the German form required by `government`, which is a case, or a preposition and a case."""
        *preposition, case = government.split()
        return _join(*preposition, self.german[("nom", "acc", "dat").index(case)])


class Clause(NamedTuple):
    """A clause in English, and its German parts, whose order depends on the sentence."""

    english: str
    question: str
    subject: str
    finite: str
    middle: str
    end: str
    """German verb prefix, or a participle or infinitive followed by a space."""

    def german(self, verb: str = "second") -> str:
        """Return the German clause with the finite verb in `first`, `second` or `last` position."""
        if verb == "last":
            return _join(self.subject, self.middle, self.end + self.finite)
        start = (self.finite, self.subject) if verb == "first" else (self.subject, self.finite)
        return _join(*start, self.middle, self.end.strip())


def write_demo(folder: Path, seed: int = 1) -> dict[str, Path]:
    """Write train, dev and test sets as .en and .de files to `folder` and return the files by name (`train.en`, ...).

    Each line is a sentence, and no sentence occurs twice. Existing files with other contents are not overwritten.
    """
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder}: is a file; give a folder for the demo corpus")
    pairs = make_pairs(sum(SIZES.values()), seed)
    files: dict[Path, str] = {}
    for split, size in SIZES.items():
        part, pairs = pairs[:size], pairs[size:]
        for side, language in enumerate(("en", "de")):
            files[folder / f"{split}.{language}"] = "".join(pair[side] + "\n" for pair in part)
    for path, text in files.items():
        if path.exists() and (not path.is_file() or path.read_bytes() != text.encode()):
            raise DataError(f"{path}: exists and is not part of this demo corpus; remove it or choose another folder")
    for path, text in files.items():
        write_text(path, text)
    return {path.name: path for path in files}


def make_pairs(count: int, seed: int) -> list[Pair]:
    """Return `count` sentence pairs without repeated English or German sentences."""
    grammar = Grammar(seed)
    pairs: dict[str, str] = {}
    seen: set[str] = set()
    while len(pairs) < count:
        english, german = grammar.sentence()
        if len(english.split()) <= MAX_WORDS and english not in pairs and german not in seen:
            pairs[english] = german
            seen.add(german)
    return list(pairs.items())


class Grammar:
    """Generates random sentence pairs from the words in `demo_lexicon.yaml`."""

    def __init__(self, seed: int) -> None:
        text = resources.files(__package__).joinpath("demo_lexicon.yaml").read_text(encoding="utf-8")
        self._random, self._words = random.Random(seed), yaml.safe_load(text)
        self._verbs = [Verb(kinds, *row) for kinds, rows in self._words["verbs"].items() for row in rows]
        self._reporting_verbs = [Verb("person", *row) for row in self._words["reporting_verbs"]]
        self._pronouns: dict[str, Nominal] = {}
        for name, row in self._words["pronouns"].items():
            english, english_object, *german, person = row.split()
            self._pronouns[name] = Nominal(english, english_object, german, int(person), name, name.replace("we", "I"))
        self._people = [self._pronouns[name] for name in ("I", "we", "he", "she", "they")]
        self._people += [Nominal(name, name, [name] * 3, 1, he, name) for name, he in self._words["names"].items()]

    def sentence(self) -> Pair:
        """Return a random sentence pair."""
        kinds = [self._simple, self._joined, self._condition, self._contrast]
        english, german = self._random.choices(kinds, weights=[5, 3, 1, 1])[0]()
        for apart, contracted in self._words["contractions"].items():
            german = german.replace(f" {apart} ", f" {contracted} ")
        return english[0].upper() + english[1:], german[0].upper() + german[1:]

    def _simple(self) -> Pair:
        """Return a simple sentence (Heute macht der Mann die Tür auf.)."""
        tense, times = self._random.choice(TENSES), self._words["times"]
        clause, kind = self._clause(tense), self._random.random()
        if kind < 0.2:
            return f"{clause.question}?", f"{clause.german('first')}?"
        if kind < 0.5:
            return f"{clause.english}.", f"{clause.german()}."
        time, german_time = self._random.choice(list(times.get(tense, times["modal"]).items()))
        return f"{time} {clause.english}.", f"{german_time} {clause.german('first')}."

    def _joined(self) -> Pair:
        """Return a sentence with a that-clause or because-clause (Ich hoffe, dass der Mann die Tür aufmacht.)."""
        main, that, dass = self._clause(), "because", "weil"
        if self._random.random() < 0.5:
            main, that, dass = self._clause("present", self._random.choice(self._reporting_verbs)), "that", "dass"
        second = self._clause()
        return f"{main.english} {that} {second.english}.", f"{main.german()}, {dass} {second.german('last')}."

    def _condition(self) -> Pair:
        """Return a conditional sentence (Wenn der Hund müde ist, bleibt er im Garten.)."""
        verb = self._random.choice([verb for verb in self._verbs if not verb.objects])
        subject = self._nominal(verb.subjects)
        state = self._state(subject, "mood")
        main = self._clause(self._random.choice(["present", "can", "will"]), verb, self._pronouns[subject.pronoun])
        return f"if {state.english}, {main.english}.", f"wenn {state.german('last')}, {main.german('first')}."

    def _contrast(self) -> Pair:
        """Return two clauses joined by "but" (Der Schlüssel ist neu, aber ich kann ihn nicht finden.)."""
        thing = self._noun_phrase("thing food")
        verbs = [verb for verb in self._verbs if verb.government == "acc" and not verb.complements]
        verb = self._random.choice([verb for verb in verbs if set(verb.objects.split()) & set(thing.kinds.split())])
        state, main = self._state(thing, thing.kinds), self._clause(verb=verb, thing=self._pronouns[thing.pronoun])
        return f"{state.english}, but {main.english}.", f"{state.german()}, aber {main.german()}."

    def _clause(
        self, tense: str = "", verb: Verb | None = None, subject: Nominal | None = None, thing: Nominal | None = None
    ) -> Clause:
        """Return a clause with the object and complement that its verb requires; missing arguments are random."""
        tense, verb = tense or self._random.choice(TENSES), verb or self._random.choice(self._verbs)
        subject = subject or self._nominal(verb.subjects)
        person, base, forms = subject.person, verb.base, self._words["auxiliaries"]
        prefix, _, infinitive = verb.infinitive.rpartition("|")
        rest, before, after = "", "", ""
        if verb.objects:
            thing = thing or self._nominal(verb.objects, subject.word)
            rest, german = thing.english_object, thing.german_object(verb.government)
            before, after = ("", german) if " " in verb.government else (german, "")
        if verb.complements:
            name = self._random.choice(verb.complements.split())
            english, government, kinds = self._words["prepositions"][name]
            nominal = self._nominal(kinds, subject.word)
            rest, german = _join(rest, english, nominal.english_object), nominal.german_object(government)
            # A dative without a preposition precedes the accusative.
            before, after = (_join(german, before), after) if name == "recipient" else (before, german)
        if tense == "present":
            auxiliary, positive = ("does", verb.third) if person == 1 else ("do", base)
            finite, end = (infinitive[:-1], verb.german_third, infinitive)[person], prefix
        elif tense == "past":
            have, participle = verb.perfect.split()
            auxiliary, positive, finite, end = "did", verb.past, forms[have][person], f"{participle} "
        else:
            auxiliary, positive, finite, end = tense, f"{tense} {base}", forms[tense][person], prefix + infinitive + " "
        question = _join(auxiliary, subject.english, base, rest)
        # German negates indefinite articles with kein, which this grammar does not generate.
        if self._random.random() < 0.2 and not {"a", "an"} & set(rest.split()):
            positive = f"{auxiliary} not {base}".replace("can not", "cannot")
            question, before = _join(auxiliary, subject.english, "not", base, rest), _join(before, "nicht")
        english = _join(subject.english, positive, rest)
        return Clause(english, question, subject.german[0], finite, _join(before, after), end)

    def _state(self, subject: Nominal, adjectives: str) -> Clause:
        """Return a clause that describes the subject with one of the adjectives."""
        rows = [row.split() for _, row in self._rows("adjectives", adjectives)]
        english, german = self._random.choice([row for row in rows if row[0] not in subject.english.split()])
        be, ist = (forms[subject.person] for forms in self._words["be"])
        return Clause(f"{subject.english} {be} {english}", "", subject.german[0], ist, german, "")

    def _nominal(self, kinds: str, other_than: str = "") -> Nominal:
        """Return a pronoun, name or noun phrase of one of the kinds, excluding the word `other_than`."""
        while True:
            is_name = "person" in kinds and self._random.random() < 0.4
            nominal = self._random.choice(self._people) if is_name else self._noun_phrase(kinds)
            if nominal.word != other_than:
                return nominal

    def _noun_phrase(self, among: str) -> Nominal:
        kinds, row = self._random.choice(self._rows("nouns", among))
        word, plural, german, german_plural, gender = row.split()
        pronoun = {"m": "he", "f": "she"}[gender] if "person" in kinds else f"it {gender}"
        noun, forms, person = word, [german] * 3, 1
        if self._random.random() < 0.3:
            noun, forms, person = plural, [german_plural, german_plural, german_plural.removesuffix("n") + "n"], 2
            pronoun, gender = "they", "p"
        determiner, stem, declension = self._random.choice(self._words["determiners"][person - 1]).split()
        endings = [pair.split("+") for pair in self._words["declensions"][declension][gender].split()]
        if self._random.random() < 0.3:
            adjective, german = self._random.choice(self._rows("adjectives", kinds))[1].split()
            noun = f"{adjective} {noun}"
            forms = [f"{german.removesuffix('e')}{endings[case][1]} {form}" for case, form in enumerate(forms)]
        forms = [f"{stem}{endings[case][0]} {form}" for case, form in enumerate(forms)]
        english = f"an {noun}" if determiner == "a" and noun[0] in "aeiou" else f"{determiner} {noun}"
        return Nominal(english, english, forms, person, pronoun, word, kinds)

    def _rows(self, table: str, among: str) -> list[Pair]:
        """Return (kinds, row) for each row of a table that has at least one of these kinds."""
        groups = self._words[table].items()
        return [(kinds, row) for kinds, rows in groups if set(kinds.split()) & set(among.split()) for row in rows]


def _join(*parts: str) -> str:
    return " ".join(part for part in parts if part)
