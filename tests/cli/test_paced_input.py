"""Input in blocks: records that a thread reads from a slow or fast writer."""

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import Result

from mtformer.cli.line_files import parallel_lines
from mtformer.cli.paced_input import BlockLimits, PipedInput, StoredInput, paced_input
from mtformer.errors import DataError

PATIENCE_SECONDS = 300
LIMITS = BlockLimits(num_records=4, num_bytes=100)


def blocks_of(source: StoredInput[bytes], max_records: int = 4) -> list[list[bytes]]:
    return list(iter(lambda: source.take(max_records), []))


@given(st.lists(st.integers(0, 150)), st.booleans(), st.integers(1, 6))
def test_blocks_contain_all_records_in_order_and_are_limited(
    sizes: list[int], is_piped: bool, max_records: int
) -> None:
    records = [bytes(size) for size in sizes]
    source = paced_input(iter(records), len, LIMITS, is_piped=is_piped)
    blocks = blocks_of(source, max_records)
    assert list(itertools.chain.from_iterable(blocks)) == records
    assert all(len(block) <= min(max_records, 4 if is_piped else max_records) for block in blocks)
    assert all(sum(map(len, block[:-1])) < 100 for block in blocks)
    assert not source.has_more()
    assert source.take(1) == []


class Writer:
    """Records that arrive one by one, when a test sends them."""

    def __init__(self) -> None:
        self.num_read = 0
        self._may_send = threading.Semaphore(0)

    def send(self, number: int = 1) -> None:
        self._may_send.release(number)

    def records(self) -> Iterator[bytes]:
        while self._may_send.acquire(timeout=PATIENCE_SECONDS):
            self.num_read += 1
            yield str(self.num_read).encode()


def test_silence_ends_a_block() -> None:
    writer = Writer()
    source = PipedInput(writer.records(), len, LIMITS)
    for number in range(1, 4):
        writer.send()
        assert source.has_more()
        assert source.take(4) == [str(number).encode()]
        assert source.is_silent()
    writer.send()
    assert source.has_more()
    assert not source.is_silent()
    source.stop()
    writer.send()


def test_a_fast_writer_is_read_at_most_one_block_ahead() -> None:
    writer = Writer()
    source = PipedInput(writer.records(), len, LIMITS)
    writer.send(1000)
    num_taken = 0
    for _ in range(20):
        num_taken += len(source.take(4))
        assert writer.num_read <= num_taken + 4 + 1  # one record waits for space
    assert not source.is_silent()
    source.stop()


def test_an_error_is_raised_after_the_records_before_it() -> None:
    def records() -> Iterator[bytes]:
        yield b"a"
        raise DataError("broken")

    source = PipedInput(records(), len, LIMITS)
    assert source.take(4) == [b"a"]
    with pytest.raises(DataError, match="broken"):
        source.take(4)
    with pytest.raises(DataError, match="broken"):
        source.has_more()


def test_leaving_a_pipe_does_not_wait_for_its_writer(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: files.append(pipe.open("w")))
    files: list[object] = []
    writer.start()
    with parallel_lines([pipe]) as lines:
        writer.join(PATIENCE_SECONDS)
        assert lines.total is None
    assert len(files) == 1, "the writer still has the pipe open"


def test_a_longer_pipe_is_refused_before_it_ends(tmp_path: Path) -> None:
    """A program that waits for an answer does not end its output."""
    pipe, other = tmp_path / "pipe", tmp_path / "other"
    os.mkfifo(pipe)
    other.write_text("a\nb\n")
    descriptor = os.open(pipe, os.O_RDWR)
    os.write(descriptor, b"1\n2\n3\n")
    with parallel_lines([pipe, other]) as lines:
        blocks = lines.blocks()
        with pytest.raises(DataError, match=r"/pipe has more, .*/other has 2 lines"):
            next(blocks)
    os.close(descriptor)


@pytest.mark.parametrize("command", ["tokenizer encode", "tokenizer decode", "score"])
def test_commands_that_read_lines_answer_each_line(command: str, trained: tuple[Path, Result], tmp_path: Path) -> None:
    run = trained[0]
    names = [tmp_path / name for name in ("source", "target")] if command == "score" else []
    for path in names:
        os.mkfifo(path)
    program = subprocess.Popen(
        [sys.executable, "-m", "mtformer", *command.split(), str(run), *map(str, names)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    guard = threading.Timer(PATIENCE_SECONDS, program.kill)
    guard.start()
    assert program.stdout is not None
    assert program.stdin is not None
    inputs = [path.open("w") for path in names] or [program.stdin]
    for _ in range(3):
        for file in inputs:
            file.write("A dog\n")
            file.flush()
        assert program.stdout.readline().endswith("\n")
    for file in inputs:
        file.close()
    assert program.wait(PATIENCE_SECONDS) == 0
    guard.cancel()
    program.stdout.close()
