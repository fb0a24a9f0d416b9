"""Plain and compressed files, read and written as bytes; the suffix tells the format: .gz, .xz, .zst."""

import gzip
import io
import lzma
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from mtformer.errors import DataError

BLOCK_BYTES = 1 << 17
SUFFIXES = (".gz", ".xz", ".zst")


def open_bytes(path: str | Path) -> IO[bytes]:
    """Opens a plain or packed file for reading.

    Raises:
        DataError: for a .zst file without the package that reads it.
        EOFError, OSError, zlib.error, lzma.LZMAError: now or while reading, when it is missing, damaged or cut short.
    """
    suffix = Path(path).suffix
    if suffix == ".gz":
        return io.BufferedReader(gzip.open(path, "rb"), BLOCK_BYTES)
    if suffix == ".xz":
        return lzma.open(path, "rb")
    if suffix == ".zst":
        return io.BufferedReader(_ZstdFile(path), BLOCK_BYTES)
    return open(path, "rb", buffering=BLOCK_BYTES)


@contextmanager
def create_bytes(path: str | Path, name: str | Path | None = None) -> Iterator[IO[bytes]]:
    """Open a plain or compressed file for writing; equal content gives equal bytes.

    Args:
        path: The file to write.
        name: The name whose suffix selects the format, if `path` is a temporary one.

    Raises:
        DataError: The format is .zst and the zstandard package is missing.
    """
    name = path if name is None else name
    suffix, zstandard = Path(name).suffix, require_package(name)
    with ExitStack() as stack:
        file: Any = stack.enter_context(open(path, "wb"))
        if suffix == ".gz":
            file = stack.enter_context(gzip.GzipFile("", "wb", 6, file, mtime=0))
        elif suffix == ".xz":
            file = stack.enter_context(lzma.open(file, "wb"))
        elif zstandard is not None:
            compressor = zstandard.ZstdCompressor(write_checksum=True)
            file = stack.enter_context(compressor.stream_writer(file, closefd=False))
        yield file


def require_package(path: str | Path) -> Any:
    """Return the zstandard package if `path` ends in .zst, else None.

    Raises:
        DataError: The package is needed but missing.
    """
    if Path(path).suffix != ".zst":
        return None
    try:
        import zstandard
    except ImportError as error:
        raise DataError(f"{path}: .zst files require the zstandard package: pip install 'mtformer[zstd]'") from error
    return zstandard


def position(file: IO[bytes]) -> int:
    """How many bytes of what lies on the disk are read, of packed files too; 0 where that is not known."""
    try:
        return os.lseek(file.fileno(), 0, os.SEEK_CUR)
    except OSError:
        return 0


class _ZstdFile(io.RawIOBase):
    """All frames of a Zstandard file; unlike the package's own reader it tells when the last one is cut short."""

    def __init__(self, path: str | Path) -> None:
        zstandard = require_package(path)
        self._error = zstandard.ZstdError
        self._new_frame = zstandard.ZstdDecompressor().decompressobj
        self._frame: Any = None
        self._file = open(path, "rb")  # noqa: SIM115
        self._packed = self._unpacked = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._unpacked:
            self._packed = self._packed or self._file.read(BLOCK_BYTES)
            if not self._packed:
                if self._frame is not None:
                    raise EOFError("it ends inside a frame")
                return 0
            self._frame = self._frame or self._new_frame()
            try:
                self._unpacked = self._frame.decompress(self._packed)
            except self._error as error:
                raise EOFError(str(error)) from error
            self._packed = self._frame.unused_data
            if self._frame.eof:
                self._frame = None
        count = min(len(buffer), len(self._unpacked))
        buffer[:count], self._unpacked = self._unpacked[:count], self._unpacked[count:]
        return count

    def close(self) -> None:
        self._file.close()
        super().close()
