"""Plain and compressed files, read and written as bytes; the suffix selects the format: .gz, .xz, .zst."""

import gzip
import io
import lzma
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

BLOCK_BYTES = 1 << 17
SUFFIXES = (".gz", ".xz", ".zst")


def open_bytes(path: str | Path) -> IO[bytes]:
    """Open a plain or compressed file for reading.

    Raises:
        EOFError, OSError, zlib.error, lzma.LZMAError: now or while reading, if it is missing, damaged or cut short;
            damage has no `strerror`.
    """
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
