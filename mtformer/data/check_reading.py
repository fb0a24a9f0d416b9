"""Sources read as they are, damage and all, in chunks that are looked at one by one.

`read_pairs` refuses a damaged file; here the damage is to be counted, so that files are read as bytes.
"""

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import IO, Any

from mtformer.config.data import DataConfig, JsonlFile, Source, TsvFile
from mtformer.data.compressed import open_bytes, position
from mtformer.data.records import BOM, told
from mtformer.data.report import Pair
from mtformer.data.rows import Fields, RowError, parse_row
from mtformer.data.sources import describe, files_of, languages, read_pairs

CHUNK_BYTES = 1 << 19
"""Bytes of the first file that make a chunk."""
PAIRS_AT_ONCE = 5000
"""Of sources that are not read as bytes."""


@dataclass(frozen=True)
class Chunk:
    """Neighbouring pairs of one source.

    Args:
        start: number of the first one in its set, from 0.
        is_training: whether the config's filters are for it.
        languages: codes of source and target.
        lines: of each file its lines as bytes, ends included (two files, or one TSV or JSONL file); or none.
        pairs: where there are no lines.
        columns: of a TSV file source and target, from 0.
        fields: of a JSONL file source and target.
    """

    start: int
    is_training: bool
    languages: tuple[str, str]
    lines: list[list[bytes]] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    columns: tuple[int, int] | None = None
    fields: Fields | None = None

    def __len__(self) -> int:
        return len(self.lines[0]) if self.lines else len(self.pairs)


@dataclass
class Decoded:
    """The text of a chunk, and what was wrong with its lines: their numbers in the chunk, from 0.

    The keys of `invalid` and `windows` are the sides, or "pair" for lines that hold both.
    """

    src: list[str]
    tgt: list[str]
    invalid: dict[str, list[int]] = field(default_factory=dict)
    """Lines that are not UTF-8; what was not became U+FFFD."""
    windows: dict[str, list[int]] = field(default_factory=dict)
    """Lines that ended at \\r\\n."""
    short: list[int] = field(default_factory=list)
    """Lines without one of the columns, which is taken as empty."""
    broken: dict[int, str] = field(default_factory=dict)
    """What is wrong with lines that are no JSON object with two texts; both are taken as empty."""


def decode(chunk: Chunk) -> Decoded:
    """The lines as text, without their ends."""
    if not chunk.lines:
        return Decoded([src for src, _ in chunk.pairs], [tgt for _, tgt in chunk.pairs])
    decoded = Decoded([], [])
    if chunk.columns is not None:
        _split(_text(chunk.lines[0], "pair", decoded), chunk.columns, decoded)
    elif chunk.fields is not None:
        _parse(_text(chunk.lines[0], "pair", decoded), chunk.fields, decoded)
    else:
        decoded.src, decoded.tgt = (
            _text(lines, side, decoded) for side, lines in zip(("src", "tgt"), chunk.lines, strict=True)
        )
    return decoded


def _split(lines: list[str], columns: tuple[int, int], decoded: Decoded) -> None:
    rows = [line.split("\t") for line in lines]
    width = max(columns) + 1
    for number, row in enumerate(rows):
        if len(row) < width:
            decoded.short.append(number)
            row += [""] * (width - len(row))
    decoded.src, decoded.tgt = ([row[column] for row in rows] for column in columns)


def _parse(lines: list[str], fields: Fields, decoded: Decoded) -> None:
    for number, line in enumerate(lines):
        try:
            src, tgt = fields.pair(parse_row(line))
        except RowError as error:
            decoded.broken[number] = str(error)
            src = tgt = ""
        decoded.src.append(src)
        decoded.tgt.append(tgt)


