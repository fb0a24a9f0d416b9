"""Time in which a server answers /health while it reads and writes large HTML, with an identity translator.

python scripts/bench/serve_health.py RUN [--size CHARACTERS]

Without --size, the documents have the default maximum of `mtformer serve`. The exit code is 1 if an answer takes more
than 100 ms.
"""

import argparse
import copy
import gc
import http.client
import json
import logging
import multiprocessing
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from html_speed import document, identity

from mtformer.decoding.lines.translation import Translation
from mtformer.decoding.translator import Translator
from mtformer.serving.app import create_app
from mtformer.serving.server import listen, make_server

KINDS = ("unclosed b", "small elements", "paragraphs", "unclosed comments", "one line", "nested div")
"""Kinds of documents of `html_speed`."""
SIZE = 5_000
"""Default size of a document in characters."""
NUM_DOCUMENTS = 20
"""Number of documents of each kind that are sent in sequence."""
MAX_SECONDS = 0.1
"""Maximum time for an answer of /health."""
PAUSE_SECONDS = 0.01
"""Time between two requests to /health."""


def serve(run: str, size: int, ports: Any) -> None:
    """Serve an identity translator with the languages of a run; send its port."""
    translator = copy.copy(Translator.load(run, device="cpu"))

    def translate(lines: Sequence[str], **settings: object) -> list[Translation]:
        return [identity(line) for line in lines]

    translator.translate = translate  # type: ignore[method-assign]  # replaces the method
    logging.getLogger("mtformer").setLevel(logging.ERROR)
    app = create_app(translator, "identity", max_characters=size, queue_size=10)
    gc.collect()
    gc.freeze()  # as `mtformer serve` does
    with listen("127.0.0.1", 0) as sock:
        ports.put((sock.getsockname()[1], translator.data.directions[0]))
        make_server(app, is_verbose=False).run(sockets=[sock])


def request(port: int, method: str, path: str, body: bytes | None = None) -> float:
    """Send a request, and return the seconds until its answer."""
    start = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request(method, path, body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    response.read()
    connection.close()
    assert response.status == 200, response.status
    return time.perf_counter() - start


def post(port: int, body: bytes, seconds: list[float]) -> None:
    """Send a document again and again, and add the time of each translation."""
    for _ in range(NUM_DOCUMENTS):
        seconds.append(request(port, "POST", "/translate", body))


def main() -> int:
    """Print the times for each kind of document; return 1 if one is too long."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", help="run directory")
    parser.add_argument("--size", type=int, default=SIZE, help="characters in each document")
    arguments = parser.parse_args()

    context = multiprocessing.get_context("spawn")
    ports = context.Queue()
    server = context.Process(target=serve, args=(arguments.run, arguments.size, ports), daemon=True)
    server.start()
    port, (source, target) = ports.get()
    while True:
        try:
            request(port, "GET", "/health")
            break
        except ConnectionError:
            time.sleep(PAUSE_SECONDS)

    longest = 0.0
    print(f"{'kind':24}{'translation':>14}{'/health: longest':>18}{'median':>10}")
    for kind in KINDS:
        fields = {"q": document(kind, arguments.size), "source": source, "target": target, "format": "html"}
        body = json.dumps(fields).encode()
        seconds: list[float] = []
        poster = threading.Thread(target=post, args=(port, body, seconds))
        poster.start()
        times = []
        while poster.is_alive():
            times.append(request(port, "GET", "/health"))
            time.sleep(PAUSE_SECONDS)
        times.sort()
        longest = max(longest, times[-1])
        print(f"{kind:24}{max(seconds):12.2f} s{1000 * times[-1]:15.0f} ms{1000 * times[len(times) // 2]:7.0f} ms")
    server.terminate()
    return 1 if longest > MAX_SECONDS else 0


if __name__ == "__main__":
    sys.exit(main())
