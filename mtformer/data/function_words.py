"""Lines in another language, known by its commonest words (Grefenstette 1995): no model, and quick."""

import re
from collections import Counter
from functools import cache

WORDS: dict[str, str] = {
    "en": "the of and to in is that for it was on are as with his they be at this have from or had by but not what "
    "all were we when your can there an which their if will how about out then them would so her him has two "
    "more see than been who its now my did our us you he she i me do no yes where why into only over any here "
    "these those",
    "de": "der die das und in zu den mit von für auf ist im nicht ein eine einen einem einer des sie es dem auch "
    "als sich an werden aus er dass wird bei sind noch nach wie um am über vom war haben nur oder aber vor "
    "zur zum bis mehr durch kann wir ihr ihre uns unsere mich ich du wenn was hier so kein keine diese dieser "
    "dieses",
    "nl": "de het een van en in is dat op te voor met zijn niet aan er om ook als dan maar bij of uit nog naar door "
    "over ze hij wordt deze dit hebben heeft worden ik je u wij jij wat waar hier onze geen meer kan tot",
    "sv": "och att det som en på är av för den med till inte har de ett om men var jag sig från vi så kan när han "
    "hon år eller vid ut också efter nu skulle sin mot bara där ska alla denna detta du hur vad din era",
    "da": "og at det er en den til på som af for med de ikke der har et han i var jeg sig fra vi så kan når om hun "
    "eller ved ud også efter nu skulle sin mod kun hvor skal alle denne dette du hvordan hvad din men",
    "nb": "og å det er en den til på som av for med de ikke har et han i var jeg seg fra vi så kan når om hun eller "
    "ved ut også etter nå skulle sin mot bare hvor skal alle denne dette du hvordan hva din men",
    "is": "og að í er það sem á til við um en var af með ekki fyrir hann þess þetta hefur frá þá eru eða verið vera",
    "fr": "le la les de des du et un une à est en que qui dans pour pas sur au avec il elle ce se ne plus par sont "
    "ou mais nous vous son sa ses cette ces aux être fait comme tout leur votre notre je tu on y été très "
    "sans",
    "es": "el la los las de del y un una en es que con por para no se su al lo como más pero sus le ya o este sí "
    "porque esta entre cuando muy sin sobre también me hasta hay donde quien desde todo nos todos uno son "
    "está tu usted",
    "pt": "o a os as de do da dos das e um uma em no na nos nas é que com por para não se mais como mas ao seu sua "
    "ou quando muito já eu também só pelo pela até isso ela entre depois sem mesmo aos ter seus você são está",
    "it": "il lo la i gli le di del della dei delle e un una uno in nel nella è che con per non si da dal dalla su "
    "sul sulla come più ma anche al alla ai alle sono ha questo questa o se ci mi ti suo sua loro tutti molto",
    "ca": "el la els les de del dels i un una en és que amb per no es al als com més però són seu seva aquest "
    "aquesta també o si ha hi molt sense sobre entre fins quan tot nostre",
    "ro": "și si de la în cu un o pe nu este care se din pentru sunt mai că ce ca sau dar prin după fi am al ale ei "
    "lui lor cele acest această au fost foarte când",
    "pl": "i w na z do się nie że to jest o od za po dla jak ale przez przy oraz są być był była było ten ta te tym "
    "które który która ich jego jej co tylko lub już czy bez także może",
    "cs": "a v na se je s z do o to že by pro jako za po od ale si k jsou jsme být byl byla bylo který která které "
    "tak také nebo jen při až pod jeho její jejich co už není ve ze",
    "sk": "a v na sa je s z do o to že by pre ako za po od ale si k sú sme byť bol bola bolo ktorý ktorá ktoré tak "
    "tiež alebo len pri až pod jeho jej ich čo už nie vo zo",
    "sl": "in v na je se za da z so ki po s pa ne od do kot tudi ali pri kar bi o ter lahko ima samo še že bo sta "
    "to zelo med njegov vse",
    "hr": "i u je na se da za od su s a kao o koji koja koje iz do ne ili po što sa bi te nije bio bila ali može "
    "samo već kako ovaj ova ovo njegov sve više prema biti",
    "hu": "a az és hogy nem is egy ez van volt meg de mint csak ki el már még vagy ha lehet ezt azt amely aki után "
    "több minden itt ott kell nagyon szerint között",
    "fi": "ja on ei että se hän oli ovat mutta kun niin myös tai joka jos kuin ole sen tämä mukaan vain nyt jo sekä "
    "olla hänen mitä siitä kaikki kanssa voi jotka",
    "et": "ja on ei et see ta oli kui ka mis aga ning või oma selle nii kes siis ole kuid seda välja veel olid pole "
    "mida üle",
    "lv": "un ir no ar par kas uz ka tas nav bet kā arī vai tika pie pēc var ko lai tikai viņš ļoti šis to",
    "lt": "ir yra į iš su kad tai ne kaip bet apie per nuo už jo buvo ar tik dar taip jis prie po tačiau labai",
    "tr": "ve bir bu da de için ile çok olarak daha gibi olan en ne var kadar sonra ama ki o her mi değil ya veya "
    "göre olduğu tarafından",
    "id": "yang dan di dari untuk dengan pada ini itu dalam tidak adalah ke akan juga atau oleh ada dapat saya anda "
    "kami mereka telah sebagai bisa lebih sudah karena",
    "vi": "và của là có trong được cho các một không với những người đã này khi để đến ở cũng từ ra như về tôi bạn",
    "ru": "и в не на что с по как к из у за от это он она они мы вы но для так же его её их был была было или при "
    "если бы то также только уже",
    "uk": "і в не на що з до як у за від це він вона вони ми ви але для так його її їх був була було або при якщо "
    "та також тільки вже є",
    "bg": "и в не на че с по как към от за това той тя те ние вие но така му ѝ им беше са или при ако да също само "
    "вече се е",
}
"""The commonest function words of a language by its code."""
SAME = {"no": "nb", "nn": "nb", "bs": "hr", "sh": "hr", "ms": "id"}
"""Languages whose words are those of another, nearly."""
LETTERS = re.compile(r"[^\W\d_]+")
NEEDED, NEEDED_OF_PARTNER = 2, 3
"""Words of a third language, or of the language of the other side, that show that a line is in that one."""


