"""`mtformer data cache`."""

import platform
from pathlib import Path

import pytest
from program import invoke

from mtformer.data.store.cache import make_lock
from mtformer.data.store.store import Store
from mtformer.files import cache_folder


@pytest.fixture
def cache(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cache with prepared corpora (one interrupted), a tokenizer, a converted model and unrelated files."""
    monkeypatch.setenv("MTFORMER_CACHE", str(tmp_path / "cache"))
    changes = ("training.max_steps=1", "data.test={}")
    assert invoke("train", corpus / "small.yaml", "--run-dir", tmp_path / "run", *changes).exit_code == 0
    cache = cache_folder()
    for name in (f"{'a' * 32}.building", f"ctranslate2/{'b' * 32}", "notes", "c" * 31):
        (cache / name).mkdir(parents=True)
        (cache / name / "file").write_text("x" * 1000)
    return cache


def entries(cache: Path) -> list[str]:
    paths = [*cache.iterdir(), *(cache / "ctranslate2").iterdir()]
    return sorted(str(path.relative_to(cache)) for path in paths if path.is_dir() and path.name != ".locks")


def test_entries_are_listed_and_deleted(cache: Path) -> None:
    before = entries(cache)
    listed = invoke("data", "cache")
    assert listed.exit_code == 0
    sizes = {name: size for name, *size in map(str.split, listed.stdout.splitlines())}
    model = f"ctranslate2/{'b' * 32}"
    assert sizes.keys() == {model, *before} - {"c" * 31, "ctranslate2", "notes"}
    assert sizes[model] == ["0.0", "MB"]
    assert sum(name.startswith("tokenizer-") for name in sizes) == 1
    assert f"{cache}: 5 entries" in listed.stderr
    assert entries(cache) == before
    cleared = invoke("data", "cache", "--clear")
    assert cleared.stdout.count("deleted") == 5
    assert entries(cache) == ["c" * 31, "ctranslate2", "notes"]
    assert invoke("data", "cache").stdout == ""


def test_entries_in_use_are_kept(cache: Path) -> None:
    corpus = next(path for path in cache.iterdir() if (path / "store.json").is_file())
    store = Store(corpus)
    with make_lock(cache / f"{'a' * 32}.building"), make_lock(cache / "ctranslate2" / ("b" * 32)):
        cleared = invoke("data", "cache", "--clear")
    assert (cleared.stdout.count("deleted"), cleared.stdout.count("in use")) == (2, 3)
    assert len(store.read(range(store.num_blocks))) == len(store)
    del store
    assert invoke("data", "cache", "--clear").stdout.count("deleted") == 3


def test_a_cache_that_does_not_exist_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MTFORMER_CACHE", str(tmp_path / "none"))
    for flags in ((), ("--clear",)):
        result = invoke("data", "cache", *flags)
        assert (result.exit_code, result.stdout) == (0, "")
    assert not (tmp_path / "none").exists()


def test_what_a_killed_process_left_is_deleted(cache: Path) -> None:
    before = entries(cache)
    left = [
        cache / f".{'d' * 32}@{platform.node()}.4194305.tmp",
        cache / f"ctranslate2/.e@{platform.node()}.4194305.tmp",
    ]
    for folder in left:
        folder.mkdir()
    assert invoke("data", "cache").stdout.count("MB") == 5
    assert all(folder.exists() for folder in left)
    invoke("data", "cache", "--clear")
    assert not any(folder.exists() for folder in left)
    assert {*entries(cache)} < {*before}
