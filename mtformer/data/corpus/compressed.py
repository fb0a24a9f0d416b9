"""Read and write plain and compressed files as bytes; the suffix (.gz, .xz, .zst) determines the format."""

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
"""Maximum line length in bytes; a file with longer lines is not text."""
SUFFIXES = (".gz", ".xz", ".zst")


def open_bytes(path: str | Path) -> IO[bytes]:
    """Open a plain or compressed file, or a pipe, for reading.

    Raises:
        EOFError, OSError, zlib.error, lzma.LZMAError: on opening or reading, if the file is missing, damaged or
            truncated; for damaged files, the error has no `strerror`.
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
    """Return the next line with its line ending, or b"" at the end of the file; raise DataError if it is too long."""
    line = file.readline(LONGEST_LINE)
    require_line(len(line) - line.endswith(b"\n"), name)
    return line


def require_line(num_bytes: int, name: str) -> None:
    """Raise DataError if a line of this length, without its line ending, is too long to be text."""
    if num_bytes >= LONGEST_LINE:
        raise DataError(f"{name}: has a line of more than {LONGEST_LINE:,} bytes, so it is not a text file")


@contextmanager
def create_bytes(path: str | Path, name: str | Path | None = None) -> Iterator[IO[bytes]]:
    """Open a plain or compressed file for writing; the same contents always produce the same bytes.

    The suffix of `name` determines the format if `path` is a temporary file.
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
