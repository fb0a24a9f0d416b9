"""A small English and German grammar: it says the same sentence in both languages.

A clause is built once and rendered by `english_clause` and `german_clause`; `statement`, `question`, `joined`,
`conditioned` and `contrasted` make sentences of clauses. All that makes the two languages differ stands here: gender,
case and adjective endings, separable verbs, the perfect tense, and the place of the verb.
"""

from dataclasses import dataclass
from typing import Literal

Case = Literal["nom", "acc", "dat"]
Agreement = Literal["1s", "3s", "1p", "3p"]
Order = Literal["verb_second", "verb_first", "verb_last"]
Pair = tuple[str, str]

CASES: tuple[Case, ...] = ("nom", "acc", "dat")

# Endings by gender ("p": plural), in the order nom, acc, dat.
DEFINITE = {"m": "der den dem", "f": "die die der", "n": "das das dem", "p": "die die den"}
DER_ENDINGS = {"m": ("er", "en", "em"), "f": ("e", "e", "er"), "n": ("es", "es", "em"), "p": ("e", "e", "en")}
EIN_ENDINGS = {"m": ("", "en", "em"), "f": ("e", "e", "er"), "n": ("", "", "em"), "p": ("e", "e", "en")}
WEAK_ENDINGS = {"m": ("e", "en", "en"), "f": ("e", "e", "en"), "n": ("e", "e", "en"), "p": ("en", "en", "en")}
MIXED_ENDINGS = {"m": ("er", "en", "en"), "f": ("e", "e", "en"), "n": ("es", "es", "en"), "p": ("en", "en", "en")}
STRONG_PLURAL_ENDINGS = ("e", "e", "en")

EIN_WORDS = {"a": "ein", "my": "mein", "his": "sein", "her": "ihr", "our": "unser", "their": "ihr"}
QUANTITIES = {"": ("", "", ""), "two": ("zwei",) * 3, "three": ("drei",) * 3, "many": ("viele", "viele", "vielen")}
CONJUNCTIONS = {"because": "weil", "if": "wenn", "that": "dass", "whether": "ob"}
CONTRACTIONS = {"in dem": "im", "in das": "ins", "zu dem": "zum", "zu der": "zur", "von dem": "vom"}


@dataclass(frozen=True)
class Noun:
    english: str
    english_plural: str
    german: str
    german_plural: str
    gender: str
    pronoun: str
    """he, she or it: the English pronoun for one of them."""
    kinds: tuple[str, ...]
    """What it is; the first one chooses the adjectives that fit."""
    n_declension: bool

    def inflected(self, case: Case, plural: bool) -> str:
        if plural:
            return self.german_plural + ("n" if case == "dat" and self.german_plural[-1] not in "ns" else "")
        return self.german_plural if self.n_declension and case != "nom" else self.german


@dataclass(frozen=True)
class Adjective:
    english: str
    german: str
    stem: str
    """What the endings are added to: teuer, but teure."""


@dataclass(frozen=True)
class Pronoun:
    english: str
    english_object: str
    forms: tuple[str, str, str]
    agreement: Agreement

    def english_as(self, subject: bool) -> str:
        return self.english if subject else self.english_object

    def german_as(self, case: Case, negated: bool = False) -> str:
        return self.forms[CASES.index(case)]


@dataclass(frozen=True)
class Name:
    text: str
    pronoun: str
    agreement: Agreement = "3s"

    def english_as(self, subject: bool) -> str:
        return self.text

    def german_as(self, case: Case, negated: bool = False) -> str:
        return self.text


@dataclass(frozen=True)
class NounPhrase:
    determiner: str
    """the, this, a, a possessive, or for plurals also two, three, many or nothing."""
    noun: Noun
    adjective: Adjective | None = None
    plural: bool = False

    @property
    def agreement(self) -> Agreement:
        return "3p" if self.plural else "3s"

    @property
    def takes_kein(self) -> bool:
        return self.determiner in ("a", "")

    def english_as(self, subject: bool) -> str:
        words = [self.adjective.english] if self.adjective else []
        words.append(self.noun.english_plural if self.plural else self.noun.english)
        determiner = self.determiner
        if determiner == "this" and self.plural:
            determiner = "these"
        if determiner == "a" and words[0][0] in "aeiou":
            determiner = "an"
        return join(determiner, *words)

    def german_as(self, case: Case, negated: bool = False) -> str:
        """The phrase in `case`; `negated` puts kein where it can."""
        gender, at = ("p" if self.plural else self.noun.gender), CASES.index(case)
        endings = MIXED_ENDINGS[gender]
        if negated and self.takes_kein:
            determiner = "kein" + EIN_ENDINGS[gender][at]
        elif self.determiner in QUANTITIES:
            determiner, endings = QUANTITIES[self.determiner][at], STRONG_PLURAL_ENDINGS
        elif self.determiner in EIN_WORDS:
            determiner = EIN_WORDS[self.determiner] + EIN_ENDINGS[gender][at]
        else:
            determiner = DEFINITE[gender].split()[at] if self.determiner == "the" else "dies" + DER_ENDINGS[gender][at]
            endings = WEAK_ENDINGS[gender]
        adjective = self.adjective.stem + endings[at] if self.adjective else ""
        return join(determiner, adjective, self.noun.inflected(case, self.plural))


