"""The demo corpus: English and German sentences of a small grammar of ours, for a first training without any data.

A word-by-word answer fails on it: German verbs go to the end of the clause or before the subject, and articles,
adjectives and pronouns depend on the gender of a noun. Each English sentence has exactly one German answer.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from mtformer.data import demo_lexicon as lexicon
from mtformer.data.demo_grammar import (
    BE,
    MODALS,
    Adjective,
    Clause,
    Nominal,
    NounPhrase,
    Pair,
    Preposition,
    Prepositional,
    Verb,
    conditioned,
    contrasted,
    joined,
    question,
    statement,
)
from mtformer.errors import DataError
from mtformer.rundir import write_text

SIZES = {"train": 20_000, "dev": 500, "test": 500}
MIN_WORDS, MAX_WORDS = 4, 14

Item = TypeVar("Item")
# Determiners and how often they are said, in the singular and in the plural.
Weights = tuple[dict[str, int], dict[str, int]]

DEFINITE = {"the": 9, "this": 2, "my": 1, "his": 1, "her": 1, "our": 1, "their": 1}
DEFINITE_ONLY: Weights = (DEFINITE, DEFINITE)
# With these a negation is nicht, with a and with nothing it is kein; many and numbers are not negated.
NO_QUANTITIES: Weights = (DEFINITE | {"a": 5}, DEFINITE | {"": 4})
ANY: Weights = (DEFINITE | {"a": 5}, DEFINITE | {"": 4, "two": 1, "three": 1, "many": 1})
TENSES = {"present": 9, "past": 6, "can": 1, "must": 1, "should": 1, "want": 1, "will": 1}
NOT_PAST = {tense: weight for tense, weight in TENSES.items() if tense != "past"}
NOT_MODAL = {tense: TENSES[tense] for tense in ("present", "past")}


def write_demo(folder: Path, seed: int = 1) -> dict[str, Path]:
    """Writes train, dev and test, each as .en and .de with one sentence a line, into `folder`.

    Returns:
        The files by name (`train.en`, ...). No sentence of dev or test, English or German, stands in another file.

    Raises:
        DataError: `folder` is a file, or one of the files is there already and holds something else; nothing is
            written then.
    """
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder}: is a file; name a folder for the demo corpus")
    pairs = make_pairs(sum(SIZES.values()), seed)
    files: dict[Path, str] = {}
    for split, size in SIZES.items():
        part, pairs = pairs[:size], pairs[size:]
        for side, language in enumerate(("en", "de")):
            files[folder / f"{split}.{language}"] = "".join(pair[side] + "\n" for pair in part)
    for path, text in files.items():
        if path.exists() and (not path.is_file() or path.read_bytes() != text.encode()):
            raise DataError(f"{path}: is there already and is not this demo corpus; remove it or name another folder")
    for path, text in files.items():
        write_text(path, text)
    return {path.name: path for path in files}


def make_pairs(count: int, seed: int) -> list[Pair]:
    """`count` sentence pairs; no English and no German sentence stands in two of them."""
    speaker = Speaker(random.Random(seed))
    answers: dict[str, str] = {}
    said: set[str] = set()
    while len(answers) < count:
        english, german = speaker.sentence()
        assert answers.get(english, german) == german, f"two answers to '{english}'"
        fits = all(MIN_WORDS <= len(text.split()) <= MAX_WORDS for text in (english, german))
        if fits and german not in said:
            answers[english] = german
            said.add(german)
    return list(answers.items())


class Speaker:
    """Chooses what is said; how it is said is the grammar's matter."""

    def __init__(self, generator: random.Random) -> None:
        self._random = generator

    def sentence(self) -> Pair:
        """One finished sentence in both languages."""
        kinds: dict[Callable[[], Pair], int] = {
            self._statement: 30,
            self._question: 12,
            self._description: 10,
            self._reason: 14,
            self._report: 14,
            self._condition: 8,
            self._contrast: 8,
            self._reason_in_thing: 8,
        }
        return self._weighted(kinds)()

    # Kinds of sentence.

    def _statement(self) -> Pair:
        return statement(self._clause(0.45, time_first=self._chance(0.5)))

    def _question(self) -> Pair:
        clause = self._state(0.2) if self._chance(0.2) else self._clause(0.3, can_negate=False)
        return question(clause, why=self._chance(0.4))

    def _description(self) -> Pair:
        return statement(self._state(0.3, can_negate=True))

    def _reason(self) -> Pair:
        """... because ..., of the same person or animal or of another one."""
        if self._chance(0.5):
            main = self._short_clause(lexicon.INTRANSITIVE)
            mood = self._mood(lexicon.pronoun_for(main.subject), "past" if main.tense == "past" else "present")
            return joined(main, "because", mood)
        return joined(self._short_clause(), "because", self._short_clause())

    def _report(self) -> Pair:
        """... knows that ..., ... does not know whether ..."""
        verb = self._pick((lexicon.KNOW, lexicon.SAY, lexicon.BELIEVE, lexicon.HOPE))
        negated = verb in (lexicon.KNOW, lexicon.BELIEVE) and self._chance(0.5)
        main = Clause(self._subject(("person",), 0.0), verb, negated=negated)
        reported = self._state(0.15) if self._chance(0.2) else self._short_clause()
        if verb is lexicon.KNOW and negated:
            return joined(main, "whether", reported)
        return joined(main, "that", reported)

    def _condition(self) -> Pair:
        """If ... is tired, ...: the main clause begins with its verb."""
        verb = self._pick(lexicon.INTRANSITIVE)
        subject = self._subject(verb.subjects, 0.2)
        mood = self._mood(subject)
        main = self._short_clause((verb,), subject=lexicon.pronoun_for(subject), tenses=NOT_PAST)
        return conditioned(self._pick(("if", "because")), mood, main)

    def _contrast(self) -> Pair:
        """The lamp is cheap, but ... buys it: the pronoun has the gender of its noun."""
        verb, thing = self._thing_and_verb()
        description = Clause(thing, BE, complement=self._quality(thing), negated=self._chance(0.2))
        main = Clause(
            self._subject(verb.subjects, 0.1),
            verb,
            self._tense(verb, TENSES),
            object=lexicon.pronoun_for(thing),
            negated=self._chance(0.4),
        )
        return contrasted(description, main)

    def _reason_in_thing(self) -> Pair:
        """... buys the lamp because it is cheap."""
        verb, thing = self._thing_and_verb()
        # A child or an animal is it, too; with them nobody knows who is cheap.
        subject = self._pick(lexicon.PRONOUNS_AND_NAMES)
        if self._chance(0.5):
            adults = [noun for noun in lexicon.nouns("person") if noun.pronoun != "it"]
            subject = NounPhrase(self._weighted(DEFINITE), self._pick(adults))
        tense = self._pick(("present", "past"))
        main = Clause(subject, verb, tense, object=thing)
        reason = Clause(lexicon.pronoun_for(thing), BE, tense, complement=self._quality(thing))
        return joined(main, "because", reason)

    # Clauses.

    def _clause(self, adjectives: float, can_negate: bool = True, time_first: bool = False) -> Clause:
        """A clause with all that may stand in one; `adjectives` is the share of its nouns that have one."""
        verb = self._pick(lexicon.VERBS)
        tense = self._tense(verb, TENSES)
        negated = can_negate and self._chance(0.2)
        time = None
        if time_first or (not negated and self._chance(0.25)):
            time = self._pick(lexicon.TIMES["modal" if tense in MODALS else tense])
        subject = self._subject(verb.subjects, adjectives)
        clause = Clause(subject, verb, tense, time=time, time_first=time_first, negated=negated)
        return self._filled(clause, adjectives, extras=0.35)

    def _short_clause(
        self,
        verbs: Sequence[Verb] = lexicon.VERBS,
        subject: Nominal | None = None,
        tenses: dict[str, int] = TENSES,
    ) -> Clause:
        """A clause that leaves room for a second one in the sentence."""
        verb = self._pick(verbs)
        subject = subject or self._subject(verb.subjects, 0.15)
        clause = Clause(subject, verb, self._tense(verb, tenses), negated=self._chance(0.2))
        return self._filled(clause, adjectives=0.15, extras=0.15)

    def _tense(self, verb: Verb, tenses: dict[str, int]) -> str:
        return self._weighted(NOT_MODAL if verb.english in lexicon.NEVER_WITH_MODALS else tenses)

    def _filled(self, clause: Clause, adjectives: float, extras: float) -> Clause:
        """The clause with the object and the complement that its verb asks for, and sometimes one more."""
        verb, subject = clause.verb, clause.subject
        determiners = DEFINITE_ONLY if clause.negated else ANY
        if verb.governs in ("acc", "to"):
            determiners = NO_QUANTITIES if clause.negated else ANY
        thing = self._other(verb.objects, subject, adjectives, determiners) if verb.objects else None
        if verb.governs == "to":
            recipient = self._other(("person",), subject, adjectives / 2, DEFINITE_ONLY if clause.negated else ANY)
            return replace(clause, object=thing, recipient=recipient)
        if verb.preposition and thing:
            return replace(clause, complement=Prepositional(verb.preposition, thing))
        if verb.governs == "goal":
            return replace(clause, complement=self._place(lexicon.GOALS[verb.english], ("place",), adjectives))
        complement = None
        if verb.governs == "place" and (verb.english in lexicon.NEED_A_PLACE or self._chance(2 * extras)):
            complement = self._circumstance(verb, subject, adjectives)
        if verb.governs == "acc" and not clause.negated and self._chance(extras):
            complement = self._circumstance(verb, subject, adjectives)
        return replace(clause, object=thing, complement=complement)

    def _circumstance(self, verb: Verb, subject: Nominal, adjectives: float) -> Prepositional:
        """For whom, with or without whom, or where."""
        prepositions = lexicon.FOR_OR_WITH.get(verb.english)
        if prepositions and self._chance(0.5):
            return Prepositional(self._pick(prepositions), self._other(("person",), subject, adjectives, DEFINITE_ONLY))
        return self._location(adjectives)

    def _location(self, adjectives: float) -> Prepositional:
        if self._chance(0.3):
            return self._place((lexicon.BEHIND,), ("building",), adjectives)
        return self._place((lexicon.INSIDE,), ("place",), adjectives)

    def _place(self, prepositions: Sequence[Preposition], kinds: tuple[str, ...], adjectives: float) -> Prepositional:
        return Prepositional(
            self._pick(prepositions), self._noun_phrase(kinds, adjectives, DEFINITE_ONLY, plurals=0.15)
        )

    def _state(self, adjectives: float, can_negate: bool = False) -> Clause:
        """Somebody or something is tired, cheap, in the kitchen, ..."""
        tense = self._pick(("present", "past"))
        negated = can_negate and self._chance(0.2)
        if self._chance(0.6):
            subject = self._subject(BE.subjects, adjectives)
            return Clause(subject, BE, tense, complement=self._quality(subject), negated=negated)
        if self._chance(0.6):
            subject = self._noun_phrase(("small", "food"), adjectives, ANY)
            where = self._place((lexicon.ON, lexicon.UNDER), ("support",), adjectives)
            if self._chance(0.4):
                where = self._place((lexicon.INSIDE,), ("room", "bag"), adjectives)
        else:
            subject, where = self._subject(("person", "animal"), adjectives), self._location(adjectives)
        time = self._pick(lexicon.TIMES[tense]) if not negated and self._chance(0.3) else None
        return Clause(subject, BE, tense, complement=where, time=time, negated=negated)

    def _quality(self, subject: Nominal) -> Adjective:
        """What may be said of the subject and has not been said yet."""
        if isinstance(subject, NounPhrase):
            return self._pick([it for it in lexicon.adjectives(subject.noun) if it != subject.adjective])
        return self._pick(lexicon.adjectives(lexicon.NOUNS[0]))

    def _mood(self, subject: Nominal, tense: str = "present") -> Clause:
        return Clause(subject, BE, tense, complement=self._pick(lexicon.MOODS))

    # Nouns and pronouns.

    def _subject(self, kinds: tuple[str, ...], adjectives: float) -> Nominal:
        if self._chance(0.35):
            return self._pick(tuple(lexicon.PERSONAL.values()))
        if self._chance(0.1):
            return self._pick(lexicon.NAMES)
        return self._noun_phrase(kinds, adjectives, ANY)

    def _other(self, kinds: tuple[str, ...], subject: Nominal, adjectives: float, determiners: Weights) -> Nominal:
        """Somebody or something, but not the subject again."""
        if "person" in kinds and self._chance(0.3):
            people = [it for it in lexicon.PRONOUNS_AND_NAMES if it != subject]
            first_person = subject.agreement[0] == "1"
            return self._pick([it for it in people if not (first_person and it.agreement[0] == "1")])
        while True:
            phrase = self._noun_phrase(kinds, adjectives, determiners)
            if not isinstance(subject, NounPhrase) or subject.noun != phrase.noun:
                return phrase

    def _noun_phrase(
        self, kinds: tuple[str, ...], adjectives: float, determiners: Weights, plurals: float = 0.35
    ) -> NounPhrase:
        noun = self._pick(lexicon.nouns(*kinds))
        adjective = self._pick(lexicon.adjectives(noun)) if self._chance(adjectives) else None
        plural = self._chance(plurals)
        return NounPhrase(self._weighted(determiners[plural]), noun, adjective, plural)

    def _thing_and_verb(self) -> tuple[Verb, NounPhrase]:
        """A verb and a thing or food that can be its object."""
        thing = self._noun_phrase(("thing", "food"), 0.15, DEFINITE_ONLY)
        fitting = [
            verb for verb in lexicon.VERBS if verb.governs == "acc" and set(verb.objects) & set(thing.noun.kinds)
        ]
        return self._pick(fitting), thing

    # Chance.

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _pick(self, items: Sequence[Item]) -> Item:
        return items[self._random.randrange(len(items))]

    def _weighted(self, weights: Mapping[Item, int]) -> Item:
        return self._random.choices(list(weights), list(weights.values()))[0]
