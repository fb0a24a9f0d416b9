"""Time in which a server answers /health while it handles large requests, with an identity translator.

python scripts/bench/serve_health.py RUN [--size CHARACTERS] [--model]

Each row is one kind of request: HTML of a kind of `html_speed`, several pages of it in one request, or plain text as
JSON or as a form. The first row is the server without other requests, which shows how busy the machine is. The last
column is the longest time for which a thread of the server does not let others run, in CPU time, which does not depend
on other processes. With --model, the model of the run translates, as much as it can in the time that a request may
take. The exit code is 1 if an answer of /health takes more than 100 ms.
"""

import argparse
import copy
import http.client
import json
import logging
import multiprocessing
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

from html_speed import PIECE, copy_of, document

from mtformer.decoding.lines.translation import Translation
from mtformer.decoding.translator import Translator
from mtformer.serving.app import create_app
from mtformer.serving.responsiveness import keep_responsive
from mtformer.serving.server import listen, make_server
from mtformer.text.tokenizer import SPACE

KINDS = (
    *("unclosed b", "wrongly nested", "small elements", "without words", "references", "long reference numbers"),
    *("paragraphs", "closed paragraphs", "attributes", "comments", "unclosed comments", "both quotes", "scripts"),
    *("Chinese", "Thai", "nested div", "nested lists", "nested div in b", "one line", "one word", "spaces"),
    *("long attribute", "many attributes"),
)
"""Kinds of documents of `html_speed`."""
SIZE = 1_000_000
"""Default number of bytes of a document."""
PAGE_SIZE = 5_000
"""Number of bytes of each page of a request with several pages."""
MAX_LINES = 1_000
"""Maximum number of lines and texts in a request; see `mtformer.serving.requests`."""
IDLE_SECONDS = 3.0
"""Time in which /health is asked without other requests."""
MAX_SECONDS = 0.1
"""Maximum time for an answer of /health."""
PAUSE_SECONDS = 0.005
"""Time between two requests to /health."""
TICK_SECONDS = 0.001
"""Time after which a thread of the server should run again; see `measure_stops`."""
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"


class Example(NamedTuple):
    """A kind of request."""

    name: str
    body: bytes
    content_type: str


