"""`mtformer serve`."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from program import invoke
from typer.testing import Result

from mtformer.cli.serve import PACKAGES
from mtformer.decoding.translator import Translator

ADDRESS = re.compile(r"(http://127\.0\.0\.1:\d+) serves .*; press Ctrl-C to stop\n")


@pytest.fixture
def run(trained: tuple[Path, Result]) -> Path:
    """Return the finished run, which these tests do not change."""
    return trained[0]


@contextlib.contextmanager
def server(
    *arguments: object, before: Sequence[str] = (), **environment: str
) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Yield a process of `mtformer serve` on a free port, and its address."""
    process = subprocess.Popen(
        [*before, sys.executable, "-m", "mtformer", *map(str, arguments), "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment},
    )  # fmt: skip
    try:
        assert process.stderr is not None
        found = ADDRESS.fullmatch(process.stderr.readline())
        assert found is not None
        yield process, found[1]
    finally:
        process.kill()
        process.wait()


def ask(address: str, **fields: object) -> dict[str, object]:
    kind = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}/translate", json.dumps(fields).encode(), kind)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_the_server_logs_one_line_and_stops_on_ctrl_c(run: Path) -> None:
    expected = Translator.load(run, device="cpu").translate(["The man sleeps."], beam_size=1)[0].text
    with server("serve", run, "--beam-size", 1, "--device", "cpu") as (process, address):
        assert ask(address, q="The man sleeps.", source="en", target="de") == {"translatedText": expected}
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_process_for_large_html_ends_with_the_server(run: Path, number: signal.Signals) -> None:
    """The output of the server ends, which the other process has, too."""
    page = "<p>The man <b>sleeps</b>.</p>" * 400
    arguments = ("serve", run, "--beam-size", 1, "--device", "cpu", "--max-characters", 20_000)
    with server(*arguments) as (process, address):
        answer = ask(address, q=page, source="en", target="de", format="html")
        assert str(answer["translatedText"]).count("<b>") == 400
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == (0 if number == signal.SIGINT else -number)
    assert "Traceback" not in err


def test_debug_logs_requests_and_the_key_can_be_an_environment_variable(run: Path) -> None:
    with server("--debug", "serve", run, MTFORMER_API_KEY="s3cret") as (process, address):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            ask(address, q="The man sleeps.", source="en", target="de")
        assert ask(address, q="", source="en", target="de", api_key="s3cret") == {"translatedText": ""}
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "")
    assert '"POST /translate HTTP/1.1" 403' in err
    assert '"POST /translate HTTP/1.1" 200' in err
    assert "s3cret" not in err


@pytest.mark.process
def test_connections_wait_when_no_file_descriptor_is_free(run: Path) -> None:
    """Idle connections use all file descriptors until they are closed."""
    limited = ("prlimit", "--nofile=64")
    with server("serve", run, "--device", "cpu", before=limited) as (process, address), contextlib.ExitStack() as stack:
        port = int(address.rsplit(":", 1)[1])
        for _ in range(100):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert list(ask(address, q="The man sleeps.", source="en", target="de")) == ["translatedText"]
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (-signal.SIGTERM, "")
    assert err == ("error: asyncio: too many open files, so new connections wait; raise the limit with `ulimit -n`\n")


def test_a_port_in_use_is_reported_in_one_line(run: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = invoke("serve", run, "--port", port)
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: port {port} of 127.0.0.1 is in use; choose another with --port, or 0 for any free port\n"
    )


def test_a_public_host_requires_a_key(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ((), ("--api-key", "")):
        result = invoke("serve", run, "--host", "0.0.0.0", "--port", 0, *key)
        assert result.exit_code == 2
        assert result.stderr == (
            "error: --host 0.0.0.0 is reachable from other machines; give --api-key or set MTFORMER_API_KEY, "
            "or remove --host\n"
        )


@pytest.mark.parametrize("package", PACKAGES)
def test_a_missing_extra_is_reported_in_one_line(run: Path, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    result = invoke("serve", run, "--port", 0)
    assert result.exit_code == 2
    assert result.stderr == f"error: `mtformer serve` needs {package}: pip install 'mtformer[serve]'\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "no.such.host.invalid"], "--host no.such.host.invalid: unknown host name or address"),
        (["--beam-size", "0"], "error: --beam-size: must be at least 1"),
        (["--checkpoint", "77"], "77"),
    ],
)
def test_user_errors_are_reported_in_one_line(run: Path, arguments: list[str], message: str) -> None:
    result = invoke("serve", run, "--port", 0, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
