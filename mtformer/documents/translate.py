"""Translation of documents of any format."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from mtformer.decoding.lines.translation import Flag, Translation, flag_phrases, join_n_best
from mtformer.decoding.translator import Translator
from mtformer.documents.document import Document
from mtformer.errors import DataError


def translate_documents(
    translator: Translator,
    documents: Sequence[Document],
    *,
    required: Sequence[Sequence[str]] | None = None,
    **arguments: Any,
) -> list[Translation]:
    """Translate the texts of documents, and return a translation for each, whose text is the whole document.

    Args:
        translator: the model.
        documents: documents, each of which can be written once.
        required: phrases that the translation of each document must contain; such a document has at most one text.
        **arguments: further arguments of `Translator.translate`; `prefixes` and `n_best` are not supported.

    Raises:
        DataError: a document with required phrases has several texts.
    """
    lines = list(chain.from_iterable(document.lines for document in documents))
    if required is not None:
        arguments["required"] = _required_in_texts(documents, required, arguments.get("first_line", 0))
    translations = translator.translate(lines, **{**arguments, "attention": True})

    results = []
    start = 0
    for document in documents:
        of_document = translations[start : start + len(document.lines)]
        start += len(document.lines)
        # The text and attention of all lines are not needed; to join them would take much time.
        n_bests = [[replace(translation, text="", attention=None)] for translation in of_document]
        [joined] = join_n_best(n_bests, translator.decoding.length_penalty)
        written = document.write(of_document)
        flags = joined.flags
        if document.is_repaired:
            flags = (*flags, Flag.REPAIRED)
        if written.has_lost_marks:
            flags = (*flags, Flag.LOST_TAG)
        results.append(replace(joined, text=written.text, flags=flags))

    if required is not None:
        for number, document in enumerate(documents):
            if not document.lines:
                results[number] = flag_phrases(results[number], "", required[number])
    return results


def _required_in_texts(
    documents: Sequence[Document], required: Sequence[Sequence[str]], first_line: int
) -> list[Sequence[str]]:
    """Return the required phrases of each text; it is not known which of several texts has to contain a phrase."""
    if len(required) != len(documents):
        raise DataError(f"{len(documents)} documents, but {len(required)} lists of required phrases; give one for each")

    required_in_texts: list[Sequence[str]] = []
    for number, (document, phrases) in enumerate(zip(documents, required, strict=True), start=first_line + 1):
        num_texts = len(document.lines)
        if phrases and num_texts > 1:
            raise DataError(
                f"line {number}: has {num_texts} texts, and it is not known which one needs the required phrases; "
                "write each text on a line of its own, or use a glossary"
            )
        required_in_texts += [phrases] * num_texts
    return required_in_texts
