"""Entries of the cache: prepared corpora, tokenizers and converted models, and locks that keep them while in use.

CACHE/FINGERPRINT/            a corpus; processes that read it hold a shared lock of its store.json
CACHE/FINGERPRINT.building/   an interrupted preparation, or one in progress
CACHE/tokenizer-FINGERPRINT/  a trained tokenizer
CACHE/ctranslate2/CHECKSUM/   a model converted for CTranslate2
CACHE/.locks/                 locks of the processes that make an entry
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from mtformer.files import delete_folder

STORE = "store.json"
BUILDING = ".building"
CTRANSLATE2 = "ctranslate2"
NAME = re.compile(rf"(tokenizer-)?[0-9a-f]{{32}}({re.escape(BUILDING)})?")


def make_lock(folder: Path) -> FileLock:
    """Return the lock of the process that makes an entry."""
    cache = folder.parent.parent if folder.parent.name == CTRANSLATE2 else folder.parent
    path = cache / ".locks" / folder.name.removesuffix(BUILDING)
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path)


def entries(cache: Path) -> Iterator[Path]:
    """Yield the folder of each entry."""
    for path in sorted([*cache.glob("*"), *(cache / CTRANSLATE2).glob("*")]):
        if NAME.fullmatch(path.name) and path.is_dir():
            yield path


def delete_unused(folder: Path) -> bool:
    """Delete an entry, unless a process makes or reads it; return True if it is deleted."""
    with ExitStack() as stack:
        try:
            stack.enter_context(make_lock(folder).acquire(timeout=0))
            if (folder / STORE).is_file():
                store = stack.enter_context(open(folder / STORE))
                with suppress(ImportError):  # Windows, which deletes no open file
                    import fcntl

                    fcntl.flock(store, fcntl.LOCK_EX | fcntl.LOCK_NB)
            delete_folder(folder)
        except (Timeout, BlockingIOError, FileNotFoundError):  # the last one: another process has deleted it
            return False
    return True
