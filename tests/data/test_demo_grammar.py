"""The demo grammar on sentences written by hand: the English and the German are both as they should be."""

import pytest

from mtformer.data import demo_lexicon as lexicon
from mtformer.data.demo_grammar import (
    BE,
    CASES,
    Adjective,
    Adverb,
    Clause,
    Nominal,
    NounPhrase,
    Preposition,
    Prepositional,
    Verb,
    conditioned,
    contrasted,
    english_clause,
    german_clause,
    joined,
    question,
    statement,
)

DETERMINERS = ("the", "this", "these", "a", "my", "his", "her", "our", "their", "two", "three", "many")
PRONOUNS = lexicon.PERSONAL | {pronoun.english_object: pronoun for pronoun in lexicon.PERSONAL.values()}
PREPOSITIONS = {it.english: it for it in vars(lexicon).values() if isinstance(it, Preposition)}


def say(text: str) -> Nominal:
    """What the English words name; an is written a."""
    if text in PRONOUNS:
        return PRONOUNS[text]
    for name in lexicon.NAMES:
        if name.text == text:
            return name
    *front, last = text.split()
    determiner = front.pop(0) if front and front[0] in DETERMINERS else ""
    determiner = {"these": "this"}.get(determiner, determiner)
    described = adjective(front[0]) if front else None
    noun = next(noun for noun in lexicon.NOUNS if last in (noun.english, noun.english_plural))
    return NounPhrase(determiner, noun, described, plural=last == noun.english_plural)


def adjective(text: str) -> Adjective:
    return next(it for it, _ in lexicon.ADJECTIVES if it.english == text)


def verb(text: str) -> Verb:
    return next(it for it in lexicon.VERBS if f"{it.english} {it.particle}".strip() == text)


def at(preposition: str, nominal: str) -> Prepositional:
    return Prepositional(PREPOSITIONS[preposition], say(nominal))


def governed(text: str, nominal: str) -> Prepositional:
    """What a verb with a preposition of its own governs."""
    preposition = verb(text).preposition
    assert preposition is not None
    return Prepositional(preposition, say(nominal))


TODAY, YESTERDAY, OFTEN = Adverb("today", "heute"), Adverb("yesterday", "gestern"), Adverb("often", "oft")
MONDAY, TOMORROW = Adverb("on Monday", "am Montag"), Adverb("tomorrow", "morgen")
THE_MAN, ICH, WE, SHE, THEY = say("the man"), say("I"), say("we"), say("she"), say("they")

