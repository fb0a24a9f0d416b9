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
"""Number of sentence pairs of each set."""

MAX_WORDS = 12
"""Maximum number of words of an English sentence."""

TENSES = ("present", "present", "past", "past", "can", "should", "will")
"""Tenses and modal verbs; frequent ones are listed twice."""

CASES = ("nom", "acc", "dat")
"""German cases, in the order of `Nominal.german`."""

THIRD_PERSON = 1
"""Index of the verb forms of he, she, it and singular nouns."""

PLURAL = 2
"""Index of the verb forms of we, they and plural nouns."""


class Verb(NamedTuple):
    """A verb of the lexicon; several words in a field are separated by spaces."""

    subjects: str
    """Kinds of subjects."""
    base: str
    third: str
    past: str
    infinitive: str
    """German infinitive, with a bar after a separable prefix."""
    german_third: str
    perfect: str
    """German auxiliary and participle."""
    government: str = ""
    """German preposition, if any, and case of the object; empty for intransitive verbs."""
    objects: str = ""
    """Kinds of objects."""
    complements: str = ""
    """Keys of `prepositions`."""


class Nominal(NamedTuple):
    """A noun phrase, pronoun or name with all its forms."""

    english: str
    english_object: str
    german: Sequence[str]
    """German nominative, accusative and dative."""
    person: int
    """Index of the verb form: 0 for I, `THIRD_PERSON`, or `PLURAL`."""
    pronoun: str
    """Key of the pronoun that refers to it."""
    word: str
    """Dictionary form, which does not occur twice in a clause."""
    kinds: str = "person"

    def german_object(self, government: str) -> str:
        """Return the German form required by `government`, which is a case, or a preposition and a case."""
        *preposition, case = government.split()
        form = self.german[CASES.index(case)]
        return _join(*preposition, form)


class VerbForms(NamedTuple):
    """Forms of a verb in a clause."""

    auxiliary: str
    """English auxiliary of questions and negated clauses."""
    positive: str
    """English verb of a clause without negation."""
    finite: str
    """German finite verb."""
    end: str
    """See `Clause.end`."""


class Complements(NamedTuple):
    """Object and prepositional phrase of a verb."""

    english: str
    before: str
    """German words before "nicht"."""
    after: str
    """German words after "nicht"."""


class Clause(NamedTuple):
    """A clause in English, and its German parts, whose order depends on the sentence."""

    english: str
    """English clause with the subject in front."""
    question: str
    """English question."""
    subject: str
    """German subject."""
    finite: str
    """German finite verb."""
    middle: str
    """German words between the verb in second position and its end."""
    end: str
    """German verb prefix, or a participle or infinitive followed by a space."""

    def german(self, verb: str = "second") -> str:
        """Return the German clause with the finite verb in `first`, `second` or `last` position."""
        if verb == "last":
            return _join(self.subject, self.middle, self.end + self.finite)
        rest = _join(self.middle, self.end.strip())
        if verb == "first":
            return _join(self.finite, self.subject, rest)
        return _join(self.subject, self.finite, rest)


def write_demo(folder: Path, seed: int = 1) -> dict[str, Path]:
    """Write train, dev and test sets as .en and .de files to `folder` and return the files by name (`train.en`, ...).

    Each line is a sentence, and no sentence occurs twice. Existing files with other contents are not overwritten.
    """
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder}: is a file; give a folder for the demo corpus")

    pairs = make_pairs(sum(SIZES.values()), seed)
    files: dict[Path, str] = {}
    start = 0
    for name, size in SIZES.items():
        end = start + size
        set_pairs = pairs[start:end]
        english_lines = [f"{english}\n" for english, _ in set_pairs]
        german_lines = [f"{german}\n" for _, german in set_pairs]
        files[folder / f"{name}.en"] = "".join(english_lines)
        files[folder / f"{name}.de"] = "".join(german_lines)
        start = end

    for path, text in files.items():
        is_same = path.is_file() and path.read_bytes() == text.encode()
        if path.exists() and not is_same:
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
        is_new = english not in pairs and german not in seen
        if is_new and len(english.split()) <= MAX_WORDS:
            pairs[english] = german
            seen.add(german)
    return list(pairs.items())


