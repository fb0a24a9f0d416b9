"""Plain and compressed files, read and written as bytes; the suffix selects the format: .gz, .xz, .zst."""

import gzip
import io
import lzma
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from mtformer.errors import DataError
from mtformer.files import require_file

BLOCK_BYTES = 1 << 17
LONGEST_LINE = 1 << 26
"""Bytes; a longer line is not text."""
SUFFIXES = (".gz", ".xz", ".zst")


def open_bytes(path: str | Path) -> IO[bytes]:
    """Open a plain or compressed file, or a pipe, for reading.

    Raises:
        EOFError, OSError, zlib.error, lzma.LZMAError: now or while reading, if it is missing, damaged or cut short;
            damage has no `strerror`.
    """
    require_file(path, or_pipe=True)
    suffix = Path(path).suffix
    if suffix == ".gz":
        return io.BufferedReader(gzip.open(path, "rb"), BLOCK_BYTES)
    if suffix == ".xz":
        return lzma.open(path, "rb")
    file = open(path, "rb", buffering=BLOCK_BYTES)  # noqa: SIM115
    if suffix == ".zst":
        import pyarrow as pa

        return io.BufferedReader(pa.CompressedInputStream(file, "zstd"), BLOCK_BYTES)
    return file


def read_line(file: IO[bytes], name: str) -> bytes:
    """Return the next line with its end, b"" at the end of the file; raise DataError if it is endless."""
    line = file.readline(LONGEST_LINE)
    require_line(len(line) - line.endswith(b"\n"), name)
    return line


def require_line(num_bytes: int, name: str) -> None:
    """Raise DataError if a line of this length without its end is too long to be text."""
    if num_bytes >= LONGEST_LINE:
        raise DataError(f"{name}: has a line of more than {LONGEST_LINE:,} bytes; give a text file")


@contextmanager
def create_bytes(path: str | Path, name: str | Path | None = None) -> Iterator[IO[bytes]]:
    """Open a plain or compressed file for writing; equal content gives equal bytes.

    Args:
        path: The file to write.
        name: The name whose suffix selects the format, if `path` is a temporary one.
    """
    suffix = Path(path if name is None else name).suffix
    with ExitStack() as stack:
        file: Any = stack.enter_context(open(path, "wb"))
        if suffix == ".gz":
            file = stack.enter_context(gzip.GzipFile("", "wb", 6, file, mtime=0))
        elif suffix == ".xz":
            file = stack.enter_context(lzma.open(file, "wb"))
        elif suffix == ".zst":
            import pyarrow as pa

            file = stack.enter_context(pa.CompressedOutputStream(file, "zstd"))
        yield file