Nominal = NounPhrase | Pronoun | Name


@dataclass(frozen=True)
class Preposition:
    english: str
    german: str
    case: Case


@dataclass(frozen=True)
class Prepositional:
    preposition: Preposition
    nominal: Nominal

    @property
    def english(self) -> str:
        return f"{self.preposition.english} {self.nominal.english_as(subject=False)}"

    @property
    def german(self) -> str:
        words = f"{self.preposition.german} {self.nominal.german_as(self.preposition.case)}"
        # Only the article melts into the preposition, not the pronouns der, dem and das: this grammar has none.
        for apart, together in CONTRACTIONS.items():
            if words.startswith(apart + " "):
                return together + words[len(apart) :]
        return words


@dataclass(frozen=True)
class Adverb:
    english: str
    german: str


@dataclass(frozen=True)
class Verb:
    english: str
    english_third: str
    english_past: str
    particle: str
    """English particle, as in pick up: it follows an object that is a pronoun."""
    prefix: str
    """German separable prefix."""
    infinitive: str
    """Without the prefix; it is also the plural of the present tense."""
    third: str
    participle: str
    """With the prefix."""
    auxiliary: str
    """hat or ist: what the perfect tense is made with."""
    governs: str = ""
    """What it goes with: acc or dat (an object), to (object and recipient), preposition, place, goal, or nothing."""
    preposition: Preposition | None = None
    objects: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ("person",)
    first: str = ""
    """Of the present tense, where it is not the infinitive without its n."""

    def present(self, agreement: Agreement) -> str:
        if agreement == "3s":
            return self.third
        return (self.first or self.infinitive[:-1]) if agreement == "1s" else self.infinitive


@dataclass(frozen=True)
class Modal:
    first: str
    third: str
    plural: str

    def present(self, agreement: Agreement) -> str:
        return {"1s": self.first, "3s": self.third}.get(agreement, self.plural)


BE = Verb("be", "is", "was", "", "", "sein", "ist", "gewesen", "ist", subjects=("person", "animal", "thing"))
BE_FORMS = {
    "1s": ("am", "was", "bin", "war"),
    "3s": ("is", "was", "ist", "war"),
    "1p": ("are", "were", "sind", "waren"),
    "3p": ("are", "were", "sind", "waren"),
}
AUXILIARIES = {
    "hat": {"1s": "habe", "3s": "hat", "1p": "haben", "3p": "haben"},
    "ist": {"1s": "bin", "3s": "ist", "1p": "sind", "3p": "sind"},
}
MODALS = {
    "can": Modal("kann", "kann", "können"),
    "must": Modal("muss", "muss", "müssen"),
    "should": Modal("sollte", "sollte", "sollten"),
    "will": Modal("werde", "wird", "werden"),
    "want": Modal("will", "will", "wollen"),
}
MUST_NOT = Modal("darf", "darf", "dürfen")


@dataclass(frozen=True)
class Clause:
    subject: Nominal
    verb: Verb
    tense: str = "present"
    """present, past, or the English modal verb."""
    object: Nominal | None = None
    """In the case that the verb asks for."""
    recipient: Nominal | None = None
    """To whom: dative."""
    complement: Prepositional | Adjective | None = None
    time: Adverb | None = None
    time_first: bool = False
    negated: bool = False

    def __post_init__(self) -> None:
        assert not (self.negated and self.time and not self.time_first), "nicht and a later adverb have no fixed order"
        assert self.verb is not BE or self.tense in ("present", "past"), "to be takes no modal verb here"


def join(*words: str) -> str:
    """One space between words; empty ones are left out."""
    return " ".join(word for word in words if word)


def statement(clause: Clause) -> Pair:
    """The man is tired."""
    return _finished(english_clause(clause), german_clause(clause))


def question(clause: Clause, why: bool = False) -> Pair:
    """Is the man tired? Why is the man tired?"""
    english, german = english_clause(clause, question=True), german_clause(clause, "verb_first")
    return _finished(join("why" if why else "", english), join("warum" if why else "", german), "?")


def joined(main: Clause, conjunction: str, subordinate: Clause) -> Pair:
    """The man sleeps because he is tired."""
    return _finished(
        f"{english_clause(main)} {conjunction} {english_clause(subordinate)}",
        f"{german_clause(main)}, {CONJUNCTIONS[conjunction]} {german_clause(subordinate, 'verb_last')}",
    )