STATEMENTS = [
    # Verbs of all persons, with and without a change of vowel.
    (Clause(THE_MAN, verb("sleep")), "the man sleeps", "der Mann schläft"),
    (Clause(ICH, verb("sleep")), "I sleep", "ich schlafe"),
    (Clause(WE, verb("work")), "we work", "wir arbeiten"),
    (Clause(ICH, verb("work")), "I work", "ich arbeite"),
    (Clause(ICH, lexicon.KNOW), "I know", "ich weiß"),
    (Clause(THEY, BE, "past", complement=adjective("tired")), "they were tired", "sie waren müde"),
    # Gender and case.
    (
        Clause(THE_MAN, verb("buy"), object=say("a red coat")),
        "the man buys a red coat",
        "der Mann kauft einen roten Mantel",
    ),
    (
        Clause(say("the old woman"), verb("buy"), object=say("a expensive lamp")),
        "the old woman buys an expensive lamp",
        "die alte Frau kauft eine teure Lampe",
    ),
    (
        Clause(say("my child"), verb("eat"), object=say("a good egg")),
        "my child eats a good egg",
        "mein Kind isst ein gutes Ei",
    ),
    (
        Clause(SHE, verb("help"), object=say("the small child")),
        "she helps the small child",
        "sie hilft dem kleinen Kind",
    ),
    (Clause(SHE, verb("help"), object=say("him")), "she helps him", "sie hilft ihm"),
    (Clause(SHE, verb("see"), object=say("him")), "she sees him", "sie sieht ihn"),
    (Clause(say("he"), verb("thank"), object=say("her")), "he thanks her", "er dankt ihr"),
    (Clause(WE, verb("thank"), object=say("them")), "we thank them", "wir danken ihnen"),
    (Clause(ICH, verb("see"), object=say("the boy")), "I see the boy", "ich sehe den Jungen"),
    (Clause(ICH, verb("help"), object=say("our neighbour")), "I help our neighbour", "ich helfe unserem Nachbarn"),
    # Plurals, strong and weak, and the n of the dative.
    (Clause(WE, verb("buy"), object=say("red apples")), "we buy red apples", "wir kaufen rote Äpfel"),
    (Clause(WE, verb("buy"), object=say("the red apples")), "we buy the red apples", "wir kaufen die roten Äpfel"),
    (Clause(WE, verb("help"), object=say("two old men")), "we help two old men", "wir helfen zwei alten Männern"),
    (
        Clause(say("many young women"), verb("help"), object=say("these small children")),
        "many young women help these small children",
        "viele junge Frauen helfen diesen kleinen Kindern",
    ),
    # To whom stands before what.
    (
        Clause(SHE, verb("give"), object=say("a book"), recipient=say("her friend")),
        "she gives a book to her friend",
        "sie gibt ihrem Freund ein Buch",
    ),
    # Prepositions: place and goal, contractions, those that a verb asks for.
    (
        Clause(say("the cat"), verb("sleep"), complement=at("in", "the garden")),
        "the cat sleeps in the garden",
        "die Katze schläft im Garten",
    ),
    (
        Clause(say("the cat"), verb("run"), complement=at("into", "the garden")),
        "the cat runs into the garden",
        "die Katze läuft in den Garten",
    ),
    (Clause(SHE, verb("go"), complement=at("into", "the house")), "she goes into the house", "sie geht ins Haus"),
    (Clause(SHE, verb("go"), complement=at("to", "the station")), "she goes to the station", "sie geht zum Bahnhof"),
    (Clause(SHE, verb("go"), complement=at("to", "the school")), "she goes to the school", "sie geht zur Schule"),
    (Clause(SHE, verb("go"), complement=at("into", "her room")), "she goes into her room", "sie geht in ihr Zimmer"),
    (
        Clause(SHE, verb("come"), complement=at("out of", "the hotel")),
        "she comes out of the hotel",
        "sie kommt aus dem Hotel",
    ),
    (
        Clause(SHE, verb("dream"), complement=governed("dream", "the red car")),
        "she dreams of the red car",
        "sie träumt vom roten Auto",
    ),
    (Clause(ICH, verb("wait"), complement=governed("wait", "him")), "I wait for him", "ich warte auf ihn"),
    (
        Clause(ICH, verb("talk"), complement=governed("talk", "my sister")),
        "I talk to my sister",
        "ich spreche mit meiner Schwester",
    ),
    (
        Clause(SHE, verb("buy"), object=say("flowers"), complement=at("for", "her brother")),
        "she buys flowers for her brother",
        "sie kauft Blumen für ihren Bruder",
    ),
    (Clause(SHE, verb("dance"), complement=at("without", "Peter")), "she dances without Peter", "sie tanzt ohne Peter"),
    (
        Clause(say("the key"), BE, complement=at("under", "the table")),
        "the key is under the table",
        "der Schlüssel ist unter dem Tisch",
    ),
    # Separable verbs, and where the English particle goes.
    (Clause(THE_MAN, verb("open"), object=say("the door")), "the man opens the door", "der Mann macht die Tür auf"),
    (
        Clause(THE_MAN, verb("pick up"), object=say("the child")),
        "the man picks up the child",
        "der Mann holt das Kind ab",
    ),
    (Clause(THE_MAN, verb("pick up"), object=say("us")), "the man picks us up", "der Mann holt uns ab"),
    (Clause(say("she"), verb("invite"), object=say("me")), "she invites me", "sie lädt mich ein"),
    (
        Clause(THE_MAN, verb("open"), "must", object=say("the door")),
        "the man must open the door",
        "der Mann muss die Tür aufmachen",
    ),
    (Clause(ICH, verb("get up"), "want"), "I want to get up", "ich will aufstehen"),
    # The perfect tense, with haben and with sein.
    (
        Clause(ICH, verb("forget"), "past", object=say("the key")),
        "I forgot the key",
        "ich habe den Schlüssel vergessen",
    ),
    (Clause(THEY, verb("wake up"), "past"), "they woke up", "sie sind aufgewacht"),
    (Clause(SHE, verb("follow"), "past", object=say("the dog")), "she followed the dog", "sie ist dem Hund gefolgt"),
    # The verb stands second.
    (
        Clause(THE_MAN, verb("buy"), object=say("the book"), time=TODAY, time_first=True),
        "today the man buys the book",
        "heute kauft der Mann das Buch",
    ),
    (
        Clause(SHE, verb("call"), "past", object=say("me"), time=YESTERDAY, time_first=True),
        "yesterday she called me",
        "gestern hat sie mich angerufen",
    ),
    (
        Clause(WE, verb("give"), "will", say("the letter"), say("Anna"), time=TOMORROW, time_first=True),
        "tomorrow we will give the letter to Anna",
        "morgen werden wir Anna den Brief geben",
    ),
    (
        Clause(SHE, verb("repair"), "past", object=say("our clock"), time=MONDAY),
        "she repaired our clock on Monday",
        "sie hat am Montag unsere Uhr repariert",
    ),
    (Clause(SHE, verb("visit"), object=say("them"), time=OFTEN), "she visits them often", "sie besucht sie oft"),
    # Negation.
    (Clause(SHE, verb("work"), negated=True), "she does not work", "sie arbeitet nicht"),
    (Clause(ICH, verb("buy"), object=say("a car"), negated=True), "I do not buy a car", "ich kaufe kein Auto"),
    (
        Clause(ICH, verb("buy"), object=say("red flowers"), negated=True),
        "I do not buy red flowers",
        "ich kaufe keine roten Blumen",
    ),
    (
        Clause(THE_MAN, verb("eat"), "past", object=say("a big apple"), negated=True),
        "the man did not eat a big apple",
        "der Mann hat keinen großen Apfel gegessen",
    ),
    (
        Clause(THE_MAN, verb("close"), object=say("the window"), negated=True),
        "the man does not close the window",
        "der Mann macht das Fenster nicht zu",
    ),
    (
        Clause(SHE, verb("wait"), complement=governed("wait", "the men"), negated=True),
        "she does not wait for the men",
        "sie wartet nicht auf die Männer",
    ),
    (Clause(SHE, verb("sing"), "can", negated=True), "she cannot sing", "sie kann nicht singen"),
    (Clause(SHE, verb("sing"), "must", negated=True), "she must not sing", "sie darf nicht singen"),
    (Clause(SHE, verb("sing"), "want", negated=True), "she does not want to sing", "sie will nicht singen"),
    (Clause(SHE, BE, complement=adjective("old"), negated=True), "she is not old", "sie ist nicht alt"),
]


