"""The words of the demo corpus, as tables, and how to look one up."""

from mtformer.data.demo_grammar import Adjective, Adverb, Case, Name, Nominal, Noun, Preposition, Pronoun, Verb

# kinds: English singular, plural; German singular, plural, gender; pronoun. A star marks the n-declension (den Jungen).
NOUN_TABLE = """
person: man men Mann Männer m he
person: woman women Frau Frauen f she
person: child children Kind Kinder n it
person: boy boys Junge* Jungen m he
person: teacher teachers Lehrer Lehrer m he
person: friend friends Freund Freunde m he
person: neighbour neighbours Nachbar* Nachbarn m he
person: brother brothers Bruder Brüder m he
person: sister sisters Schwester Schwestern f she
person: daughter daughters Tochter Töchter f she
animal: dog dogs Hund Hunde m it
animal: cat cats Katze Katzen f it
animal: horse horses Pferd Pferde n it
food: apple apples Apfel Äpfel m it
food: cake cakes Kuchen Kuchen m it
food: egg eggs Ei Eier n it
food: pear pears Birne Birnen f it
thing goods small: book books Buch Bücher n it
thing goods small: newspaper newspapers Zeitung Zeitungen f it
thing goods small: picture pictures Bild Bilder n it
thing goods small: flower flowers Blume Blumen f it
thing goods support: table tables Tisch Tische m it
thing goods support: chair chairs Stuhl Stühle m it
thing goods small: key keys Schlüssel Schlüssel m it
thing goods openable bag: suitcase suitcases Koffer Koffer m it
thing goods openable bag: bag bags Tasche Taschen f it
thing openable: door doors Tür Türen f it
thing openable: window windows Fenster Fenster n it
thing goods machine: car cars Auto Autos n it
thing goods machine: bicycle bicycles Fahrrad Fahrräder n it
thing goods machine: clock clocks Uhr Uhren f it
thing goods switch small: lamp lamps Lampe Lampen f it
thing goods switch small: radio radios Radio Radios n it
thing goods clothes small: coat coats Mantel Mäntel m it
thing goods clothes small: shirt shirts Hemd Hemden n it
thing post small: letter letters Brief Briefe m it
place room: kitchen kitchens Küche Küchen f it
place room: room rooms Zimmer Zimmer n it
place: garden gardens Garten Gärten m it
place: forest forests Wald Wälder m it
place: city cities Stadt Städte f it
place building: house houses Haus Häuser n it
place building: school schools Schule Schulen f it
place building: hotel hotels Hotel Hotels n it
place building: station stations Bahnhof Bahnhöfe m it
"""

# English, German, the stem that takes the endings, and what it is said of.
ADJECTIVE_TABLE = """
old alt alt: person animal thing place
new neu neu: thing place
big groß groß: animal food thing place
tall groß groß: person
small klein klein: person animal food thing place
young jung jung: person animal
tired müde müd: person animal
hungry hungrig hungrig: person animal
happy glücklich glücklich: person
friendly freundlich freundlich: person
sick krank krank: person animal
strong stark stark: person animal
red rot rot: food thing
black schwarz schwarz: animal thing
beautiful schön schön: thing place
expensive teuer teur: food thing
cheap billig billig: food thing
good gut gut: food
"""

