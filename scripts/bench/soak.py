"""Serve a model to many clients on this machine, and count answers, latencies and memory.

    python scripts/bench/soak.py RUN --clients 1000 --minutes 10

Each client keeps one connection and sends one line after the other. If the answer is 503, it waits for as long as
Retry-After says and sends the line again. Memory is that of the server process (Linux). The exit code is 1 if a
request got another answer than 200, or 503 with Retry-After, or none at all.
"""

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

WORDS = ("the", "a", "man", "woman", "dog", "child", "house", "street", "red", "small", "old", "plays", "sits", "runs")
CONNECT_TRIES = 20


class Soak:
    """Clients of one server, and what they saw."""

    def __init__(self, port: int, end: float) -> None:
        self.port, self.end = port, end
        self.answers: Counter[str] = Counter()
        self.seconds: list[float] = []
        """Duration of each request that was answered with a translation."""

    async def client(self, number: int) -> None:
        """Send lines until the end."""
        draw = random.Random(number)
        reader, writer = await self._connect()
        while time.monotonic() < self.end:
            line = " ".join(draw.choices(WORDS, k=draw.randint(3, 15)))
            body = json.dumps({"q": line, "source": "en", "target": "de"}).encode()
            head = f"POST /translate HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Type: application/json\r\n"
            start = time.monotonic()
            try:
                writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                await writer.drain()
                status, wait = await self._answer(reader)
            except (OSError, EOFError):
                self.answers["no answer"] += 1
                reader, writer = await self._connect()
                continue
            self.answers[status] += 1
            if status == "200":
                self.seconds.append(time.monotonic() - start)
            await asyncio.sleep(wait)
        writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        for _ in range(CONNECT_TRIES):
            try:
                return await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                self.answers["no connection"] += 1
                await asyncio.sleep(1)
        sys.exit("the server accepts no connections")

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[str, float]:
        """Return the status of an answer, and the seconds to wait before the next request."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        fields = dict(re.findall(r"([\w-]+): (.*)\r\n", head.lower()))
        body = await reader.readexactly(int(fields["content-length"]))
        status = head.split()[1]
        if status == "200" and not json.loads(body)["translatedText"].strip():
            status = "200 without text"
        if status == "503" and "retry-after" not in fields:
            status = "503 without Retry-After"
        return status, float(fields.get("retry-after", 0))


async def watch(pid: int, soak: Soak, memory: list[int]) -> None:
    """Record the resident memory of the server each second, and print a line per minute."""
    while time.monotonic() < soak.end:
        status = Path(f"/proc/{pid}/status").read_text()
        memory.append(int(re.search(r"VmRSS:\s+(\d+)", status)[1]) // 1024)
        if len(memory) % 60 == 0:
            print(f"minute {len(memory) // 60}: {memory[-1]} MB, {dict(soak.answers)}", file=sys.stderr)
        await asyncio.sleep(1)


async def run(port: int, pid: int, options: argparse.Namespace) -> tuple[Soak, list[int]]:
    """Run all clients for some minutes."""
    soak, memory = Soak(port, time.monotonic() + 60 * options.minutes), list[int]()
    await asyncio.gather(watch(pid, soak, memory), *map(soak.client, range(options.clients)))
    return soak, memory


def main() -> None:
    """Start the server and the clients, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--queue", type=int, default=200)
    options = parser.parse_args()
    program = [sys.executable, "-m", "mtformer"]
    command = [*program, "serve", str(options.run), "--port", "0", "--queue", str(options.queue)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        found = None
        for line in server.stderr:
            if found := re.search(r"http://[\d.]+:(\d+)", line):
                break
            print(line, end="", file=sys.stderr)
        if found is None:
            sys.exit("the server did not start")
        try:
            soak, memory = asyncio.run(run(int(found[1]), server.pid, options))
        finally:
            server.terminate()
    seconds = sorted(soak.seconds)
    print(f"{options.clients} clients, {options.minutes:g} minutes, queue of {options.queue}")
    for status, count in sorted(soak.answers.items()):
        print(f"{status}: {count:,}")
    if seconds:
        shares = (0.5, 0.9, 0.99, 1.0)
        latencies = ", ".join(f"{share:.0%} {seconds[int(share * (len(seconds) - 1))]:.2f} s" for share in shares)
        print(f"{len(seconds) / 60 / options.minutes:.1f} translations per second; latency of 200: {latencies}")
    settled = memory[len(memory) // 10]
    print(f"memory: {settled} MB after a tenth of the time, at most {max(memory)} MB, {memory[-1]} MB at the end")
    sys.exit(0 if soak.answers.keys() <= {"200", "503"} else 1)


if __name__ == "__main__":
    main()
