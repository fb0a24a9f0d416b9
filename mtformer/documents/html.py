"""Translation of HTML: the same tags around the translations of its texts."""

import gc
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mtformer.decoding.lines.inputs import check_lines
from mtformer.decoding.lines.translation import Translation
from mtformer.decoding.translator import Translator
from mtformer.documents.document import Written
from mtformer.documents.html_reader import read_html
from mtformer.documents.html_writer import write_html
from mtformer.documents.translate import translate_documents


class _CollectorPause:
    """Pause of Python's garbage collector, which threads can share.

    The collector visits all objects again and again while their number grows. Nothing of a page is garbage before it is
    written, so for large pages this doubles the time for nothing.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_threads = 0
        self._was_enabled = False

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Pause the collector until no thread needs the pause anymore."""
        with self._lock:
            if self._num_threads == 0:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._num_threads += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_threads -= 1
                if self._num_threads == 0 and self._was_enabled:
                    gc.enable()


collector_paused = _CollectorPause()


class Fragment:
    """HTML and the texts in it, `lines`; `is_repaired` is True if tags were unclosed or wrongly nested."""

    def __init__(self, html: str) -> None:
        with collector_paused():
            self._page = read_html(html)
        self.lines = self._page.lines
        self.is_repaired = self._page.is_repaired

    def write(self, translations: Sequence[Translation]) -> Written:
        """Return the HTML with translations, which have attention, instead of `lines`."""
        with collector_paused():
            return write_html(self._page, translations)

    def join(self, translations: Sequence[Translation]) -> str:
        """Return only the text of `write`."""
        return self.write(translations).text


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