# English base, third person, past, and a word that stays with it (for) or moves (+up: picks it up);
# German prefix|infinitive, third person, auxiliary, participle;
# what it governs: a case, an English and a German preposition and a case, or see Verb.governs;
# kinds of object < kinds of subject (person where nothing is said).
VERB_TABLE = """
buy buys bought; kaufen kauft hat gekauft; acc; goods food
sell sells sold; verkaufen verkauft hat verkauft; acc; goods food
find finds found; finden findet hat gefunden; acc; goods animal
look looks looked for; suchen sucht hat gesucht; acc; goods animal person
see sees saw; sehen sieht hat gesehen; acc; person animal thing < person animal
need needs needed; brauchen braucht hat gebraucht; acc; goods
forget forgets forgot; vergessen vergisst hat vergessen; acc; goods post
repair repairs repaired; reparieren repariert hat repariert; acc; machine switch
eat eats ate; essen isst hat gegessen; acc; food < person animal
wash washes washed; waschen wäscht hat gewaschen; acc; clothes
write writes wrote; schreiben schreibt hat geschrieben; acc; post
visit visits visited; besuchen besucht hat besucht; acc; person
love loves loved; lieben liebt hat geliebt; acc; person animal
open opens opened; auf|machen macht hat aufgemacht; acc; openable
close closes closed; zu|machen macht hat zugemacht; acc; openable
turn turns turned +on; an|machen macht hat angemacht; acc; switch
turn turns turned +off; aus|machen macht hat ausgemacht; acc; switch
tidy tidies tidied +up; auf|räumen räumt hat aufgeräumt; acc; room
pick picks picked +up; ab|holen holt hat abgeholt; acc; person
invite invites invited; ein|laden lädt hat eingeladen; acc; person
call calls called; an|rufen ruft hat angerufen; acc; person
help helps helped; helfen hilft hat geholfen; dat; person animal
thank thanks thanked; danken dankt hat gedankt; dat; person
answer answers answered; antworten antwortet hat geantwortet; dat; person
follow follows followed; folgen folgt ist gefolgt; dat; person animal < person animal
wait waits waited; warten wartet hat gewartet; for auf acc; person < person animal
think thinks thought; denken denkt hat gedacht; of an acc; person place
talk talks talked; sprechen spricht hat gesprochen; to mit dat; person
play plays played; spielen spielt hat gespielt; with mit dat; person animal < person animal
dream dreams dreamed; träumen träumt hat geträumt; of von dat; goods place
give gives gave; geben gibt hat gegeben; to; goods food
show shows showed; zeigen zeigt hat gezeigt; to; goods animal
send sends sent; schicken schickt hat geschickt; to; goods post
bring brings brought; bringen bringt hat gebracht; to; goods food
sleep sleeps slept; schlafen schläft hat geschlafen; place; < person animal
work works worked; arbeiten arbeitet hat gearbeitet; place;
sing sings sang; singen singt hat gesungen; place;
dance dances danced; tanzen tanzt hat getanzt; place;
live lives lived; wohnen wohnt hat gewohnt; place; < person animal
stay stays stayed; bleiben bleibt ist geblieben; place; < person animal
wake wakes woke +up; auf|wachen wacht ist aufgewacht; ; < person animal
get gets got +up; auf|stehen steht ist aufgestanden; ;
arrive arrives arrived; an|kommen kommt ist angekommen; ;
go goes went; gehen geht ist gegangen; goal; < person animal
run runs ran; laufen läuft ist gelaufen; goal; < person animal
come comes came; kommen kommt ist gekommen; goal; < person animal
"""

PERSONAL = {
    "I": Pronoun("I", "me", ("ich", "mich", "mir"), "1s"),
    "we": Pronoun("we", "us", ("wir", "uns", "uns"), "1p"),
    "he": Pronoun("he", "him", ("er", "ihn", "ihm"), "3s"),
    "she": Pronoun("she", "her", ("sie", "sie", "ihr"), "3s"),
    "they": Pronoun("they", "them", ("sie", "sie", "ihnen"), "3p"),
}
# it is as the German noun is that it stands for.
IT = {
    "m": Pronoun("it", "it", ("er", "ihn", "ihm"), "3s"),
    "f": Pronoun("it", "it", ("sie", "sie", "ihr"), "3s"),
    "n": Pronoun("it", "it", ("es", "es", "ihm"), "3s"),
}
NAMES = (Name("Anna", "she"), Name("Maria", "she"), Name("Peter", "he"), Name("Paul", "he"))
PRONOUNS_AND_NAMES: tuple[Nominal, ...] = (*PERSONAL.values(), *NAMES)

INSIDE, BEHIND = Preposition("in", "in", "dat"), Preposition("behind", "hinter", "dat")
ON, UNDER = Preposition("on", "auf", "dat"), Preposition("under", "unter", "dat")
INTO, OUT_OF, TOWARDS = (
    Preposition("into", "in", "acc"),
    Preposition("out of", "aus", "dat"),
    Preposition("to", "zu", "dat"),
)
FOR, WITH, WITHOUT = (
    Preposition("for", "für", "acc"),
    Preposition("with", "mit", "dat"),
    Preposition("without", "ohne", "acc"),
)

