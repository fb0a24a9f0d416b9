"""Blocks of parallel lines, and resumable output files."""

import bz2
import gzip
import io
import json
import logging
import lzma
import os
import random
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mtformer.cli import line_files
from mtformer.cli.line_files import ParallelLines, ResumableOutput, parallel_lines
from mtformer.data.corpus.readers import SUFFIXES, create_bytes, open_bytes
from mtformer.errors import DataError


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_files, "LINES_AT_ONCE", 4)
    monkeypatch.setattr(line_files, "BYTES_AT_ONCE", 100)


def opened(*texts: bytes) -> ParallelLines:
    return ParallelLines([(f"file {number}", io.BytesIO(text)) for number, text in enumerate(texts)])


def lines_of(*texts: bytes) -> list[list[str]]:
    """Return all lines of each file."""
    blocks = list(opened(*texts).blocks())
    return [[line for block in blocks for line in block[number]] for number in range(len(texts))]


def test_lines_end_at_newline_only() -> None:
    assert lines_of(b"a\r\n\n b\x0bc\xe2\x80\xa8d\x85\nlast") == [["a\r", "", " b\x0bc\u2028d\ufffd", "last"]]
    assert lines_of(b"") == [[]]


def test_a_byte_order_mark_is_removed() -> None:
    assert lines_of(b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", b"c\nd\n") == [["a", "\ufeffb"], ["c", "d"]]
    assert lines_of(b"\n") == [[""]]


def test_blocks_have_limited_lines_and_bytes() -> None:
    text = b"\n".join([*b"1 2 3 4 5".split(), b"x" * 300, b"7", b"y" * 60, b"z" * 60, b"10"])
    lines = opened(text, b"ab\n" * 10)
    assert [[len(of_file) for of_file in block] for block in lines.blocks()] == [[4, 4], [2, 2], [3, 3], [1, 1]]


def test_memory_does_not_grow_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_files, "LINES_AT_ONCE", 2000)
    monkeypatch.setattr(line_files, "BYTES_AT_ONCE", 100_000)
    path = tmp_path / "large"
    path.write_bytes(b"some words here\n" * 50_000 + (b"word " * 30_000 + b"\n") * 30)
    tracemalloc.start()
    with parallel_lines([path]) as lines:
        count = sum(len(block[0]) for block in lines.blocks())
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == lines.num_lines == lines.total == 50_030
    assert most < 3_000_000 < path.stat().st_size


@pytest.mark.parametrize("counts", [(5, 4), (4, 5), (0, 1), (8, 9), (9, 8), (3, 3, 4)])
def test_unequal_files_are_refused_with_all_counts(counts: tuple[int, ...], tmp_path: Path) -> None:
    texts = [b"x\n" * count for count in counts]
    message = "files of unequal length: " + ", ".join(f"file {i} has {count}" for i, count in enumerate(counts))
    with pytest.raises(DataError, match=f"^{message} lines; give parallel files, which have the same number of lines$"):
        lines_of(*texts)
    paths = [tmp_path / str(number) for number in range(len(counts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_bytes(text)
    with pytest.raises(DataError, match=f"/0 has {counts[0]}, "), parallel_lines(paths):
        raise AssertionError("files are compared before anything is done")


@pytest.mark.parametrize("suffix", ["", *SUFFIXES, ".GZ", ".Xz"])
def test_compressed_files_are_read(suffix: str, tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}{suffix}" for number in range(2)]
    for path in paths:
        with create_bytes(path) as file:
            file.write(b"a\nb\n" * 3)
    for some in (paths, paths[:1], [paths[0], tmp_path / "plain"]):
        (tmp_path / "plain").write_bytes(b"a\nb\n" * 3)
        with parallel_lines(some) as lines:
            assert [line for block in lines.blocks() for line in block[-1]] == ["a", "b"] * 3
            assert lines.total == (6 if len(some) == 2 or suffix == "" else None)
    (tmp_path / "plain").write_bytes(b"a\n")
    with (
        pytest.raises(DataError, match=f"0{suffix} has 6, .*plain has 1 lines"),
        parallel_lines([paths[0], tmp_path / "plain"]),
    ):
        pass


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("num_files", [1, 2])
def test_a_truncated_compressed_file_is_refused(suffix: str, num_files: int, tmp_path: Path) -> None:
    path = tmp_path / f"in{suffix}"
    with create_bytes(path) as file:
        file.write(TEXT)
    path.write_bytes(path.read_bytes()[:-9])
    message = f"^{path}: the compressed file is damaged or truncated"
    with pytest.raises(DataError, match=message), parallel_lines([path] * num_files) as lines:
        list(lines.blocks())


def test_invalid_utf8_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "mtformer"):
        assert lines_of(b"ok\n\xff\n\xef\xbf\xbd\na\xe2\x82\n") == [["ok", "\ufffd", "\ufffd", "a\ufffd"]]
    assert "2 lines were not valid UTF-8" in caplog.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(b"a dog\n", mtime=0), "a gzip file"),
        (bz2.compress(b"a dog\n"), "a bzip2 file"),
        (lzma.compress(b"a dog\n"), "an xz file"),
        (b"\x28\xb5\x2f\xfd\x04\x00", "a zstd file"),
        ("a dog\n".encode("utf-16"), "text in UTF-16"),
        ("\ufeffa dog\n".encode("utf-16-be"), "text in UTF-16"),
        ("a dog\n".encode("utf-16-le"), "text in UTF-16"),
        (b"<!DOCTYPE html>\n<html>", "an HTML page"),
    ],
)
def test_pipes_that_are_not_utf8_text_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=f"^file 1: contains {message}, which cannot be read here; "):
        lines_of(b"one\n", content)