def _text(lines: list[bytes], side: str, decoded: Decoded) -> list[str]:
    try:
        # All at once is quick; a byte that is wrong stays wrong, since none of UTF-8's sequences holds a line feed.
        texts = b"".join(lines).decode("utf-8").split("\n")[: len(lines)]
    except UnicodeDecodeError:
        texts = [line.decode("utf-8", "replace").removesuffix("\n") for line in lines]
        decoded.invalid[side] = [number for number, line in enumerate(lines) if not _is_utf8(line)]
    windows = [number for number, text in enumerate(texts) if text.endswith("\r")]
    for number in windows:
        texts[number] = texts[number][:-1]
    if windows:
        decoded.windows[side] = windows
    return texts


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


class SourceReader:
    """Reads one source from its beginning to its end.

    Args:
        source: where from.
        data: the languages.
        start: number of its first pair in its set.
        is_training: whether the config's filters are for it.
    """

    def __init__(self, source: Source, data: DataConfig, start: int, is_training: bool) -> None:
        self.source, self.data, self.start, self.is_training = source, data, start, is_training
        self.name = describe(source)
        self.languages = languages(source, data)
        self.paths = files_of(source)
        self.columns: tuple[int, int] | None = None
        if isinstance(source, TsvFile):
            self.columns = source.src_column - 1, source.tgt_column - 1
        self.fields: Fields | None = None
        """Of a JSONL file, as its first row has them."""
        self._knows_fields = False
        self.num_pairs = 0
        self.num_lines: list[int] = []
        """Of each file, known in the end; more than pairs when they are of unequal length."""

    def file(self, side: str) -> str:
        """The file that holds a side (src or tgt, or "pair": the first one)."""
        return self.paths[side == "tgt" and len(self.paths) > 1] if self.paths else self.name

    def chunks(self, chunk_bytes: int) -> Iterator[tuple[Chunk, int]]:
        """The chunks, and how many bytes on disk were read for each (0 where that is not known).

        Raises:
            DataError: as `read_pairs`, except for what is counted.
        """
        if not self.paths:
            pairs = read_pairs(self.source, self.data)
            while block := list(islice(pairs, PAIRS_AT_ONCE)):
                yield self._chunk(pairs=block), 0
            return
        with ExitStack() as stack:
            files = []
            for path in self.paths:
                with told(path):
                    files.append(stack.enter_context(open_bytes(path)))
            before = 0
            for lines in self._blocks(files, chunk_bytes):
                if isinstance(self.source, JsonlFile) and not self._knows_fields:
                    first_row = _first_row(lines[0])
                    self.fields = Fields.of(self.source, self.data, first_row or {})
                    self._knows_fields = first_row is not None
                now = sum(map(position, files))
                yield self._chunk(lines=lines), now - before
                before = now

    def _blocks(self, files: list[IO[bytes]], chunk_bytes: int) -> Iterator[list[list[bytes]]]:
        self.num_lines = [0] * len(files)
        is_equal = True
        while is_equal:
            lines: list[list[bytes]] = []
            for file, path in zip(files, self.paths, strict=True):
                with told(path):
                    lines.append(list(islice(file, len(lines[0]))) if lines else file.readlines(chunk_bytes))
            shortest = min(map(len, lines))
            is_equal = all(len(some) == shortest for some in lines)
            self.num_lines = [known + len(some) for known, some in zip(self.num_lines, lines, strict=True)]
            lines = [some[:shortest] for some in lines]
            if lines[0] and self.num_pairs == 0:
                for some in lines:
                    some[0] = some[0].removeprefix(BOM)
            if not shortest:
                break
            yield lines
        for number, (file, path) in enumerate(zip(files, self.paths, strict=True)):
            with told(path):
                self.num_lines[number] += sum(1 for _ in file)

    def _chunk(self, lines: list[list[bytes]] | None = None, pairs: list[Pair] | None = None) -> Chunk:
        start = self.start + self.num_pairs
        chunk = Chunk(start, self.is_training, self.languages, lines or [], pairs or [], self.columns, self.fields)
        self.num_pairs += len(chunk)
        return chunk


def _first_row(lines: list[bytes]) -> dict[str, Any] | None:
    """The first JSON object among them."""
    for line in lines:
        with suppress(RowError):
            return parse_row(line.decode("utf-8", "replace"))
    return None
