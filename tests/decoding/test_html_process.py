"""HTML that another process reads and writes: the same results, and an end of that process in any case."""

import gc
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import get_context
from typing import Any

import pytest

from mtformer.decoding.lines.translation import Attention, Translation
from mtformer.documents import html_process
from mtformer.documents.document import Mark
from mtformer.documents.html import Fragment
from mtformer.documents.html_process import FragmentInProcess, HtmlProcess, HtmlProcessError
from mtformer.errors import MtformerError
from mtformer.text.tokenizer import SPACE

PAGES = [
    "<p>a <b>red</b> dog &amp; <i>a cat</i></p><p>no marks",
    "<ul><li>ein <a href='x'>Hund</a>, der rennt<li>und <b>noch <i>einer</b></ul>",
    "<p>الكلب <b>الأحمر</b> يجري</p>\n<!-- c --><p>кот <br> спит",
    "<p>猫が<em>好き</em>です。<br>犬<ruby>走<rt>はし</rt></ruby>る",
    "<div>แมว<b>กิน</b>ปลา</div><script>1 < 2</script>",
    "<p>lone \udc80 surrogate <b>x</b>",
    "<br>",
    "",
]
END_OF_PARENT = """
import os, signal, sys
from mtformer.documents.html_process import FragmentInProcess, HtmlProcess

if __name__ == "__main__":
    process = HtmlProcess()
    print(FragmentInProcess("<p>a dog", process).lines, flush=True)
    ending = sys.argv[1]
    if ending != "exit":
        os.kill(os.getpid(), getattr(signal, ending))
"""


@pytest.fixture(scope="module")
def process() -> Iterator[HtmlProcess]:
    process = HtmlProcess()
    yield process
    process.close()


def reversed_words(line: str) -> Translation:
    """Return the words of a line in the opposite order, with attention from each to its source."""
    pieces = [f"{SPACE}{word}" for word in line.split()]
    numbers = list(range(len(pieces)))
    attention = Attention(pieces, pieces[::-1], [[1.0]] * len(pieces), numbers[::-1])
    return Translation(" ".join(line.split()[::-1]), 0.0, [], attention=attention)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_read_and_written_as_in_this_process(process: HtmlProcess, page: str) -> None:
    expected = Fragment(page)
    found = FragmentInProcess(page, process)
    assert (found.lines, found.is_repaired) == (expected.lines, expected.is_repaired)
    translations = [reversed_words(line) for line in expected.lines]
    assert found.write(translations) == expected.write(translations)


def test_pages_may_be_written_in_another_order_and_again(process: HtmlProcess) -> None:
    fragments = [FragmentInProcess(page, process) for page in PAGES]
    for page, fragment in list(zip(PAGES, fragments, strict=True))[::-1]:
        for translate in (reversed_words, lambda line: Translation(line.upper(), 0.0, [])):
            translations = [translate(line) for line in fragment.lines]
            assert fragment.write(translations) == Fragment(page).write(translations)


def test_an_exception_is_raised_in_this_process(process: HtmlProcess) -> None:
    fragment = FragmentInProcess("<p>a dog", process)
    pid = process.pid
    with pytest.raises(RuntimeError, match="StopIteration"):
        fragment.write([])
    assert fragment.lines == FragmentInProcess("<p>a dog", process).lines
    assert process.pid == pid


def test_a_killed_process_is_one_error_and_the_next_page_starts_another(
    process: HtmlProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    fragment = FragmentInProcess("<p>a <b>dog", process)
    pids = {process.pid}
    send = html_process._Channel.send

    def send_and_kill(channel: Any, call: object) -> None:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)  # so that it cannot answer before it is killed
        os.waitpid(process.pid, os.WUNTRACED)
        send(channel, call)
        os.kill(process.pid, signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr(html_process._Channel, "send", send_and_kill)
        with pytest.raises(HtmlProcessError, match="memory ran out; send less HTML at a time"):
            fragment.write([reversed_words("a dog")])
    assert process.pid is None
    assert fragment.write([reversed_words("a dog")]).text == "<p><b>dog</b> a</p>"
    pids.add(process.pid)

    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)  # between two pages
    assert process._process is not None
    process._process.join()
    assert fragment.write([reversed_words("a dog")]).text == "<p><b>dog</b> a</p>"
    pids.add(process.pid)
    assert len(pids) == 3
    assert issubclass(HtmlProcessError, MtformerError)


def test_memory_that_runs_out_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(html: str) -> None:
        raise MemoryError

    monkeypatch.setattr(html_process, "read_html", fail)
    ours, theirs = get_context("spawn").Pipe()
    html_process._Channel(ours).send(html_process._Call("<p>a", None))
    handler = signal.getsignal(signal.SIGINT)
    try:
        html_process._work(theirs)  # returns, and the process ends
    finally:
        signal.signal(signal.SIGINT, handler)
        gc.enable()
    assert not ours.poll()


def test_ctrl_c_is_for_the_other_process(process: HtmlProcess) -> None:
    FragmentInProcess("<p>a dog", process)
    pid = process.pid
    assert pid is not None
    os.kill(pid, signal.SIGINT)
    assert FragmentInProcess("<p>a cat", process).lines == ["a cat"]
    assert process.pid == pid


def test_a_closed_process_does_not_start_again() -> None:
    process = HtmlProcess()
    process.close()
    with pytest.raises(HtmlProcessError):
        FragmentInProcess("<p>a dog", process)
    assert process.pid is None


@pytest.mark.process
@pytest.mark.parametrize("ending", ["exit", "SIGTERM", "SIGKILL", "SIGINT"])
def test_the_process_ends_with_its_parent(ending: str, tmp_path: Any) -> None:
    """The output, which both have, ends when the last of them has ended."""
    script = tmp_path / "parent.py"
    script.write_text(END_OF_PARENT, encoding="utf-8")
    parent = subprocess.Popen([sys.executable, script, ending], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = parent.communicate(timeout=120)
    assert out == b"['a dog']\n"
    assert b"html_process" not in err


def test_the_process_imports_no_pytorch() -> None:
    code = "import sys, mtformer.documents.html_process; print({'torch', 'numpy'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"


def test_objects_are_sent_in_small_parts() -> None:
    """While pickle writes a part, no other thread runs, such as the event loop of a server."""
    sizes = []

    class Connection:
        def send_bytes(self, part: bytes) -> None:
            sizes.append(len(part))

    attention = Attention([], [], [[math.pi] * 25 for _ in range(10_000)], [])
    html_process._Channel(Connection()).send(Translation("", 0.0, [], attention=attention))  # type: ignore[arg-type]
    assert sum(sizes) > 2_000_000
    assert max(sizes) < 100_000


def test_the_memory_of_a_page_is_free_without_the_garbage_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        fragment = Fragment("<p>a <b>red <i>dog</i> x</b> y</p>" * 10)
        fragment.write([reversed_words(line) for line in fragment.lines])
        assert any(type(item) is Mark for item in gc.get_objects())
        del fragment
        assert not any(type(item) is Mark for item in gc.get_objects())
    finally:
        gc.enable()