class WordCheck:
    """Tells lines of one side that are in another language.

    Args:
        language: code of the side's language.
        partner: code of the other side's.
    """

    def __init__(self, language: str, partner: str) -> None:
        self.own, self._partner = words_of(language), words_of(partner)
        self._related = {code for code, words in _sets().items() if len(words & self.own) > len(words) / 3}
        self._partner_code = _code(partner)

    def is_foreign(self, line: str, other: str) -> bool:
        """Has the line words of another language that the other line has not, and no word of its own?

        What both lines have is a name; only the language of the other line may show in words that both have, when the
        line is not translated at all.
        """
        if not self.own or not self.own.isdisjoint(line.lower().split()):
            return False
        words = set(LETTERS.findall(line.lower()))
        if not self.own.isdisjoint(words):
            return False
        if len(words & self._partner) >= NEEDED_OF_PARTNER and self._partner_code not in self._related:
            return True
        words -= set(LETTERS.findall(other.lower()))
        found = Counter(code for word in words for code in _languages().get(word, ()))
        return any(count >= NEEDED for code, count in found.items() if code not in self._related)


def words_of(language: str) -> frozenset[str]:
    """The words of a language code such as de or pt-BR; none of one that is not known."""
    return _sets().get(_code(language), frozenset())


def _code(language: str) -> str:
    base = re.split("[-_]", language.lower())[0]
    return SAME.get(base, base)


@cache
def _sets() -> dict[str, frozenset[str]]:
    return {code: frozenset(words.split()) for code, words in WORDS.items()}


@cache
def _languages() -> dict[str, list[str]]:
    """Of each word the languages that have it; single letters are in too many."""
    found: dict[str, list[str]] = {}
    for code, words in _sets().items():
        for word in words:
            if len(word) > 1:
                found.setdefault(word, []).append(code)
    return found