def test_a_missing_file(tmp_path: Path) -> None:
    for path, what in ((tmp_path / "no", "no such file"), (tmp_path, "is a folder, not a file")):
        with pytest.raises(DataError, match=f"{path}: {what}"), parallel_lines([path]):
            pass


TEXT = b"".join(f"line {number}\n".encode() for number in range(37))
NO_RECORD = (
    "cannot be continued, because there is no record of how this file was written; remove --continue to replace it"
)


class CrashError(Exception):
    """Exception that simulates a killed process."""


def write(path: Path, continues: bool, crash_after: int | None = None, text: bytes = TEXT, **settings: object) -> int:
    """Write the lines in upper case and crash in the middle of a block; return the number of finished lines."""
    lines, output = opened(text), ResumableOutput(path)
    with output.locked():
        out = output.open(lines, settings, continues)
        begun = lines.num_lines
        if out is None:
            return begun
        with out:
            for number, block in enumerate(lines.blocks()):
                for line in block[0]:
                    out.write(line.upper().encode() + b"\n")
                    if number == crash_after:
                        out.flush()
                        raise CrashError
                output.save(out, lines.position)
        output.finish(lines.position)
    return begun


def crash(path: Path, crash_after: int = 3, **settings: object) -> None:
    with pytest.raises(CrashError):
        write(path, continues=False, crash_after=crash_after, **settings)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def read(path: Path) -> bytes:
    with open_bytes(path) as file:
        return file.read()


