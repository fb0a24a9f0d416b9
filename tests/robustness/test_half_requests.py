"""Attacks on the server with partial, damaged and random requests: it keeps answering other clients without errors."""

import json
import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest
from attack_tools import Attacks, Passed
from served import serving

from mtformer.decoding.translator import Translator

SEED = 1
OPEN_AT_ONCE = 50
"""Maximum number of bad connections that stay open during valid requests."""
BODY = json.dumps({"q": "the dog sees the house", "source": "en", "target": "de"}).encode()
HEAD = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


def bad_request(chance: random.Random) -> bytes:
    """Return a request that is truncated, has a wrong length or damaged bytes, or consists of random bytes."""
    whole = HEAD % len(BODY) + BODY
    kind = chance.choice(["cut", "cut", "longer", "noise", "odd", "negative", "many headers", "chunks", "deep"])
    start = chance.randrange(len(whole))
    if kind == "cut":
        return whole[:start]
    if kind == "longer":
        return HEAD % (len(BODY) + chance.randrange(1, 1 << 20)) + BODY
    if kind == "noise":
        return chance.randbytes(chance.choice([1, 100, 100_000]))
    if kind == "odd":
        return whole[:start] + chance.choice([b"\x00", b"\xff", b"\r\n\r\n", b"\n", b"{", b'"', b"\\u"]) + whole[start:]
    if kind == "negative":
        return HEAD.replace(b"%d", chance.choice([b"-1", b"x", b"9" * 400, b""])) + BODY
    if kind == "many headers":
        return whole.replace(b"\r\n\r\n", b"\r\n" + b"X: y\r\n" * 5000 + b"\r\n", 1)
    if kind == "chunks":
        chunked = HEAD.replace(b"Content-Length: %d", b"Transfer-Encoding: chunked")
        return chunked + chance.choice([b"5\r\nabc", b"zz\r\n", b"-1\r\n", b"ffffffffffffffff\r\nx"])
    return HEAD % 20_000 + b"[" * 20_000


def status(connection: socket.socket) -> int | None:
    """Return the status of the response if it arrives within 50 ms; None if it does not or the connection is closed."""
    connection.settimeout(0.05)
    try:
        answer = connection.recv(100)
    except OSError:
        return None
    return int(answer.split(b" ")[1]) if answer else None


@pytest.fixture(scope="module")
def url(trained: tuple[Path, object]) -> Iterator[str]:
    with serving(Translator.load(trained[0], device="cpu")) as address:
        yield address


def test_bad_requests(url: str, attacks: Attacks, passed: Passed) -> None:
    chance, total, num_passed = random.Random(SEED), attacks(30), 0
    host, port = url.removeprefix("http://").split(":")
    with ExitStack() as stack, httpx2.Client(base_url=url, timeout=60) as client:
        waiting, unanswered = list[socket.socket](), list[socket.socket]()
        for _ in range(total):
            connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=60))
            try:
                connection.sendall(bad_request(chance))
                if chance.random() < 0.3:
                    connection.shutdown(socket.SHUT_WR)
            except OSError:  # the server rejected the request before it was complete
                pass
            answered = status(connection)
            good = client.post("/translate", json=json.loads(BODY))
            num_passed += good.status_code == 200 and (answered is None or answered < 500)
            waiting.append(connection)
            unanswered += [connection] * (answered is None)
            if chance.random() < 0.5 or len(waiting) > OPEN_AT_ONCE:
                waiting.pop(chance.randrange(len(waiting))).close()
        assert all((status(connection) or 0) < 500 for connection in unanswered if connection in waiting)
    passed("bad requests: valid requests are answered", num_passed, total)
