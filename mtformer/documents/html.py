"""Translation of HTML: the same tags around the translations of its texts."""

from collections.abc import Sequence
from typing import Any

from mtformer.decoding.lines.inputs import check_lines
from mtformer.decoding.lines.translation import Translation
from mtformer.decoding.translator import Translator
from mtformer.documents.html_reader import read_html
from mtformer.documents.html_writer import write_html
from mtformer.documents.translate import translate_documents


class Fragment:
    """HTML and the texts in it, `lines`; `is_repaired` is True if tags were unclosed or wrongly nested."""

    def __init__(self, html: str) -> None:
        self._tree = read_html(html)
        self.text = self._tree.text
        self.lines = [run.text.line for run in self._tree.runs]
        self.is_repaired = self._tree.is_repaired

    def join(self, translations: Sequence[Translation]) -> str:
        """Return the HTML with translations, which have attention, instead of `lines`; to be called once."""
        return write_html(self._tree, translations)


def translate_html(translator: Translator, fragments: Sequence[str], **arguments: Any) -> list[Translation]:
    """Translate HTML fragments, such as lines of a file, with other arguments of `Translator.translate`.

    Line breaks inside a fragment are kept. For arguments that are not supported see `translate_documents`.
    """
    lines = check_lines(fragments)
    documents = []
    for fragment, line in zip(fragments, lines, strict=True):
        html = fragment if "\n" in fragment else line
        documents.append(Fragment(html))
    return translate_documents(translator, documents, **arguments)