@pytest.mark.parametrize("suffix", ["", *SUFFIXES])
def test_a_file_appears_only_when_it_is_complete(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / "folder" / f"out{suffix}"
    crash(path)
    assert names(path.parent) == [f".out{suffix}.mtformer.json", f"out{suffix}.partial"]
    with (path.parent / f"out{suffix}.partial").open("ab") as out:  # as after a system crash
        out.write(b"\0" * 10_000)
    assert write(path, continues=True) == 12
    assert read(path) == TEXT.upper()
    assert names(path.parent) == [f".out{suffix}.mtformer.json", f"out{suffix}"]
    write(path.with_name(f"other{suffix}"), continues=False)
    assert path.with_name(f"other{suffix}").read_bytes() == path.read_bytes()
    assert (path.read_bytes() == TEXT.upper()) == (suffix == "")


@pytest.mark.parametrize("continues", [False, True])
@pytest.mark.parametrize("name", ["out.partial", ".out.mtformer.json"])
def test_a_named_pipe_in_place_of_an_own_file_is_refused(name: str, continues: bool, tmp_path: Path) -> None:
    """A process that opens the pipe would wait forever."""
    write(tmp_path / "out", continues=False)
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    before = names(tmp_path)
    with pytest.raises(DataError, match="is not a file; move it away, or name another file with --output") as error:
        write(tmp_path / "out", continues=continues, text=TEXT + TEXT)
    assert str(error.value).startswith(f"{tmp_path / name}: ")
    assert set(before) <= set(names(tmp_path))


@pytest.mark.parametrize("place", [0, 30, -1])
def test_a_damaged_partial_file_is_refused(place: int, tmp_path: Path) -> None:
    path = tmp_path / "out"
    crash(path)
    partial = tmp_path / "out.partial"
    num_finished = json.loads((tmp_path / ".out.mtformer.json").read_text())["bytes"]
    whole = partial.read_bytes()
    damaged = bytearray(whole[:num_finished])
    damaged[place] ^= 1
    partial.write_bytes(damaged + whole[num_finished:])
    with pytest.raises(DataError, match=r"out.partial: damaged; remove --continue to start over"):
        write(path, continues=True)
    partial.write_bytes(whole)
    write(path, continues=True)
    assert path.read_bytes() == TEXT.upper()


def test_any_number_of_crashes_gives_the_same_bytes(tmp_path: Path) -> None:
    rng = random.Random(2)
    for trial in range(6):
        path, num_crashes = tmp_path / str(trial), 0
        while not path.exists():
            try:
                write(path, continues=True, crash_after=rng.randint(0, 6))
            except CrashError:
                num_crashes += 1
        assert num_crashes > 0
        assert path.read_bytes() == TEXT.upper()


@pytest.mark.parametrize(
    "values",
    [
        {"lines": "4"},
        {"lines": -1},
        {"lines": 1.5},
        {"lines": True},
        {"bytes": None},
        {"bytes": [7]},
        {"bytes": -7},
        {"settings": []},
        {"settings": "x"},
        {"input_sha256": 5},
        {"input_sha256": [1]},
        {"partial_sha256": 5},
    ],
    ids=str,
)
def test_a_record_with_wrong_types_is_not_used(values: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "out"
    crash(path)
    record = tmp_path / ".out.mtformer.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), **values}))
    assert write(path, continues=True) == 0
    assert path.read_bytes() == TEXT.upper()


def test_writing_starts_over_without_continue(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"of another program\n")
    crash(path, color="red")
    crash(path, crash_after=0, text=b"other " * 99 + b"\n", color="blue")
    with pytest.raises(DataError, match="out: was written with color blue, not red"):
        write(path, continues=True, color="red")
    assert path.read_bytes() == b"of another program\n"
    assert write(path, continues=False, color="green") == 0
    assert path.read_bytes() == TEXT.upper()


def test_other_settings_and_other_inputs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "out"
    crash(path, beam_size=2, words=("a",))
    before = (tmp_path / "out.partial").read_bytes()
    with pytest.raises(DataError, match="out: was written with beam_size 2, not 5; repeat the same command, or remove"):
        write(path, continues=True, beam_size=5, words=("a",))
    with pytest.raises(DataError, match=r"was written with words .*'a'.*, not None"):
        write(path, continues=True, beam_size=2)
    for text in (TEXT.replace(b"line 7", b"line 8"), TEXT[:40]):
        with pytest.raises(DataError, match="was written from a different input"):
            write(path, continues=True, text=text, beam_size=2, words=("a",))
    assert (tmp_path / "out.partial").read_bytes() == before, "a refused call must not change the file"
    assert write(path, continues=True, text=TEXT + b"more\n", beam_size=2, words=("a",)) == 12
    assert path.read_bytes() == TEXT.upper() + b"MORE\n"


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ("nothing", None),
        (
            "settings",
            "was written with color red, not blue; repeat the same command, or remove --continue to start over",
        ),
        ("input", "was written from a different input; repeat the same command, or remove --continue to start over"),
        (
            "shorter input",
            "was written from a different input; repeat the same command, or remove --continue to start over",
        ),
        ("output", "changed since it was written; restore it from a copy, or remove --continue to replace it"),
        ("no record", NO_RECORD),
        ("damaged record", NO_RECORD),
    ],
)
def test_continue_on_a_complete_file(
    suffix: str, changed: str, message: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, record = tmp_path / f"out{suffix}", tmp_path / f".out{suffix}.mtformer.json"
    write(path, continues=False, color="red")
    content = path.read_bytes()
    text = {"input": TEXT.replace(b"36", b"63"), "shorter input": TEXT[:-8]}.get(changed, TEXT)
    if changed == "output":
        content = content[:-2] + b"X\n"
        path.write_bytes(content)
    elif changed.endswith("record"):
        record.write_text("{}") if changed == "damaged record" else record.unlink()
    color = "blue" if changed == "settings" else "red"
    if message is None:
        status = path.stat()
        with caplog.at_level(logging.INFO, "mtformer"):
            write(path, continues=True, text=text, color=color)
        assert caplog.messages == [f"{path}: already complete"]
        assert (path.stat().st_ino, path.stat().st_mtime_ns) == (status.st_ino, status.st_mtime_ns)
    else:
        with pytest.raises(DataError, match=f"^{re.escape(f'{path}: {message}')}$"):
            write(path, continues=True, text=text, color=color)
    assert path.read_bytes() == content
    assert write(path, continues=False, text=text, color=color) == 0
    assert read(path) == text.upper()


@pytest.mark.parametrize("suffix", ["", *SUFFIXES])
def test_continue_extends_a_file_whose_input_has_grown(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"out{suffix}"
    write(path, continues=False)
    before = path.read_bytes()
    with pytest.raises(CrashError):
        write(path, continues=True, crash_after=0, text=TEXT + b"more\n")
    assert path.read_bytes() == before
    assert write(path, continues=True, text=TEXT + b"more\n") == 37
    assert read(path) == TEXT.upper() + b"MORE\n"


@pytest.mark.parametrize("record", ["", "[]", "{}", '{"lines": 4, "bytes": 1}', '{"bytes": 10000000}'])
def test_a_damaged_record_is_ignored(record: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "out"
    crash(path)
    (tmp_path / ".out.mtformer.json").write_text(record)
    with caplog.at_level(logging.INFO, "mtformer"):
        assert write(path, continues=True) == 0
    assert f"{path}: nothing to continue; starting at the first line" in caplog.text
    assert path.read_bytes() == TEXT.upper()


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_killed_before_the_partial_file_is_deleted(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"out{suffix}"

    def crashing(function: Callable[..., None], first: Path, *more: Any, **named: Any) -> None:
        if first.name.endswith(".partial"):
            raise CrashError
        function(first, *more, **named)

    for owner, name in ((os, "replace"), (Path, "unlink")):
        function = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given, _f=function, **named: crashing(_f, *given, **named))
    with pytest.raises(CrashError):
        write(path, continues=False)
    monkeypatch.undo()
    assert write(path, continues=True) == 37
    assert read(path) == TEXT.upper()
    assert names(tmp_path) == [f".out{suffix}.mtformer.json", f"out{suffix}"]


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "out")
    first, lines = ResumableOutput(tmp_path / "out"), opened(TEXT)
    with first.locked():
        out = first.open(lines, {}, continues=False)
        assert out is not None
        with out:
            for number, block in enumerate(lines.blocks()):
                out.write("".join(f"{line}\n" for line in block[0]).upper().encode())
                for name in ("out", "link"):
                    remedy = "wait for it, or name another file with --output"
                    message = f"{tmp_path}/{name}: another process is writing this file; {remedy}"
                    with pytest.raises(DataError, match=message):
                        write(tmp_path / name, continues=number % 2 == 0)
                first.save(out, lines.position)
        first.finish(lines.position)
    assert (tmp_path / "out").read_bytes() == TEXT.upper()
    assert names(tmp_path) == [".out.mtformer.json", "link", "out"]
    (tmp_path / ".out.lock").touch()  # as after a killed process
    assert write(tmp_path / "out", continues=False) == 0


def test_symbolic_links_are_kept(tmp_path: Path) -> None:
    (tmp_path / "link.gz").symlink_to(tmp_path / "elsewhere" / "out")
    write(tmp_path / "link.gz", continues=False)
    assert (tmp_path / "link.gz").is_symlink()
    assert gzip.decompress((tmp_path / "elsewhere" / "out").read_bytes()) == TEXT.upper()


def test_a_file_that_becomes_shorter_is_an_error() -> None:
    blocks = ParallelLines([("a", io.BytesIO(b"line\n" * 4))], total=11).blocks()
    assert next(blocks) == [["line"] * 4]
    with pytest.raises(DataError, match=r"^a: became shorter while it was read; run the command again$"):
        next(blocks)
