"""Bundles on the Hugging Face Hub: addresses, downloads and uploads.

An address is `hub:OWNER/NAME`, or `hub:OWNER/NAME@REVISION` for a branch, tag or commit. Of a repository, only the
files that its checksums.json lists are downloaded; they are verified when they are loaded, like those of any bundle.
Nothing from the Hub is executed.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtformer.errors import ConfigError, DataError, MtformerError, log
from mtformer.files import CHECKSUMS, read_meta

PREFIX = "hub:"
"""Beginning of addresses."""
ADDRESS = re.compile(r"hub:(?P<repo>[\w][\w.-]*/[\w][\w.-]*)(@(?P<revision>[\w./-]+))?", re.ASCII)
"""Form of an address."""
REMEDY = "check the name and the connection, and log in with `hf auth login` if it is private, or for a push"
"""Remedy if the Hub refuses a request."""
COMMIT = re.compile("[0-9a-f]{40}")
"""Name of the folder of a download, which is that of its commit."""
REPLACED = ["tokenizer/*", "confidence.json", "data_report.json"]
"""Files of an earlier upload that are deleted if the new bundle does not have them."""


@dataclass(frozen=True)
class HubAddress:
    """Address of a repository on the Hub."""

    repo_id: str
    """OWNER/NAME."""
    revision: str | None = None
    """Branch, tag or commit; None: the main branch."""

    def __str__(self) -> str:
        return f"{PREFIX}{self.repo_id}" + (f"@{self.revision}" if self.revision else "")


def parse_address(text: str) -> HubAddress:
    """Return the address in a text; raise ConfigError if it is none."""
    match = ADDRESS.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text}: not an address on the Hub; write hub:OWNER/NAME or hub:OWNER/NAME@REVISION")
    return HubAddress(match["repo"], match["revision"])


def is_on_hub(run: str | Path) -> bool:
    """Return True for an address on the Hub."""
    return str(run).startswith(PREFIX)


def local_path(run: str | Path) -> Path:
    """Return the folder of a run; a bundle on the Hub is downloaded, or found in the cache of `huggingface_hub`.

    Raise ConfigError for an invalid address, DataError if the bundle cannot be downloaded, or is none.
    """
    return download(parse_address(str(run))) if is_on_hub(run) else Path(run)


def download(address: HubAddress) -> Path:
    """Return the folder with the files of a bundle on the Hub; see `local_path` for the errors."""
    with _hub(str(address), REMEDY) as hub:
        folder = Path(_fetch(hub, address, [CHECKSUMS]))
        if not (folder / CHECKSUMS).is_file():
            raise DataError(f"{address}: has no {CHECKSUMS}, so it is no bundle of mtformer; see `mtformer push`")
        names = list(read_meta(folder, CHECKSUMS)["sha256"])
        folder = Path(_fetch(hub, address, [*names, CHECKSUMS, "README.md"]))
    if COMMIT.fullmatch(folder.name):
        log.info("%s: commit %s", address, folder.name)
    return folder


def _fetch(hub: Any, address: HubAddress, names: list[str]) -> str:
    folder: str = hub.snapshot_download(repo_id=address.repo_id, revision=address.revision, allow_patterns=names)
    return folder


def upload(folder: Path, address: HubAddress, private: bool) -> str:
    """Upload a folder in one commit, and return the address of the repository, which is created if it does not exist.

    Args:
        folder: the folder.
        address: the repository, without a revision.
        private: visibility of a repository that is created.

    Raise DataError if the Hub refuses it.
    """
    with _hub(str(address), REMEDY) as hub:
        api = hub.HfApi()
        url = api.create_repo(address.repo_id, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=address.repo_id,
            folder_path=str(folder),
            commit_message="Upload a model of mtformer",
            delete_patterns=REPLACED,
        )
    return str(url)


@contextmanager
def _hub(where: str, remedy: str) -> Iterator[Any]:
    """Yield the module `huggingface_hub`; convert its errors to DataError."""
    try:
        import huggingface_hub  # takes time
    except ImportError as error:  # a dependency of `datasets`, which may drop it
        raise ConfigError(f"{where} needs huggingface_hub: pip install huggingface_hub") from error

    try:
        yield huggingface_hub
    except MtformerError:
        raise
    except Exception as error:  # the package has many classes of errors, and those of its HTTP library
        first_line = next((line for line in str(error).splitlines() if line.strip()), "")
        message = f"{type(error).__name__}: {' '.join(first_line.split()):.300}"
        raise DataError(f"{where}: {message.rstrip('. :')}; {remedy}") from error
