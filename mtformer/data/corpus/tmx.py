"""TMX, the XML format of translation memories: pairs are read one at a time, without entities or external files."""

from collections.abc import Iterator
from xml.etree.ElementTree import Element, ParseError

from mtformer.config.languages import base_code
from mtformer.data.corpus.formats import Content
from mtformer.data.corpus.readers import open_text, reading
from mtformer.data.data_report import Pair
from mtformer.errors import DataError, require_extra
from mtformer.formatting import printable

LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
"""Attribute `xml:lang` of a text."""

NATIVE_CODES = ("bpt", "ept", "it", "ph", "ut")
"""Inline elements of TMX 1.4 that contain mark-up of the original document instead of text."""

ACCEPTED = (
    Content.TMX,
    Content.XML,
    Content.UTF_16,
    Content.UTF_32,
    Content.OTHER_ENCODING,
    Content.CSV,
)
"""Contents of a translation memory: XML in any encoding; the parser refuses everything that is not XML."""

NAMES_LENGTH = 100
"""Maximum number of characters of the languages in a message."""


def read_tmx(path: str, src_lang: str, tgt_lang: str) -> Iterator[Pair]:
    """Yield the pairs of the units that have both languages, each with the first text of its language.

    Regions, as in en-US, are ignored, except that texts with the same codes as the arguments come first.

    Args:
        path: the file.
        src_lang: language code of the source.
        tgt_lang: language code of the target.

    Raises DataError if the file cannot be read, is not well-formed XML, declares entities (which can exhaust the
    memory), or has no pair of these languages; ConfigError if the package `defusedxml` is missing.
    """
    require_extra(f"{path}: TMX", "tmx", "defusedxml")
    src = base_code(src_lang)
    tgt = base_code(tgt_lang)
    if src == tgt:
        raise DataError(f"{path}: {src_lang} and {tgt_lang} have the same language code in TMX; give a TSV file")

    preferred_codes = {_plain(src_lang), _plain(tgt_lang)}
    languages: set[str] = set()
    num_pairs = 0
    for unit in _units(path):
        texts = _texts(unit, preferred_codes)
        languages.update(texts)
        if src in texts and tgt in texts:
            num_pairs += 1
            yield texts[src], texts[tgt]

    if not num_pairs:
        names = printable(", ".join(sorted(languages)), NAMES_LENGTH) or "none"
        raise DataError(
            f"{path}: no {src}-{tgt} pairs; languages in the file: {names}; give a file with both languages"
        )


def _units(path: str) -> Iterator[Element]:
    """Yield each unit (`tu`), which contains a text in each language; it is valid until the next one is read."""
    from defusedxml import DefusedXmlException
    from defusedxml.ElementTree import iterparse

    body = Element("body")
    with reading(path), open_text(path, ACCEPTED) as file:
        try:
            for event, element in iterparse(file, ("start", "end")):
                if _tag(element) == "body":
                    body = element
                if _tag(element) == "tu" and event == "end":
                    yield element
                    body.clear()  # otherwise, the whole file would stay in memory
        except DefusedXmlException as error:
            raise DataError(
                f"{path}: declares XML entities, which are not read because they can exhaust the memory; remove them"
            ) from error
        except (ParseError, ValueError, LookupError) as error:  # the last two: an encoding that is not supported
            raise DataError(f"{path}: not well-formed XML: {printable(str(error))}; repair the file") from error


def _texts(unit: Element, preferred_codes: set[str]) -> dict[str, str]:
    """Return the first text of each language of a unit; texts with one of these language codes come first."""
    variants = [(_language(variant), variant) for variant in unit if _tag(variant) == "tuv"]
    variants.sort(key=lambda item: _plain(item[0]) not in preferred_codes)
    texts: dict[str, str] = {}
    for language, variant in variants:
        for segment in variant:
            if _tag(segment) == "seg":
                texts.setdefault(base_code(language), _text(segment))
    return texts


def _language(variant: Element) -> str:
    return variant.get(LANGUAGE) or variant.get("lang") or ""


def _plain(code: str) -> str:
    return code.lower().replace("_", "-")


def _tag(element: Element) -> str:
    """Return the name of an element without its namespace."""
    return element.tag.rpartition("}")[2]


def _text(segment: Element) -> str:
    """Return the text of a segment without the native codes in inline elements, and with that of all others.

    It is not recursive, because elements can be nested deeper than Python's functions.
    """
    parts: list[str] = []
    pending: list[Element | str] = [segment]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            parts.append(item)
            continue
        parts.append(item.text or "")
        for child in reversed(item):  # the last one that is added is the first one that is read
            pending.append(child.tail or "")
            if _tag(child) not in NATIVE_CODES:
                pending.append(child)
    return "".join(parts)