def examples(size: int, source: str, target: str) -> Iterator[Example]:
    """Yield all kinds of requests of a size."""
    languages = {"source": source, "target": target}
    for kind in KINDS:
        fields = {"q": document(kind, size), "format": "html", **languages}
        yield Example(kind, json.dumps(fields).encode(), JSON)

    for kind in ("unclosed b", "paragraphs"):
        pages = [document(kind, PAGE_SIZE)] * (size // PAGE_SIZE)
        fields = {"q": pages, "format": "html", **languages}
        yield Example(f"pages of {kind}", json.dumps(fields).encode(), JSON)

    texts = {
        "text of one line": "x y " * (size // 4),
        "text of many lines": f"{'x y ' * (size // MAX_LINES // 4)}\n" * (MAX_LINES - 1),
        "text with too many lines": "x\n" * (size // 2),
        "Chinese text": "猫が好き。" * (size // 15),
    }
    for name, text in texts.items():
        fields = {"q": text, **languages}
        yield Example(name, json.dumps(fields).encode(), JSON)
        yield Example(f"{name}, form", urlencode(fields).encode(), FORM)


def measure_stops(longest: Any) -> None:
    """Set a shared value to the longest CPU time that this process uses before a waiting thread can run."""
    while True:
        start = time.process_time()
        time.sleep(TICK_SECONDS)
        longest.value = max(longest.value, time.process_time() - start)


def serve(run: str, size: int, has_model: bool, ports: Any, longest_stop: Any) -> None:
    """Serve a run, or an identity translator with its languages; send the port."""
    translator = copy.copy(Translator.load(run, device="cpu"))

    def translate(lines: Sequence[str], **settings: object) -> list[Translation]:
        translations = []
        for line in lines:
            matches = PIECE.finditer(line.replace(" ", SPACE))  # in findall, no other thread runs
            pieces = [match[0] for match in matches]
            translations.append(copy_of(line, pieces))
        return translations

    if not has_model:
        translator.translate = translate  # type: ignore[method-assign]  # replaces the method
    logging.getLogger("mtformer").setLevel(logging.ERROR)
    app = create_app(translator, "identity", max_characters=2 * size, queue_size=10)
    keep_responsive()
    threading.Thread(target=measure_stops, args=(longest_stop,), daemon=True).start()
    with listen("127.0.0.1", 0) as sock:
        ports.put((sock.getsockname()[1], translator.data.directions[0]))
        make_server(app, is_verbose=False).run(sockets=[sock])


def ask_for_health(port: int) -> float:
    """Return the seconds until an answer of /health on a new connection."""
    start = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/health")
    response = connection.getresponse()
    response.read()
    connection.close()
    assert response.status == 200, response.status
    return time.perf_counter() - start


class Post(threading.Thread):
    """A request with a text; `status` and `seconds` are those of its answer."""

    def __init__(self, port: int, example: Example) -> None:
        super().__init__()
        self._port = port
        self._example = example
        self.status = 0
        self.seconds = 0.0

    def run(self) -> None:
        """Send the request, and wait for the answer."""
        start = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        connection.request("POST", "/translate", self._example.body, {"Content-Type": self._example.content_type})
        response = connection.getresponse()
        response.read()
        connection.close()
        self.status = response.status
        self.seconds = time.perf_counter() - start


def print_row(name: str, num_bytes: int, request: str, times: Sequence[float], longest_stop: Any) -> None:
    """Print a row of the table; set the longest stop to 0 for the next one."""
    longest = f"{1000 * max(times):.0f} ms"
    median = f"{1000 * sorted(times)[len(times) // 2]:.0f} ms"
    stop = f"{1000 * longest_stop.value:.0f} ms"
    longest_stop.value = 0.0
    print(f"{name:32}{num_bytes / 1e6:>9.2f}{request:>18}{longest:>18}{median:>10}{stop:>10}", flush=True)


def main() -> int:
    """Print the times for each kind of request; return 1 if one is too long."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", help="run directory")
    parser.add_argument("--size", type=int, default=SIZE, help="bytes of each text")
    parser.add_argument("--model", action="store_true", help="translate with the model of the run")
    parser.add_argument("--kind", action="append", help="only this kind; may be repeated")
    arguments = parser.parse_args()

    context = multiprocessing.get_context("spawn")
    ports = context.Queue()
    longest_stop = context.Value("d", 0.0)
    server = context.Process(target=serve, args=(arguments.run, arguments.size, arguments.model, ports, longest_stop))
    server.start()
    port, (source, target) = ports.get()
    while True:
        try:
            ask_for_health(port)
            break
        except ConnectionError:
            time.sleep(PAUSE_SECONDS)

    print(f"{'kind':32}{'MB':>9}{'request':>18}{'/health: longest':>18}{'median':>10}{'stop':>10}")
    longest_stop.value = 0.0
    times = []
    end = time.monotonic() + IDLE_SECONDS
    while time.monotonic() < end:
        times.append(ask_for_health(port))
        time.sleep(PAUSE_SECONDS)
    print_row("(no other request)", 0, "", times, longest_stop)

    longest = 0.0
    for example in examples(arguments.size, source, target):
        if arguments.kind and example.name not in arguments.kind:
            continue
        post = Post(port, example)
        post.start()
        times = []
        while post.is_alive():
            times.append(ask_for_health(port))
            time.sleep(PAUSE_SECONDS)
        longest = max(longest, *times)
        print_row(example.name, len(example.body), f"{post.status}: {post.seconds:.2f} s", times, longest_stop)
    server.terminate()
    server.join()
    return 1 if longest > MAX_SECONDS else 0


if __name__ == "__main__":
    sys.exit(main())
