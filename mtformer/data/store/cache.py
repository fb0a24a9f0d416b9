"""Cache of prepared corpora, tokenizers and converted models, with locks that protect entries in use.

CACHE/FINGERPRINT/            a prepared corpus; readers hold a shared lock on its store.json
CACHE/FINGERPRINT.building/   a preparation that is in progress or was interrupted
CACHE/tokenizer-FINGERPRINT/  a trained tokenizer
CACHE/ctranslate2/CHECKSUM/   a model converted for CTranslate2
CACHE/.locks/                 locks of processes that create entries
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from mtformer.files import delete_folder

STORE = "store.json"
"""File that completes a prepared corpus."""

BUILDING = ".building"
"""Suffix of the folder of an unfinished preparation."""

CTRANSLATE2 = "ctranslate2"
"""Folder of converted models."""

NAME = re.compile(rf"(tokenizer-)?[0-9a-f]{{32}}({re.escape(BUILDING)})?")
"""Name of an entry."""


def make_lock(folder: Path) -> FileLock:
    """Return the lock held by the process that creates an entry."""
    cache = folder.parent
    if cache.name == CTRANSLATE2:
        cache = cache.parent
    path = cache / ".locks" / folder.name.removesuffix(BUILDING)
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path)


def entries(cache: Path) -> Iterator[Path]:
    """Yield the folder of each entry."""
    converted_models = (cache / CTRANSLATE2).glob("*")
    paths = [*cache.glob("*"), *converted_models]
    for path in sorted(paths):
        if NAME.fullmatch(path.name) and path.is_dir():
            yield path


def delete_unused(folder: Path) -> bool:
    """Delete an entry unless a process is creating or reading it; return True if it was deleted."""
    with ExitStack() as stack:
        try:
            stack.enter_context(make_lock(folder).acquire(timeout=0))
            if (folder / STORE).is_file():
                store = stack.enter_context(open(folder / STORE))
                with suppress(ImportError):  # on Windows, where open files cannot be deleted anyway
                    import fcntl

                    fcntl.flock(store, fcntl.LOCK_EX | fcntl.LOCK_NB)
            delete_folder(folder)
        except (Timeout, BlockingIOError, FileNotFoundError):  # FileNotFoundError: deleted by another process
            return False
    return True
