"""A real server under load, and the addresses it listens on."""

import asyncio
import contextlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import httpx2
import pytest
from deep_translator import LibreTranslator
from deep_translator.exceptions import AuthorizationException
from libretranslatepy import LibreTranslateAPI
from served import alone, recorded, run_async, serving, some_lines

from mtformer.decoding.translator import Translator
from mtformer.errors import ConfigError
from mtformer.serving import server
from mtformer.serving.server import is_local, listen, url

NUM_REQUESTS = 100


def test_each_of_a_hundred_concurrent_requests_gets_its_own_translation(translator: Translator) -> None:
    mine, calls = recorded(translator)
    lines = some_lines(NUM_REQUESTS, seed=7)
    expected = [one.text for one in translator.translate(lines)]
    assert expected[:5] == [alone(translator, line) for line in lines[:5]]
    assert len(set(expected)) > NUM_REQUESTS / 2

    async def ask_all(place: str) -> list[httpx2.Response]:
        limits = httpx2.Limits(max_connections=NUM_REQUESTS)
        async with httpx2.AsyncClient(base_url=place, limits=limits, timeout=60) as client:
            asked = [{"q": line, "source": "en", "target": "de"} for line in lines]
            return list(await asyncio.gather(*(client.post("/translate", json=fields) for fields in asked)))

    with serving(mine) as place:
        answers = run_async(ask_all(place))
    assert {answer.status_code for answer in answers} == {200}
    assert [answer.json()["translatedText"] for answer in answers] == expected
    assert sorted(line for some in calls for line in some) == sorted(lines)
    assert len(calls) < NUM_REQUESTS / 4, "requests were not translated together"


@pytest.mark.parametrize("path", ["translate", "words"])
def test_requests_that_wait_at_shutdown_get_an_error(
    translator: Translator, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(server, "GRACE_SECONDS", 0.1)
    begun, may_continue = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        begun.set()
        assert may_continue.wait(20)

    with ThreadPoolExecutor(1) as pool:
        with serving(recorded(translator, hold)[0]) as place:
            fields = {"q": "a dog", "source": "en", "target": "de"}
            asked = pool.submit(httpx2.post, f"{place}/{path}", json=fields, timeout=60)
            assert begun.wait(20)
            threading.Timer(1.0, may_continue.set).start()
        answer = asked.result(20)
    assert (answer.status_code, answer.json()) == (503, {"error": "the server is shutting down"})


def test_an_incomplete_request_at_shutdown_is_answered(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "GRACE_SECONDS", 0.1)
    with contextlib.ExitStack() as stack:
        with serving(translator) as place:
            client = stack.enter_context(socket.create_connection(("127.0.0.1", urlsplit(place).port), timeout=20))
            client.sendall(b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
            time.sleep(0.3)
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 408 ")


def test_every_request_is_answered_under_overload(translator: Translator) -> None:
    mine, _ = recorded(translator, lambda _: time.sleep(0.05))
    fields = {"q": "a dog", "source": "en", "target": "de"}
    with serving(mine, queue_size=2) as place, ThreadPoolExecutor(30) as pool:
        answers = list(pool.map(lambda _: httpx2.post(f"{place}/translate", json=fields, timeout=60), range(90)))
    assert {answer.status_code for answer in answers} == {200, 503}
    assert all(int(answer.headers["retry-after"]) > 0 for answer in answers if answer.status_code == 503)


HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize("first", [b"", HEALTH], ids=["new", "used"])
@pytest.mark.parametrize("trickle", [b"", b"x"], ids=["silent", "trickling"])
def test_a_request_head_that_does_not_arrive_times_out(
    translator: Translator, monkeypatch: pytest.MonkeyPatch, first: bytes, trickle: bytes
) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.5)
    with serving(translator) as place, socket.create_connection(("127.0.0.1", urlsplit(place).port)) as client:
        client.settimeout(0.05)
        client.sendall(first + b"GET /h" if trickle else first)
        received, start = b"", time.monotonic()
        while time.monotonic() < start + 20:
            try:
                found = client.recv(1 << 16)
            except TimeoutError:
                client.send(trickle)
                continue
            except ConnectionResetError:  # a byte arrived after the server had closed the connection
                break
            received += found
            if not found:
                break
        else:
            pytest.fail("the connection stays open")
    assert (b"200 OK" in received) == bool(first)


def test_a_request_may_take_longer_than_the_time_limit_for_its_head(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.1)
    mine, _ = recorded(translator, lambda _: time.sleep(0.5))
    with serving(mine) as place:
        answer = httpx2.post(f"{place}/translate", json={"q": "a dog", "source": "en", "target": "de"}, timeout=60)
    assert answer.json() == {"translatedText": alone(translator, "a dog")}


def test_clients_of_libretranslate(both: Translator) -> None:
    """One client sends a form, the other a query string, both of the maximum length."""
    text = "\u00e4\U0001f642 " * 1600
    expected = [alone(both.into("de"), text), alone(both.into("en"), "ein hund")]
    with serving(both, max_characters=5000, api_key="s3cret") as place:
        client = LibreTranslateAPI(place, api_key="s3cret")
        assert [client.translate(text, "en", "de"), client.translate("ein hund", "de", "en")] == expected
        assert client.detect("Der Mann und das Kind")[0]["language"] == "de"
        assert [one["code"] for one in client.languages()] == ["en", "de"]
        other = LibreTranslator("en", "de", api_key="s3cret", custom_url=f"{place}/")
        assert other.translate(text) == expected[0]
        with pytest.raises(AuthorizationException):
            LibreTranslator("en", "de", api_key="no", custom_url=f"{place}/").translate("a dog")


def test_an_address_is_free_again_after_use() -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
    with listen("127.0.0.1", port) as again:
        assert url(again) == f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("host", ["a..b", "192.0.2.1"])
def test_an_address_of_another_machine_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match=f"--host {host}: (not an address of|unknown host name)"):
        listen(host, 0)


@pytest.mark.parametrize(
    ("host", "expected", "address"),
    [
        ("127.0.0.1", True, "127.0.0.1"),
        ("localhost", True, None),
        ("127.1.2.3", True, "127.1.2.3"),
        ("0.0.0.0", False, "0.0.0.0"),
        ("::1", True, "[::1]"),
    ],
)
def test_local_addresses_are_recognized(host: str, expected: bool, address: str | None) -> None:
    try:
        sock = listen(host, 0)
    except ConfigError:
        if ":" not in host:
            raise
        pytest.skip("this machine has no IPv6")
    with sock:
        assert is_local(sock) == expected
        assert address is None or url(sock) == f"http://{address}:{sock.getsockname()[1]}"
