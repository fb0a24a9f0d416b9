"""A fake of the Hugging Face Hub in a folder, in place of the functions of `huggingface_hub`."""

import fnmatch
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """Repositories of the Hub as folders, and downloads of them as folders with links, as in the cache of the Hub."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.downloads: list[tuple[str, str | None]] = []
        self.created: list[tuple[str, bool]] = []
        self.error: Exception | None = None

    def repository(self, name: str) -> Path:
        return self.folder / name

    def snapshot_download(self, *, repo_id: str, revision: str | None, allow_patterns: list[str]) -> str:
        if self.error is not None:
            raise self.error
        source = self.repository(repo_id if revision is None else f"{repo_id}@{revision}")
        if not source.is_dir():
            raise LocalEntryNotFoundError(f"no such repository\nURL: https://huggingface.co/{repo_id}")
        self.downloads.append((repo_id, revision))
        snapshot = self.folder / "cache" / source.name / COMMIT
        for path in source.rglob("*"):
            name = path.relative_to(source).as_posix()
            if path.is_file() and any(fnmatch.fnmatch(name, pattern) for pattern in allow_patterns):
                target = snapshot / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.unlink(missing_ok=True)
                target.symlink_to(path)
        snapshot.mkdir(parents=True, exist_ok=True)
        return str(snapshot)

    def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> str:
        if self.error is not None:
            raise self.error
        assert exist_ok
        self.created.append((repo_id, private))
        return f"https://huggingface.co/{repo_id}"

    def upload_folder(self, *, repo_id: str, folder_path: str, delete_patterns: list[str], **_: Any) -> None:
        assert all(not pattern.startswith("*") for pattern in delete_patterns)
        shutil.copytree(folder_path, self.repository(repo_id), dirs_exist_ok=True)


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    """Replace the Hub by a fake that keeps its repositories in a folder."""
    hub = FakeHub(folder)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    return hub