@pytest.mark.parametrize(("clause", "english", "german"), STATEMENTS, ids=[english for _, english, _ in STATEMENTS])
def test_statement(clause: Clause, english: str, german: str) -> None:
    assert (english_clause(clause), german_clause(clause)) == (english, german)


VERB_LAST = [
    (Clause(say("he"), BE, complement=adjective("sick")), "er krank ist"),
    (Clause(THE_MAN, verb("buy"), object=say("the book")), "der Mann das Buch kauft"),
    (Clause(THE_MAN, verb("buy"), "past", object=say("the book")), "der Mann das Buch gekauft hat"),
    (Clause(THE_MAN, verb("buy"), "can", object=say("the book")), "der Mann das Buch kaufen kann"),
    (Clause(ICH, verb("turn on"), object=say("the radio")), "ich das Radio anmache"),
    (Clause(THE_MAN, verb("turn on"), "past", object=say("the radio")), "der Mann das Radio angemacht hat"),
    (Clause(THEY, verb("turn off"), "should", object=say("the lamp")), "sie die Lampe ausmachen sollten"),
    (Clause(THEY, verb("arrive"), "past"), "sie angekommen sind"),
    (Clause(SHE, verb("tidy up"), object=say("her room"), negated=True), "sie ihr Zimmer nicht aufräumt"),
    (Clause(SHE, verb("show"), object=say("a horse"), recipient=say("us")), "sie uns ein Pferd zeigt"),
]


