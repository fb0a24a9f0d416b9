"""Translation of documents of any format."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from mtformer.decoding.lines.translation import Flag, Translation, join_n_best
from mtformer.decoding.translator import Translator
from mtformer.documents.document import Document


def translate_documents(translator: Translator, documents: Sequence[Document], **arguments: Any) -> list[Translation]:
    """Translate the texts of documents, and return a translation for each, whose text is the whole document.

    Args:
        translator: the model.
        documents: documents, each of which can be written once.
        **arguments: arguments of `Translator.translate`; those that have a value for each line, and `n_best`, are not
            supported.
    """
    lines = list(chain.from_iterable(document.lines for document in documents))
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
    return results