TIMES = {
    "present": (Adverb("today", "heute"), Adverb("often", "oft"), Adverb("sometimes", "manchmal")),
    "past": (Adverb("yesterday", "gestern"), Adverb("on Monday", "am Montag"), Adverb("in the morning", "am Morgen")),
    "modal": (Adverb("today", "heute"), Adverb("tomorrow", "morgen"), Adverb("in the evening", "am Abend")),
}

KNOW = Verb("know", "knows", "knew", "", "", "wissen", "weiß", "gewusst", "hat", first="weiß")
SAY = Verb("say", "says", "said", "", "", "sagen", "sagt", "gesagt", "hat")
BELIEVE = Verb("believe", "believes", "believed", "", "", "glauben", "glaubt", "geglaubt", "hat")
HOPE = Verb("hope", "hopes", "hoped", "", "", "hoffen", "hofft", "gehofft", "hat")


def _rows(table: str, mark: str) -> list[list[str]]:
    return [[field.strip() for field in line.split(mark)] for line in table.strip().splitlines()]


def _noun(kinds: str, words: str) -> Noun:
    english, english_plural, german, german_plural, gender, pronoun = words.split()
    return Noun(
        english, english_plural, german.rstrip("*"), german_plural, gender, pronoun, tuple(kinds.split()), "*" in german
    )


def _verb(english: str, german: str, governs: str, kinds: str) -> Verb:
    base, third, past, *more = english.split()
    particle = more[0][1:] if more and more[0][0] == "+" else ""
    if more and not particle:
        base, third, past = (f"{form} {more[0]}" for form in (base, third, past))
    infinitive, german_third, auxiliary, participle = german.split()
    prefix, _, stem = infinitive.rpartition("|")
    objects, _, subjects = kinds.partition("<")
    preposition = None
    if len(governs.split()) == 3:
        meant, said, case = governs.split()
        preposition = Preposition(meant, said, _case(case))
    return Verb(
        english=base,
        english_third=third,
        english_past=past,
        particle=particle,
        prefix=prefix,
        infinitive=stem,
        third=german_third,
        participle=participle,
        auxiliary=auxiliary,
        governs=governs if preposition is None else "preposition",
        preposition=preposition,
        objects=tuple(objects.split()),
        subjects=tuple(subjects.split()) or ("person",),
    )


def _case(text: str) -> Case:
    return "acc" if text == "acc" else "dat"


NOUNS = tuple(_noun(kinds, words) for kinds, words in _rows(NOUN_TABLE, ":"))
VERBS = tuple(_verb(*row) for row in _rows(VERB_TABLE, ";"))
ADJECTIVES = tuple((Adjective(*words.split()), tuple(kinds.split())) for words, kinds in _rows(ADJECTIVE_TABLE, ":"))

INTRANSITIVE = tuple(verb for verb in VERBS if verb.governs in ("place", "goal", ""))
MOODS = tuple(adjective for adjective, _ in ADJECTIVES if adjective.english in ("tired", "hungry", "sick"))
GOALS = {"go": (INTO, TOWARDS), "run": (INTO, OUT_OF, TOWARDS), "come": (INTO, OUT_OF)}
NEED_A_PLACE = ("live", "stay")
NEVER_WITH_MODALS = ("need", "love")
FOR_OR_WITH: dict[str, tuple[Preposition, ...]] = {
    **dict.fromkeys(("buy", "find", "repair", "wash", "write"), (FOR,)),
    **dict.fromkeys(("work", "sing", "dance"), (WITH, WITHOUT)),
}


def nouns(*kinds: str) -> list[Noun]:
    """All nouns of any of these kinds."""
    return [noun for noun in NOUNS if set(kinds) & set(noun.kinds)]


def adjectives(noun: Noun) -> list[Adjective]:
    """All adjectives that fit the noun."""
    return [adjective for adjective, kinds in ADJECTIVES if noun.kinds[0] in kinds]


def pronoun_for(nominal: Nominal) -> Pronoun:
    """The pronoun that takes up somebody or something said before."""
    if isinstance(nominal, Pronoun):
        return nominal
    if isinstance(nominal, Name):
        return PERSONAL[nominal.pronoun]
    if nominal.plural:
        return PERSONAL["they"]
    return IT[nominal.noun.gender] if nominal.noun.pronoun == "it" else PERSONAL[nominal.noun.pronoun]
