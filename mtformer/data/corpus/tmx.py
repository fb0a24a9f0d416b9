"""TMX, the XML format of translation memories: pairs are read one at a time, without entities or external files."""

from collections.abc import Iterator
from xml.etree.ElementTree import Element, ParseError

from mtformer.config.languages import base_code
from mtformer.data.corpus.readers import open_bytes, reading
from mtformer.data.data_report import Pair
from mtformer.errors import DataError, require_extra

LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
NATIVE_CODES = ("bpt", "ept", "it", "ph", "ut")
"""Inline elements of TMX 1.4 that contain mark-up of the original document instead of text."""


def read_tmx(path: str, src_lang: str, tgt_lang: str) -> Iterator[Pair]:
    """Yield the pairs of the units that have both languages, each with the first text of its language.

    Regions, as in en-US, are ignored, except that texts with the same code as the model come first.

    Raises DataError if the file cannot be read, is not well-formed XML, declares entities (which can exhaust the
    memory), or has no pair of these languages; ConfigError if the package `defusedxml` is missing.
    """
    require_extra(f"{path}: TMX", "tmx", "defusedxml")
    from defusedxml import DefusedXmlException
    from defusedxml.ElementTree import iterparse

    src, tgt, found, num_pairs, body = base_code(src_lang), base_code(tgt_lang), set[str](), 0, Element("body")
    own = {_plain(src_lang), _plain(tgt_lang)}
    if src == tgt:
        raise DataError(f"{path}: {src_lang} and {tgt_lang} have the same language code in TMX; give a TSV file")
    with reading(path), open_bytes(path) as file:
        try:
            for event, unit in iterparse(file, ("start", "end")):
                if _tag(unit) == "body":
                    body = unit
                if _tag(unit) != "tu" or event == "start":
                    continue
                variants = [(one.get(LANGUAGE) or one.get("lang") or "", one) for one in unit if _tag(one) == "tuv"]
                texts = dict[str, str]()
                for language, variant in sorted(variants, key=lambda one: _plain(one[0]) not in own):
                    for segment in (one for one in variant if _tag(one) == "seg"):
                        texts.setdefault(base_code(language), _text(segment))
                found.update(texts)
                if src in texts and tgt in texts:
                    num_pairs += 1
                    yield texts[src], texts[tgt]
                body.clear()
        except DefusedXmlException as error:
            raise DataError(f"{path}: declares XML entities, which are not supported for security") from error
        except (ParseError, ValueError, LookupError) as error:  # the last two: an encoding that is not supported
            raise DataError(f"{path}: not well-formed XML: {error}; repair the file") from error
    if not num_pairs:
        raise DataError(f"{path}: no {src}-{tgt} pairs; languages in the file: {', '.join(sorted(found)) or 'none'}")


def _plain(code: str) -> str:
    return code.lower().replace("_", "-")


def _tag(element: Element) -> str:
    return element.tag.rpartition("}")[2]  # without a namespace


def _text(segment: Element) -> str:
    """Return the text of a segment without the native codes in inline elements, and with that of all others."""
    parts = [segment.text or ""]
    for child in segment:
        parts += ["" if _tag(child) in NATIVE_CODES else _text(child), child.tail or ""]
    return "".join(parts)