@pytest.mark.parametrize(("clause", "german"), VERB_LAST, ids=[german for _, german in VERB_LAST])
def test_verb_last(clause: Clause, german: str) -> None:
    assert german_clause(clause, "verb_last") == german


QUESTIONS = [
    (
        Clause(THE_MAN, verb("open"), object=say("the bag")),
        "does the man open the bag",
        "macht der Mann die Tasche auf",
    ),
    (
        Clause(THEY, verb("go"), "past", complement=at("into", "the city")),
        "did they go into the city",
        "sind sie in die Stadt gegangen",
    ),
    (
        Clause(ICH, verb("write"), "must", object=say("a letter")),
        "must I write a letter",
        "muss ich einen Brief schreiben",
    ),
    (Clause(SHE, verb("sing"), "want"), "does she want to sing", "will sie singen"),
    (Clause(say("the eggs"), BE, complement=adjective("good")), "are the eggs good", "sind die Eier gut"),
]


@pytest.mark.parametrize(("clause", "english", "german"), QUESTIONS, ids=[english for _, english, _ in QUESTIONS])
def test_question(clause: Clause, english: str, german: str) -> None:
    assert english_clause(clause, question=True) == english
    assert german_clause(clause, "verb_first") == german


# Nominative, accusative, dative.
PARADIGMS = {
    "the old dog": "der alte Hund, den alten Hund, dem alten Hund",
    "the old cat": "die alte Katze, die alte Katze, der alten Katze",
    "the old horse": "das alte Pferd, das alte Pferd, dem alten Pferd",
    "the old dogs": "die alten Hunde, die alten Hunde, den alten Hunden",
    "this old dog": "dieser alte Hund, diesen alten Hund, diesem alten Hund",
    "this old cat": "diese alte Katze, diese alte Katze, dieser alten Katze",
    "this old horse": "dieses alte Pferd, dieses alte Pferd, diesem alten Pferd",
    "these old cats": "diese alten Katzen, diese alten Katzen, diesen alten Katzen",
    "a old dog": "ein alter Hund, einen alten Hund, einem alten Hund",
    "a old cat": "eine alte Katze, eine alte Katze, einer alten Katze",
    "a old horse": "ein altes Pferd, ein altes Pferd, einem alten Pferd",
    "our old dog": "unser alter Hund, unseren alten Hund, unserem alten Hund",
    "his old cat": "seine alte Katze, seine alte Katze, seiner alten Katze",
    "her old horse": "ihr altes Pferd, ihr altes Pferd, ihrem alten Pferd",
    "my old horses": "meine alten Pferde, meine alten Pferde, meinen alten Pferden",
    "old dogs": "alte Hunde, alte Hunde, alten Hunden",
    "three old dogs": "drei alte Hunde, drei alte Hunde, drei alten Hunden",
    "many old dogs": "viele alte Hunde, viele alte Hunde, vielen alten Hunden",
    "the young boy": "der junge Junge, den jungen Jungen, dem jungen Jungen",
    "the tired man": "der müde Mann, den müden Mann, dem müden Mann",
    "a expensive coat": "ein teurer Mantel, einen teuren Mantel, einem teuren Mantel",
    "the cars": "die Autos, die Autos, den Autos",
    "the gardens": "die Gärten, die Gärten, den Gärten",
    "the keys": "die Schlüssel, die Schlüssel, den Schlüsseln",
}


