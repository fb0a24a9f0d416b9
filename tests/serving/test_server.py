"""A real server, under load, and the addresses that it may have."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from served import alone, recorded, run_async, serving, some_lines

from mtformer.decoding.translator import Translator
from mtformer.errors import ConfigError
from mtformer.serving import server
from mtformer.serving.server import is_local, listen, url

NUM_REQUESTS = 100


def test_a_hundred_requests_at_a_time_have_each_their_own_translation(translator: Translator) -> None:
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


def test_who_still_waits_when_the_server_ends_is_reported(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "GRACE_SECONDS", 0.1)
    begun, may_continue = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        begun.set()
        assert may_continue.wait(20)

    with ThreadPoolExecutor(1) as pool:
        with serving(recorded(translator, hold)[0]) as place:
            fields = {"q": "a dog", "source": "en", "target": "de"}
            asked = pool.submit(httpx2.post, f"{place}/translate", json=fields, timeout=60)
            assert begun.wait(20)
            threading.Timer(1.0, may_continue.set).start()
        answer = asked.result(20)
    assert (answer.status_code, answer.json()) == (503, {"error": "the server is shutting down"})


def test_an_address_is_free_again_after_use() -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
    with listen("127.0.0.1", port) as again:
        assert url(again) == f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("host", ["a..b", "192.0.2.1"])
def test_an_address_of_another_machine_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match=f"--host {host}: not "):
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
def test_addresses_and_who_can_reach_them(host: str, expected: bool, address: str | None) -> None:
    try:
        sock = listen(host, 0)
    except ConfigError:
        if ":" not in host:
            raise
        pytest.skip("this machine has no IPv6")
    with sock:
        assert is_local(sock) == expected
        assert address is None or url(sock) == f"http://{address}:{sock.getsockname()[1]}"
