"""Lines beside each other in blocks, and an output file that can be gone on with."""

import hashlib
import io
import json
import logging
import os
import random
import tracemalloc
from pathlib import Path

import pytest

from mtformer.cli import line_files
from mtformer.cli.line_files import ParallelLines, ResumableOutput, parallel_lines
from mtformer.errors import DataError


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_files, "LINES_AT_ONCE", 4)
    monkeypatch.setattr(line_files, "BYTES_AT_ONCE", 100)


def opened(*texts: bytes) -> ParallelLines:
    return ParallelLines([(f"file {number}", io.BytesIO(text)) for number, text in enumerate(texts)])


def lines_of(*texts: bytes) -> list[list[str]]:
    """All lines of each file."""
    blocks = list(opened(*texts).blocks())
    return [[line for block in blocks for line in block[number]] for number in range(len(texts))]


def test_lines_end_at_newline_only() -> None:
    assert lines_of(b"a\r\n\n b\x0bc\xe2\x80\xa8d\x85\nlast") == [["a\r", "", " b\x0bc\u2028d\ufffd", "last"]]
    assert lines_of(b"") == [[]]
    assert lines_of(b"\n") == [[""]]


def test_blocks_are_bounded_in_lines_and_bytes() -> None:
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
    told = "files of unequal length: " + ", ".join(f"file {i} has {count}" for i, count in enumerate(counts))
    with pytest.raises(DataError, match=f"^{told} lines; give files whose lines belong together$"):
        lines_of(*texts)
    paths = [tmp_path / str(number) for number in range(len(counts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_bytes(text)
    with pytest.raises(DataError, match=f"/0 has {counts[0]}, "), parallel_lines(paths):
        raise AssertionError("files are compared before anything is done")


def test_a_last_line_without_its_end_is_a_line(tmp_path: Path) -> None:
    for number, text in enumerate((b"a\nb", b"a\nb\n")):
        (tmp_path / str(number)).write_bytes(text)
    with parallel_lines([tmp_path / "0", tmp_path / "1"]) as lines:
        assert lines.total == 2
        assert list(lines.blocks()) == [[["a", "b"], ["a", "b"]]]


def test_what_is_no_utf8_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "mtformer"):
        assert lines_of(b"ok\n\xff\n\xef\xbf\xbd\na\xe2\x82\n") == [["ok", "\ufffd", "\ufffd", "a\ufffd"]]
    assert "2 lines were not UTF-8" in caplog.text


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "no", tmp_path):
        with pytest.raises(DataError, match=f"{path}: no such file"), parallel_lines([path]):
            pass


def test_skipped_lines_count_in_the_checksum() -> None:
    text = b"".join(f"{'x' * (number % 90)}\n".encode() for number in range(50))
    read = opened(text, b"y\n" * 50)
    blocks = iter(read.blocks())
    for _ in range(6):
        next(blocks)
    skipped = opened(text, b"y\n" * 50)
    skipped.skip(read.num_lines)
    assert (skipped.num_lines, skipped.sha256) == (read.num_lines, read.sha256)
    done = b"".join(text.splitlines(keepends=True)[: read.num_lines])
    assert read.sha256[0] == hashlib.sha256(done).hexdigest()
    assert list(skipped.blocks()) == list(blocks)


TEXT = b"".join(f"line {number}\n".encode() for number in range(37))


class CrashError(Exception):
    """Instead of a killed process."""


def write(path: Path, continues: bool, crash_after: int | None = None, text: bytes = TEXT, **settings: object) -> int:
    """Lines in, the same in capitals out; crashes in the middle of a block. Returns where it began."""
    lines, output = opened(text), ResumableOutput(path)
    with output.open(lines, settings, continues) as out:
        begun = lines.num_lines
        for number, block in enumerate(lines.blocks()):
            for line in block[0]:
                out.write(line.upper().encode() + b"\n")
                if number == crash_after:
                    out.flush()
                    raise CrashError
            output.save(out, lines)
    output.finish()
    return begun


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "out"
    with pytest.raises(CrashError):
        write(path, continues=False, crash_after=3)
    assert sorted(p.name for p in path.parent.iterdir()) == ["out.partial", "out.partial.json"]
    assert not ResumableOutput(path).is_whole()
    with (path.parent / "out.partial").open("ab") as out:  # as a crash of the whole machine may leave it
        out.write(b"\0" * 10_000)
    assert write(path, continues=True) == 12
    assert path.read_bytes() == TEXT.upper()
    assert [p.name for p in path.parent.iterdir()] == ["out"]
    assert ResumableOutput(path).is_whole()


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


def test_without_continue_it_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with pytest.raises(CrashError):
        write(path, continues=False, crash_after=3, color="red")
    with pytest.raises(CrashError):
        write(path, continues=False, crash_after=0, text=b"other " * 99 + b"\n", color="blue")
    # What the first left is forgotten, though the second had not yet noted anything.
    assert write(path, continues=True, color="green") == 0
    assert path.read_bytes() == TEXT.upper()


def test_other_settings_and_other_inputs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with pytest.raises(CrashError):
        write(path, continues=False, crash_after=3, beam_size=2, words=("a",))
    before = (tmp_path / "out.partial").read_bytes()
    with pytest.raises(DataError, match=r"out\.partial: made with beam_size 2, not 5; give the same again, or leave"):
        write(path, continues=True, beam_size=5, words=("a",))
    with pytest.raises(DataError, match=r"made with words .*'a'.*, not None"):
        write(path, continues=True, beam_size=2)
    for text in (TEXT.replace(b"line 7", b"line 8"), TEXT[:40]):
        with pytest.raises(DataError, match="made from another input"):
            write(path, continues=True, text=text, beam_size=2, words=("a",))
    assert (tmp_path / "out.partial").read_bytes() == before, "a refusal must not harm it"
    assert write(path, continues=True, text=TEXT + b"more\n", beam_size=2, words=("a",)) == 12
    assert path.read_bytes() == TEXT.upper() + b"MORE\n"


@pytest.mark.parametrize("state", ["", "[]", "{}", '{"lines": 4, "bytes": 1}', '{"bytes": 10000000}'])
def test_a_note_that_says_nothing_is_none(state: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "out"
    with pytest.raises(CrashError):
        write(path, continues=False, crash_after=3)
    (tmp_path / "out.partial.json").write_text(state)
    with caplog.at_level(logging.INFO, "mtformer"):
        assert write(path, continues=True) == 0
    assert "nothing to go on with; beginning anew" in caplog.text
    assert path.read_bytes() == TEXT.upper()


def test_killed_between_its_last_two_deeds(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with pytest.raises(CrashError):
        write(path, continues=False, crash_after=3)
    os.replace(tmp_path / "out.partial", path)
    assert ResumableOutput(path).is_whole()
    assert json.loads((tmp_path / "out.partial.json").read_text())["lines"] == 12
    write(path, continues=False)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "out")
    write(tmp_path / "link", continues=False)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "elsewhere" / "out").read_bytes() == TEXT.upper()