@pytest.mark.parametrize(("phrase", "forms"), PARADIGMS.items())
def test_paradigm(phrase: str, forms: str) -> None:
    assert [say(phrase).german_as(case) for case in CASES] == forms.split(", ")


BUY, OLD = verb("buy"), adjective("old")
SENTENCES = [
    (
        joined(Clause(SHE, verb("sleep")), "because", Clause(SHE, BE, complement=adjective("tired"))),
        ("She sleeps because she is tired.", "Sie schläft, weil sie müde ist."),
    ),
    (
        joined(Clause(ICH, lexicon.KNOW, negated=True), "whether", Clause(SHE, verb("arrive"), "past")),
        ("I do not know whether she arrived.", "Ich weiß nicht, ob sie angekommen ist."),
    ),
    (
        joined(Clause(THE_MAN, lexicon.HOPE), "that", Clause(SHE, verb("invite"), "will", object=say("him"))),
        ("The man hopes that she will invite him.", "Der Mann hofft, dass sie ihn einladen wird."),
    ),
    (
        conditioned("if", Clause(WE, BE, complement=adjective("sick")), Clause(WE, verb("work"), negated=True)),
        ("If we are sick, we do not work.", "Wenn wir krank sind, arbeiten wir nicht."),
    ),
    (
        question(Clause(SHE, verb("wash"), "past", object=say("his shirt")), why=True),
        ("Why did she wash his shirt?", "Warum hat sie sein Hemd gewaschen?"),
    ),
    (
        statement(Clause(say("Peter"), verb("eat"), object=say("a apple"))),
        ("Peter eats an apple.", "Peter isst einen Apfel."),
    ),
]


@pytest.mark.parametrize(("said", "right"), SENTENCES, ids=[right[0] for _, right in SENTENCES])
def test_sentence(said: tuple[str, str], right: tuple[str, str]) -> None:
    assert said == right


@pytest.mark.parametrize(
    ("noun", "german"),
    [
        ("the lamp", "Die Lampe ist alt, aber wir kaufen sie nicht."),
        ("the key", "Der Schlüssel ist alt, aber wir kaufen ihn nicht."),
        ("the book", "Das Buch ist alt, aber wir kaufen es nicht."),
        ("the books", "Die Bücher sind alt, aber wir kaufen sie nicht."),
    ],
)
def test_an_object_pronoun_has_the_gender_of_its_noun(noun: str, german: str) -> None:
    thing = say(noun)
    main = Clause(WE, BUY, object=lexicon.pronoun_for(thing), negated=True)
    assert contrasted(Clause(thing, BE, complement=OLD), main)[1] == german


@pytest.mark.parametrize(
    ("noun", "german"),
    [
        ("the dog", "Weil der Hund alt ist, schläft er."),
        ("the cat", "Weil die Katze alt ist, schläft sie."),
        ("the horse", "Weil das Pferd alt ist, schläft es."),
        ("the child", "Weil das Kind alt ist, schläft es."),
        ("her sister", "Weil ihre Schwester alt ist, schläft sie."),
        ("Paul", "Weil Paul alt ist, schläft er."),
        ("two dogs", "Weil zwei Hunde alt sind, schlafen sie."),
    ],
)
def test_a_subject_pronoun_has_the_gender_of_its_noun(noun: str, german: str) -> None:
    somebody = say(noun)
    main = Clause(lexicon.pronoun_for(somebody), verb("sleep"))
    assert conditioned("because", Clause(somebody, BE, complement=OLD), main)[1] == german