class Grammar:
    """Generates random sentence pairs from the words in `demo_lexicon.yaml`."""

    def __init__(self, seed: int) -> None:
        lexicon = resources.files(__package__).joinpath("demo_lexicon.yaml")
        text = lexicon.read_text(encoding="utf-8")
        self._random = random.Random(seed)
        self._words = yaml.safe_load(text)

        self._verbs: list[Verb] = []
        for kinds, rows in self._words["verbs"].items():
            self._verbs += [Verb(kinds, *row) for row in rows]
        reporting_rows = self._words["reporting_verbs"]
        self._reporting_verbs = [Verb("person", *row) for row in reporting_rows]

        self._pronouns: dict[str, Nominal] = {}
        for name, row in self._words["pronouns"].items():
            english, english_object, *german, person = row.split()
            word = name.replace("we", "I")  # "I" and "we" do not occur in one clause
            pronoun = Nominal(english, english_object, german, int(person), name, word)
            self._pronouns[name] = pronoun

        personal_pronouns = ("I", "we", "he", "she", "they")
        self._people = [self._pronouns[name] for name in personal_pronouns]
        for name, pronoun_name in self._words["names"].items():
            german = [name] * len(CASES)
            person_name = Nominal(name, name, german, THIRD_PERSON, pronoun_name, name)
            self._people.append(person_name)

    def sentence(self) -> Pair:
        """Return a random sentence pair."""
        kinds = [self._simple, self._joined, self._condition, self._contrast]
        (make_sentence,) = self._random.choices(kinds, weights=[5, 3, 1, 1])
        english, german = make_sentence()
        for words, contraction in self._words["contractions"].items():
            german = german.replace(f" {words} ", f" {contraction} ")
        return _capitalized(english), _capitalized(german)

    def _simple(self) -> Pair:
        """Return a simple sentence (Heute macht der Mann die Tür auf.)."""
        tense = self._random.choice(TENSES)
        clause = self._clause(tense)
        kind = self._random.random()
        if kind < 0.2:
            return f"{clause.question}?", f"{clause.german('first')}?"
        if kind < 0.5:
            return f"{clause.english}.", f"{clause.german()}."

        times = self._words["times"]
        translations = times.get(tense, times["modal"])
        choices = list(translations.items())
        time, german_time = self._random.choice(choices)
        english = f"{time} {clause.english}."
        german = f"{german_time} {clause.german('first')}."
        return english, german

    def _joined(self) -> Pair:
        """Return a sentence with a that-clause or because-clause (Ich hoffe, dass der Mann die Tür aufmacht.)."""
        main = self._clause()
        conjunction = "because"
        german_conjunction = "weil"
        if self._random.random() < 0.5:
            verb = self._random.choice(self._reporting_verbs)
            main = self._clause("present", verb)
            conjunction = "that"
            german_conjunction = "dass"

        clause = self._clause()
        english = f"{main.english} {conjunction} {clause.english}."
        german = f"{main.german()}, {german_conjunction} {clause.german('last')}."
        return english, german

    def _condition(self) -> Pair:
        """Return a conditional sentence (Wenn der Hund müde ist, bleibt er im Garten.)."""
        intransitive = [verb for verb in self._verbs if not verb.objects]
        verb = self._random.choice(intransitive)
        subject = self._nominal(verb.subjects)
        state = self._state(subject, "mood")
        tense = self._random.choice(["present", "can", "will"])
        pronoun = self._pronouns[subject.pronoun]
        main = self._clause(tense, verb, pronoun)
        english = f"if {state.english}, {main.english}."
        german = f"wenn {state.german('last')}, {main.german('first')}."
        return english, german

    def _contrast(self) -> Pair:
        """Return two clauses joined by "but" (Der Schlüssel ist neu, aber ich kann ihn nicht finden.)."""
        thing = self._noun_phrase("thing food")
        possible_verbs: list[Verb] = []
        for verb in self._verbs:
            takes_only_accusative = verb.government == "acc" and not verb.complements
            if takes_only_accusative and _has_common_kind(verb.objects, thing.kinds):
                possible_verbs.append(verb)
        verb = self._random.choice(possible_verbs)
        state = self._state(thing, thing.kinds)
        pronoun = self._pronouns[thing.pronoun]
        main = self._clause(verb=verb, thing=pronoun)
        english = f"{state.english}, but {main.english}."
        german = f"{state.german()}, aber {main.german()}."
        return english, german

    def _clause(
        self, tense: str = "", verb: Verb | None = None, subject: Nominal | None = None, thing: Nominal | None = None
    ) -> Clause:
        """Return a clause with the object and complement that its verb requires; missing arguments are random."""
        tense = tense or self._random.choice(TENSES)
        verb = verb or self._random.choice(self._verbs)
        subject = subject or self._nominal(verb.subjects)
        complements = self._complements(verb, subject, thing)
        forms = self._verb_forms(verb, tense, subject.person)

        english_verb = forms.positive
        question_start = _join(forms.auxiliary, subject.english)
        before = complements.before
        # German negates indefinite articles with kein, which this grammar does not generate.
        is_negated = self._random.random() < 0.2
        has_article = not {"a", "an"}.isdisjoint(complements.english.split())
        if is_negated and not has_article:
            english_verb = f"{forms.auxiliary} not {verb.base}".replace("can not", "cannot")
            question_start = _join(question_start, "not")
            before = _join(before, "nicht")

        return Clause(
            english=_join(subject.english, english_verb, complements.english),
            question=_join(question_start, verb.base, complements.english),
            subject=subject.german[0],
            finite=forms.finite,
            middle=_join(before, complements.after),
            end=forms.end,
        )

    def _complements(self, verb: Verb, subject: Nominal, thing: Nominal | None) -> Complements:
        """Return the object and prepositional phrase of a verb; `thing` is the object (None: random)."""
        english = ""
        before = ""
        after = ""
        if verb.objects:
            direct_object = thing or self._nominal(verb.objects, subject.word)
            english = direct_object.english_object
            german = direct_object.german_object(verb.government)
            has_preposition = " " in verb.government
            if has_preposition:
                after = german
            else:
                before = german

        if verb.complements:
            name = self._random.choice(verb.complements.split())
            preposition, government, kinds = self._words["prepositions"][name]
            nominal = self._nominal(kinds, subject.word)
            english = _join(english, preposition, nominal.english_object)
            german = nominal.german_object(government)
            if name == "recipient":
                before = _join(german, before)  # a dative without a preposition precedes the accusative
            else:
                after = german
        return Complements(english, before, after)

    def _verb_forms(self, verb: Verb, tense: str, person: int) -> VerbForms:
        """Return the forms of a verb in a tense, or with a modal verb."""
        auxiliaries = self._words["auxiliaries"]
        prefix, _, infinitive = verb.infinitive.rpartition("|")
        if tense == "present":
            first_person = infinitive[:-1]
            finite_forms = [first_person, verb.german_third, infinitive]
            finite = finite_forms[person]
            if person == THIRD_PERSON:
                return VerbForms("does", verb.third, finite, prefix)
            return VerbForms("do", verb.base, finite, prefix)
        if tense == "past":
            auxiliary, participle = verb.perfect.split()
            finite = auxiliaries[auxiliary][person]
            return VerbForms("did", verb.past, finite, f"{participle} ")

        # A modal verb
        positive = f"{tense} {verb.base}"
        finite = auxiliaries[tense][person]
        end = f"{prefix}{infinitive} "
        return VerbForms(tense, positive, finite, end)

    def _state(self, subject: Nominal, adjectives: str) -> Clause:
        """Return a clause that describes the subject with one of the adjectives."""
        used_words = subject.english.split()
        unused: list[Pair] = []
        for _, row in self._rows("adjectives", adjectives):
            english_adjective, german_adjective = row.split()
            if english_adjective not in used_words:
                unused.append((english_adjective, german_adjective))
        english, german = self._random.choice(unused)

        english_be, german_be = self._words["be"]
        english_clause = f"{subject.english} {english_be[subject.person]} {english}"
        return Clause(
            english=english_clause,
            question="",
            subject=subject.german[0],
            finite=german_be[subject.person],
            middle=german,
            end="",
        )

    def _nominal(self, kinds: str, other_than: str = "") -> Nominal:
        """Return a pronoun, name or noun phrase of one of the kinds, excluding the word `other_than`."""
        while True:
            if "person" in kinds and self._random.random() < 0.4:
                nominal = self._random.choice(self._people)
            else:
                nominal = self._noun_phrase(kinds)
            if nominal.word != other_than:
                return nominal

    def _noun_phrase(self, possible_kinds: str) -> Nominal:
        """Return a noun of one of the kinds with a determiner and possibly an adjective."""
        nouns = self._rows("nouns", possible_kinds)
        kinds, row = self._random.choice(nouns)
        singular, plural, german_singular, german_plural, gender = row.split()
        english_noun = singular
        german_nouns = [german_singular] * len(CASES)
        person = THIRD_PERSON
        pronoun = f"it {gender}"
        if "person" in kinds:
            pronoun = {"m": "he", "f": "she"}[gender]
        if self._random.random() < 0.3:
            english_noun = plural
            german_dative = german_plural.removesuffix("n") + "n"
            german_nouns = [german_plural, german_plural, german_dative]
            person = PLURAL
            pronoun = "they"
            gender = "p"

        determiners = self._words["determiners"][person - THIRD_PERSON]
        determiner, stem, declension = self._random.choice(determiners).split()
        declined = self._words["declensions"][declension][gender]
        endings = [pair.split("+") for pair in declined.split()]
        if self._random.random() < 0.3:
            _, adjectives = self._random.choice(self._rows("adjectives", kinds))
            english_adjective, german_adjective = adjectives.split()
            adjective_stem = german_adjective.removesuffix("e")
            english_noun = f"{english_adjective} {english_noun}"
            for case, (_, ending) in enumerate(endings):
                german_nouns[case] = f"{adjective_stem}{ending} {german_nouns[case]}"

        german: list[str] = []
        for (ending, _), german_noun in zip(endings, german_nouns, strict=True):
            german.append(f"{stem}{ending} {german_noun}")
        if determiner == "a" and english_noun[0] in "aeiou":
            determiner = "an"
        english = f"{determiner} {english_noun}"
        return Nominal(english, english, german, person, pronoun, singular, kinds)

    def _rows(self, table: str, possible_kinds: str) -> list[Pair]:
        """Return (kinds, row) for each row of a table that has at least one of these kinds."""
        pairs: list[Pair] = []
        for kinds, rows in self._words[table].items():
            if _has_common_kind(kinds, possible_kinds):
                pairs += [(kinds, row) for row in rows]
        return pairs


def _has_common_kind(kinds: str, other_kinds: str) -> bool:
    return not set(kinds.split()).isdisjoint(other_kinds.split())


def _capitalized(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]


def _join(*parts: str) -> str:
    """Join the parts that are not empty with spaces."""
    return " ".join(part for part in parts if part)
