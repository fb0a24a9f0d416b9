"""Reading and writing of HTML in a process of its own, while this process does other work.

Reading and writing is Python code, which holds Python's lock (GIL) for most of its time, and without a break while the
tree of a page is freed. In a thread, a page of 1 MB would delay all other threads by up to seconds.
"""

import gc
import io
import multiprocessing
import pickle
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from mtformer.decoding.lines.translation import Attention, Translation
from mtformer.documents.document import Written
from mtformer.documents.html_reader import HtmlPage, read_html
from mtformer.documents.html_writer import write_html
from mtformer.errors import MtformerError

KEPT_SECONDS = 10.0
"""Time for which an idle process keeps the last page, so that it need not be read again to be written."""


class HtmlProcessError(MtformerError):
    """Raised if the process was killed, usually by the system, or had not enough memory."""


class HtmlTexts(NamedTuple):
    """Content read from a page; see `Fragment`."""

    lines: list[str]
    is_repaired: bool
    marked: list[int]
    """Numbers of the texts with marks, from 0; only their translations need attention."""


class _Translated(NamedTuple):
    """Parts of a translation that a page needs."""

    texts: list[str]
    attention: dict[int, Attention | None]
    """The attention of some of them by number."""


class _Call(NamedTuple):
    """A page that the process reads or writes."""

    html: str
    translated: _Translated | None
    """None: it is only read."""


class HtmlProcess:
    """A process that reads and writes HTML, one page at a time.

    It starts with the first page, and again after it was killed. It has no model, and does not import PyTorch. It ends
    with `close`, and when this process ends in any way.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: BaseProcess | None = None
        self._channel: _Channel
        """Connection to `_process`."""
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        """Number of the running process; None if there is none."""
        return None if self._process is None else self._process.pid

    def answer(self, call: _Call) -> Any:
        """Return the `HtmlTexts` or the `Written` of a page; raise HtmlProcessError if the process ends."""
        with self._lock:
            try:
                self._start()
                self._channel.send(call)
                answer = self._channel.receive()
            except (EOFError, OSError, MemoryError):
                self._stop()
                raise HtmlProcessError(
                    "the process that reads HTML ended, most likely because memory ran out; send less HTML at a time"
                ) from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        """End the process, also in the middle of a page."""
        self._is_closed = True
        process = self._process
        if process is not None:
            process.kill()
        with self._lock:
            self._stop()

    def _start(self) -> None:
        """Start the process unless it is running."""
        if self._is_closed:
            raise EOFError
        if self._process is not None and self._process.is_alive():
            return
        self._stop()
        context = multiprocessing.get_context("spawn")
        connection, connection_of_process = context.Pipe()
        process = context.Process(target=_work, args=(connection_of_process,), name="html", daemon=True)
        with _sigint_blocked():
            process.start()
        self._process = process
        self._channel = _Channel(connection)
        # Now only the process has this end of the connection, so that the other end notices when it is killed.
        connection_of_process.close()

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._channel.close()
        self._process = None


class FragmentInProcess:
    """HTML and the texts in it, like `Fragment`, which another process reads and writes."""

    def __init__(self, html: str, process: HtmlProcess) -> None:
        self._html = html
        self._process = process
        texts: HtmlTexts = process.answer(_Call(html, None))
        self.lines = texts.lines
        self.is_repaired = texts.is_repaired
        self._marked = texts.marked

    def write(self, translations: Sequence[Translation]) -> Written:
        """Return the HTML with translations, which have attention, instead of `lines`."""
        texts = [translation.text for translation in translations]
        attention = {number: translations[number].attention for number in self._marked}
        call = _Call(self._html, _Translated(texts, attention))
        written: Written = self._process.answer(call)
        return written


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Block Ctrl-C in this thread, and in a process until it ignores it; it would show a traceback while it starts."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class _Channel:
    """A connection for objects of any size.

    The methods of `Connection` pickle a whole object without a break, in which no other thread of this process runs.
    Here, pickle writes and reads parts of 64 KB, and threads can switch between them.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._reader = io.BufferedReader(_Parts(connection))

    def send(self, value: object) -> None:
        """Send an object; raise OSError if the other process ended."""
        pickle.dump(value, self, protocol=pickle.HIGHEST_PROTOCOL)

    def write(self, part: bytes) -> None:
        """Send a part of an object."""
        self._connection.send_bytes(part)

    def receive(self) -> Any:
        """Return the next object; raise EOFError or OSError if the other process ended."""
        return pickle.load(self._reader)

    def is_idle(self, seconds: float) -> bool:
        """Return True if no object arrives within a time."""
        return not self._connection.poll(seconds)

    def close(self) -> None:
        """Close this end."""
        self._connection.close()


class _Parts(io.RawIOBase):
    """The parts of objects that arrive."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection
        self._part = memoryview(b"")
        """Bytes that have arrived and are not read."""

    def readable(self) -> bool:
        """Return True: parts are only read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read at most one part."""
        if not self._part:
            self._part = memoryview(self._connection.recv_bytes())
        size = min(len(buffer), len(self._part))
        buffer[:size] = self._part[:size]
        self._part = self._part[size:]
        return size


def _work(connection: Connection) -> None:
    """Answer calls until the other process closes the connection or ends; end if memory runs out."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the other process, which then ends this one
    gc.disable()  # the collector would visit a page again and again while it grows; a page needs no collector
    channel = _Channel(connection)
    pages = _LastPage()
    while True:
        if channel.is_idle(KEPT_SECONDS):
            pages.drop()
        try:
            # Without variables, which would keep objects until the next call.
            channel.send(pages.answer(channel.receive()))
        except (EOFError, OSError, MemoryError):
            return


class _LastPage:
    """The page that was read last; at most one is in memory."""

    def __init__(self) -> None:
        self._html: str | None = None
        self._page: HtmlPage | None = None

    def answer(self, call: _Call) -> HtmlTexts | Written | Exception:
        """Read or write a page; an exception becomes one that can be pickled."""
        try:
            page = self._read(call.html)
            if call.translated is None:
                marked = [number for number, run in enumerate(page.runs) if run.text.marks]
                return HtmlTexts(page.lines, page.is_repaired, marked)
            return write_html(page, _translations(call.translated))
        except MemoryError:
            raise
        except Exception as error:
            return RuntimeError(f"{type(error).__name__}: {error}")

    def drop(self) -> None:
        """Free the memory of the page."""
        self._html = None
        self._page = None

    def _read(self, html: str) -> HtmlPage:
        if self._page is None or self._html != html:
            self.drop()
            self._page = read_html(html)
            self._html = html
        return self._page


def _translations(translated: _Translated) -> list[Translation]:
    translations = []
    for number, text in enumerate(translated.texts):
        translation = Translation(text, 0.0, [], attention=translated.attention.get(number))
        translations.append(translation)
    return translations
