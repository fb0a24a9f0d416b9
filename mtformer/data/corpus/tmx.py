"""TMX, the XML format of translation memories: pairs are read one at a time, without entities or external files."""

from collections.abc import Iterator
from xml.etree.ElementTree import Element, ParseError

from mtformer.config.languages import base_code
from mtformer.data.corpus.readers import open_bytes, reading
from mtformer.data.data_report import Pair
from mtformer.errors import DataError, require_extra

LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"


def read_tmx(path: str, src_lang: str, tgt_lang: str) -> Iterator[Pair]:
    """Yield the pairs of the units that have both languages; regions, as in en-US, are ignored.

    Raises DataError if the file cannot be read, is not well-formed XML, declares entities (which can exhaust the
    memory), or has no pair of these languages; ConfigError if the package `defusedxml` is missing.
    """
    require_extra(f"{path}: TMX", "tmx", "defusedxml")
    from defusedxml import DefusedXmlException
    from defusedxml.ElementTree import iterparse

    src, tgt, found, num_pairs, body = base_code(src_lang), base_code(tgt_lang), set[str](), 0, Element("body")
    if src == tgt:
        raise DataError(f"{path}: {src_lang} and {tgt_lang} have the same language code in TMX; give a TSV file")
    with reading(path), open_bytes(path) as file:
        try:
            for event, unit in iterparse(file, ("start", "end")):
                if unit.tag == "body":
                    body = unit
                if unit.tag != "tu" or event == "start":
                    continue
                texts = {
                    base_code(variant.get(LANGUAGE) or variant.get("lang") or ""): _text(segment)
                    for variant in unit.iter("tuv")
                    if (segment := variant.find("seg")) is not None
                }
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


def _text(segment: Element) -> str:
    """Return the text of a segment without the codes of inline elements; only `hi` (highlight) contains text."""
    parts = [segment.text or ""]
    for child in segment:
        parts += [_text(child) if child.tag == "hi" else "", child.tail or ""]
    return "".join(parts)