def conditioned(conjunction: str, subordinate: Clause, main: Clause) -> Pair:
    """If the man is tired, he sleeps: the German main clause begins with its verb."""
    return _finished(
        f"{conjunction} {english_clause(subordinate)}, {english_clause(main)}",
        f"{CONJUNCTIONS[conjunction]} {german_clause(subordinate, 'verb_last')}, {german_clause(main, 'verb_first')}",
    )


def contrasted(first: Clause, second: Clause) -> Pair:
    """The man is tired, but he works."""
    return _finished(
        f"{english_clause(first)}, but {english_clause(second)}",
        f"{german_clause(first)}, aber {german_clause(second)}",
    )


def _finished(english: str, german: str, mark: str = ".") -> Pair:
    return english[0].upper() + english[1:] + mark, german[0].upper() + german[1:] + mark


def english_clause(clause: Clause, question: bool = False) -> str:
    """The clause in English, without capital letter and full stop."""
    auxiliary, main = _english_verb(clause, question)
    subject = clause.subject.english_as(subject=True)
    negation = "not" if clause.negated else ""
    if auxiliary == "can" and negation and not question:
        auxiliary, negation = "cannot", ""
    head = [auxiliary, subject, negation] if question else [subject, auxiliary, negation]
    thing = clause.object.english_as(subject=False) if clause.object else ""
    after = isinstance(clause.object, Pronoun)
    to = f"to {clause.recipient.english_as(subject=False)}" if clause.recipient else ""
    rest = [main, "" if after else clause.verb.particle, thing, clause.verb.particle if after else "", to]
    time = clause.time.english if clause.time else ""
    complement = clause.complement.english if clause.complement else ""
    if clause.time_first:
        return join(time, *head, *rest, complement)
    return join(*head, *rest, complement, time)


def _english_verb(clause: Clause, question: bool) -> tuple[str, str]:
    """The auxiliary (or nothing) and the main verb."""
    verb, agreement = clause.verb, clause.subject.agreement
    if verb is BE:
        return BE_FORMS[agreement][clause.tense == "past"], ""
    if clause.tense in MODALS and clause.tense != "want":
        return clause.tense, verb.english
    base, third = verb.english, verb.english_third
    if clause.tense == "want":
        base, third = f"want to {base}", f"wants to {base}"
    if clause.negated or question:
        do = "did" if clause.tense == "past" else "does" if agreement == "3s" else "do"
        return do, base
    if clause.tense == "past":
        return "", verb.english_past
    return "", third if agreement == "3s" else base


def german_clause(clause: Clause, order: Order = "verb_second") -> str:
    """The clause in German, without capital letter and full stop."""
    finite, last = _german_verb(clause)
    subject = clause.subject.german_as("nom")
    time = clause.time.german if clause.time else ""
    if order == "verb_last":
        # A separable prefix grows together with its verb; participle and infinitive stand before the finite verb.
        end = last + finite if last and last == clause.verb.prefix else join(last, finite)
        return join(subject, _middle_field(clause, time), end)
    if order == "verb_first":
        return join(finite, subject, _middle_field(clause, time), last)
    if clause.time_first:
        return join(time, finite, subject, _middle_field(clause, ""), last)
    return join(subject, finite, _middle_field(clause, time), last)


def _middle_field(clause: Clause, time: str) -> str:
    """What stands between the finite verb and the end: light things first, then time, object, nicht, the rest."""
    thing, kein = "", False
    if clause.object:
        kein = clause.negated and isinstance(clause.object, NounPhrase) and clause.object.takes_kein
        thing = clause.object.german_as("dat" if clause.verb.governs == "dat" else "acc", negated=kein)
    recipient = clause.recipient.german_as("dat") if clause.recipient else ""
    complement = clause.complement.german if clause.complement else ""
    nicht = "nicht" if clause.negated and not kein else ""
    if isinstance(clause.object, Pronoun):
        return join(thing, recipient, time, nicht, complement)
    return join(recipient, time, thing, nicht, complement)


def _german_verb(clause: Clause) -> tuple[str, str]:
    """The finite verb and what stands at the end of a main clause: prefix, participle or infinitive."""
    verb, agreement = clause.verb, clause.subject.agreement
    if verb is BE:
        return BE_FORMS[agreement][3 if clause.tense == "past" else 2], ""
    if clause.tense == "past":
        return AUXILIARIES[verb.auxiliary][agreement], verb.participle
    if clause.tense in MODALS:
        modal = MUST_NOT if clause.tense == "must" and clause.negated else MODALS[clause.tense]
        return modal.present(agreement), verb.prefix + verb.infinitive
    return verb.present(agreement), verb.prefix
