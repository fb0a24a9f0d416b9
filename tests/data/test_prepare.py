"""Data preparation: contents of the store, cache, interruptions, changed sources, and several processes."""

import errno
import gzip
import json
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import pytest
from filelock import FileLock
from pydantic import create_model

from mtformer.cluster import workers
from mtformer.config.data import DataConfig, FilterConfig, HubDataset, JsonlFile, Source, TextFiles, TsvFile
from mtformer.config.schema import TokenizerConfig
from mtformer.config.section import Key
from mtformer.data.corpus import hub
from mtformer.data.corpus.sources import open_reader
from mtformer.data.store import prepare as preparing
from mtformer.data.store.pairs import Pairs as Block
from mtformer.data.store.pairs import text_of
from mtformer.data.store.prepare import _Job, _RawShard, prepare
from mtformer.data.store.store import Store, write_shard
from mtformer.errors import DataError
from mtformer.files import cache_folder
from mtformer.text.tokenizer import Tokenizer, TokenizerPair
from mtformer.text.train import train_tokenizer

Pairs = list[tuple[str, str]]
Corpus = Callable[..., DataConfig]


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use small shards; if there are worker processes, they create most of them."""
    monkeypatch.setattr(preparing, "SHARD_PAIRS", 100)
    monkeypatch.setattr(workers, "ITEMS_ALONE", 1)


def made(data: DataConfig, tokenizers: TokenizerPair, **options: bool) -> Store:
    return prepare(data.train, data, tokenizers, **{"is_training": True, **options})


def folders(data: DataConfig) -> list[str]:
    return sorted(path.name for path in cache_folder(data.cache_dir).iterdir() if path.name != ".locks")


def check_content(store: Store, pairs: Pairs, tokenizers: TokenizerPair) -> None:
    """Check that the store contains these pairs in this order."""
    assert len(store) == len(pairs)
    found = store.read(range(store.num_blocks))
    for side, tokenizer in enumerate((tokenizers.src, tokenizers.tgt)):
        ids = tokenizer.encode([pair[side] for pair in pairs])
        assert found.columns[side].to_pylist() == ids
        assert max(map(len, ids), default=0) == store.longest[side]
        if found.num_columns > 2:
            assert text_of(found)[side] == [pair[side] for pair in pairs]


@pytest.mark.parametrize("keep_text", [True, False])
@pytest.mark.parametrize("part", [300, 20_000])
def test_the_store_contains_the_corpus(
    corpus: Corpus,
    pairs: Pairs,
    tokenizers: TokenizerPair,
    monkeypatch: pytest.MonkeyPatch,
    part: int,
    keep_text: bool,
) -> None:
    monkeypatch.setattr(preparing, "SHARD_PAIRS", part)
    store = made(corpus(pairs), tokenizers, keep_text=keep_text)
    assert store.read([0]).num_columns == (4 if keep_text else 2)
    check_content(store, pairs, tokenizers)
    assert store.report.tokens["src"] == len(store.read(range(store.num_blocks))["src"].flatten())


def test_chunks_without_pairs_or_tokens(
    corpus: Corpus, tokenizers: TokenizerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "SHARD_PAIRS", 2)
    blank = [("", ""), ("", "")]
    pairs = [*blank, ("one", "two"), ("", "x"), *blank, ("three", "four five")]
    unusual = [*pairs, ("a\u2028b \x00", "😀 ä"), ("", "漢字"), ("\rx", "  spaces  ")]
    store = made(corpus(unusual), tokenizers, is_training=False)
    check_content(store, unusual, tokenizers)
    assert store.report.blank == {"src": 6, "tgt": 4}
    data = corpus(pairs, filters={"max_filtered_share": 0.9})
    check_content(made(data, tokenizers), [pairs[2], pairs[6]], tokenizers)


def test_filters_and_report(corpus: Corpus, tokenizers: TokenizerPair) -> None:
    pairs = [
        ("one", "two"),
        ("", "x"),
        ("one", "two"),
        ("red", "red"),
        (" ".join(f"old{n}" for n in range(50)), " ".join(f"new{n}" for n in range(50))),
        ("blue 漢", "green"),
    ]
    store = made(corpus(pairs, filters={"max_tokens": 30, "max_filtered_share": 0.7}), tokenizers)
    check_content(store, [pairs[0], pairs[5]], tokenizers)
    assert (store.report.read, store.report.kept) == (6, 2)
    assert store.report.left_out == {"empty": 1, "identical": 1, "duplicate": 1, "too long": 1}
    assert store.report.unknown == {"src": 1, "tgt": 0}


def test_cached_corpora_are_found_without_reading_sources(
    corpus: Corpus, pairs: Pairs, tokenizers: TokenizerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = corpus(pairs)
    first = made(data, tokenizers)
    monkeypatch.setattr(preparing.corpus, "open_reader", None)
    again = made(data, tokenizers)
    assert again.fingerprint == first.fingerprint
    assert again.report == first.report
    check_content(again, pairs, tokenizers)


def test_the_fingerprint_depends_on_content_tokenizers_and_settings(
    corpus: Corpus, pairs: Pairs, tokenizers: TokenizerPair, tmp_path: Path
) -> None:
    train_tokenizer([src for src, _ in pairs], TokenizerConfig(vocab_size=100), tmp_path / "other.model")
    other = Tokenizer.load(tmp_path / "other.model")
    prints = [
        made(corpus(pairs), tokenizers).fingerprint,
        made(corpus(pairs), tokenizers, keep_text=False).fingerprint,
        made(corpus(pairs), tokenizers, is_training=False).fingerprint,
        made(corpus(pairs), TokenizerPair(other, other)).fingerprint,
        made(corpus(pairs), TokenizerPair(tokenizers.src, other)).fingerprint,
        made(corpus(pairs, filters={"max_tokens": 100}), tokenizers).fingerprint,
        made(corpus([*pairs[:-1], ("one", "changed")]), tokenizers).fingerprint,
    ]
    assert len(set(prints)) == len(prints)


def test_disabled_filters_do_not_change_the_fingerprint(
    corpus: Corpus, pairs: Pairs, tokenizers: TokenizerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = corpus(pairs, filters={"drop_identical": False})
    before = made(data, tokenizers).fingerprint
    assert made(corpus(pairs), tokenizers).fingerprint != before
    relaxed = corpus(pairs, filters={"drop_identical": False, "max_filtered_share": 0.9})
    assert made(relaxed, tokenizers).fingerprint == before
    later = create_model("Later", __base__=FilterConfig, drop_later=(Annotated[bool, Key(off=False)], False))
    monkeypatch.setattr(preparing, "FilterConfig", later)
    for filters, is_same in (({"drop_later": False}, True), ({"drop_later": True}, False)):
        config = later.model_validate({"drop_identical": False, **filters})
        assert (made(data.model_copy(update={"filters": config}), tokenizers).fingerprint == before) == is_same


def test_the_share_of_removed_pairs_is_checked_for_cached_corpora_too(
    corpus: Corpus, tokenizers: TokenizerPair
) -> None:
    pairs = [("one", "two"), ("", "x"), ("", "y")]
    for _ in range(2):
        with pytest.raises(DataError, match=r"train.en and .*: 2 of 3 pairs were removed \(empty 2\)"):
            made(corpus(pairs), tokenizers)
    made(corpus(pairs, filters={"max_filtered_share": 0.7}), tokenizers)
    assert len(folders(corpus(pairs))) == 1


def test_an_empty_corpus(corpus: Corpus, tokenizers: TokenizerPair) -> None:
    for is_training in (True, False):
        with pytest.raises(DataError, match=r"train.en and .*train.de: the corpus is empty"):
            made(corpus([]), tokenizers, is_training=is_training)
    assert folders(corpus([])) == []


def test_no_shards_are_kept_for_files_of_unequal_length(
    corpus: Corpus, pairs: Pairs, tokenizers: TokenizerPair
) -> None:
    data = corpus(pairs)
    source = data.train[0]
    assert isinstance(source, TextFiles)
    with open(source.tgt, "a", encoding="utf-8") as file:
        file.write("one line more\n")
    with pytest.raises(DataError, match=r"has 1,200 lines but .* has 1,201"):
        made(data, tokenizers)
    assert folders(data) == []


def test_a_cache_that_cannot_be_created_raises_an_error(
    corpus: Corpus, pairs: Pairs, tokenizers: TokenizerPair, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot be written: Not a directory"):
        made(corpus(pairs, cache_dir=str(tmp_path / "file" / "cache")), tokenizers)


@pytest.mark.parametrize(
    ("kind", "how", "moment"),
    [
        ("tsv", "replace", "open"),
        ("tsv", "replace", "advance"),
        ("tsv", "append", "advance"),
        ("jsonl", "cut", "advance"),
        ("tsv.gz", "append", "open"),
        ("tsv.gz", "cut", "advance"),
        ("parquet", "replace", "open"),
        ("stream", "replace", "open"),
        ("stream", "replace", "advance"),
    ],
)
def test_a_file_that_changes_while_it_is_read_raises_an_error(
    corpus: Corpus,
    pairs: Pairs,
    tokenizers: TokenizerPair,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    how: str,
    moment: str,
) -> None:
    """The file changes before it is opened, or after two parts are read (except parquet, which is copied first)."""
    data, path, changed = corpus([]), tmp_path / f"one.{kind}", tmp_path / f"two.{kind}"
    source, _ = written(kind, path, pairs), written(kind, changed, pairs[::-1])
    file, other = (one / "train.parquet" if kind in ("parquet", "stream") else one for one in (path, changed))

    def change() -> None:
        if how == "replace":
            os.replace(other, file)
        else:
            text = file.read_bytes()
            file.write_bytes(text + other.read_bytes() if how == "append" else text[: len(text) // 2])

    def advance(num_pairs: int, share: float) -> None:
        if (num_pairs, moment) == (400, "advance"):
            change()

    def open_after_the_change(source: Source, data: DataConfig) -> object:
        if moment == "open":
            change()
        return open_reader(source, data)

    with monkeypatch.context() as patch:
        patch.setattr(preparing.corpus, "open_reader", open_after_the_change)
        with pytest.raises(DataError) as error:
            prepare([source], data, tokenizers, is_training=False, advance=advance)
    what = f"{path} train" if kind in ("parquet", "stream") else path
    assert str(error.value) == f"{what} changed while it was being read; run the command again"
    assert folders(data) == []
    if how != "cut":
        store = prepare([source], data, tokenizers, is_training=False)
        check_content(store, pairs[::-1] if how == "replace" else pairs + pairs[::-1], tokenizers)
        fresh = prepare(
            [source], data.model_copy(update={"cache_dir": str(tmp_path / "fresh")}), tokenizers, is_training=False
        )
        assert fresh.fingerprint == store.fingerprint
        for one in fresh.folder.iterdir():
            assert (store.folder / one.name).read_bytes() == one.read_bytes()


def test_no_shard_of_a_changed_file_is_kept(
    corpus: Corpus, pairs: Pairs, tokenizers: TokenizerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed after the change leaves only shards of the original file."""
    data = corpus(pairs, num_workers=2)
    source = data.train[0]
    assert isinstance(source, TextFiles)
    right = Path(source.tgt).read_bytes()

    def advance(num_pairs: int, share: float) -> None:
        if num_pairs == 400:
            Path(source.tgt).write_bytes(right.upper())

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(preparing.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            prepare([source], data, tokenizers, is_training=False, advance=advance)
    Path(source.tgt).write_bytes(right)
    check_content(prepare([source], data, tokenizers, is_training=False), pairs, tokenizers)


def prepare_at(barrier: "multiprocessing.synchronize.Barrier", data: DataConfig, tokenizers: TokenizerPair) -> None:
    barrier.wait(60)
    assert len(made(data, tokenizers)) == 1200


def test_several_processes_can_prepare_the_same_corpus_simultaneously(
    corpus: Corpus, pairs: Pairs, tokenizers: TokenizerPair
) -> None:
    data = corpus(pairs)
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(3)
    processes = [context.Process(target=prepare_at, args=(barrier, data, tokenizers)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    (name,) = folders(data)
    check_content(Store(cache_folder(data.cache_dir) / name), pairs, tokenizers)


def test_a_process_waits_while_another_one_prepares_the_corpus(
    corpus: Corpus, pairs: Pairs, tokenizers: TokenizerPair, caplog: pytest.LogCaptureFixture
) -> None:
    data = corpus(pairs)
    store = made(data, tokenizers)
    name = store.fingerprint
    shutil.move(store.folder, store.folder.with_name("aside"))
    has_lock = threading.Event()

    def other_process() -> None:
        with FileLock(cache_folder(data.cache_dir) / ".locks" / name):
            has_lock.set()
            time.sleep(0.5)
            shutil.move(store.folder.with_name("aside"), store.folder)

    thread = threading.Thread(target=other_process)
    thread.start()
    has_lock.wait()
    with caplog.at_level("INFO", logger="mtformer"):
        check_content(made(data, tokenizers), pairs, tokenizers)
    thread.join()
    [message] = caplog.messages  # no other one says that this process tokenizes
    assert message.endswith(": another process is tokenizing this corpus; waiting for that process")


def test_interrupted_preparations_are_resumed(
    corpus: Corpus,
    pairs: Pairs,
    tokenizers: TokenizerPair,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Interrupt before each rename of a file or folder; finished files are kept."""
    monkeypatch.setattr(preparing, "SHARD_PAIRS", 500)
    # Most shards contain duplicates.
    pairs = [*pairs, *pairs[5:40], *pairs[700:720], ("last", "one")]
    caplog.set_level("INFO", logger="mtformer")
    expected = made(corpus(pairs), tokenizers)
    files = {path.name: path.read_bytes() for path in expected.folder.iterdir()}
    data = corpus(pairs, cache_dir=str(tmp_path / "other"))
    for moment in range(100):
        shutil.rmtree(tmp_path / "other", ignore_errors=True)
        with monkeypatch.context() as patch:
            left = iter(range(moment))
            for name, real in (("rename", os.rename), ("replace", os.replace)):
                patch.setattr(os, name, partial(interrupt_if_exhausted, left, real))
            try:
                made(data, tokenizers)
                break
            except KeyboardInterrupt:
                pass
        store = made(data, tokenizers)
        assert {path.name: path.read_bytes() for path in store.folder.iterdir()} == files
        assert folders(data) == [store.fingerprint]
    assert moment == 12  # three files of each of three shards, the duplicates, store.json, the folder
    assert "resuming an interrupted preparation" in caplog.text


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def damaged(path: Path, how: str) -> None:
    """Damage a file of a shard of 500 pairs."""
    data = path.read_bytes()
    place = len(data) - 20
    by_kind = {
        "emptied": b"",
        "cut": data[:-8],
        "bit": data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :],
        "digit": data.replace(b'"read": 500', b'"read": 501'),
        "of version 0.3": b'{"read": 500, "kept": 500}',
    }
    assert by_kind[how] != data
    path.write_bytes(by_kind[how])


@pytest.mark.parametrize(
    ("suffix", "how"),
    [(suffix, how) for suffix in (".npy", ".arrow", ".json") for how in ("emptied", "cut", "bit")]
    + [(".json", "digit"), (".json", "of version 0.3")],
)
def test_damaged_shards_of_an_interrupted_preparation_are_made_again(
    suffix: str,
    how: str,
    corpus: Corpus,
    pairs: Pairs,
    tokenizers: TokenizerPair,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(preparing, "SHARD_PAIRS", 500)
    pairs = [*pairs, *pairs[5:40]]
    expected = made(corpus(pairs), tokenizers)
    files = {path.name: path.read_bytes() for path in expected.folder.iterdir()}
    data = corpus(pairs, cache_dir=str(tmp_path / "other"))
    with monkeypatch.context() as patch:
        patch.setattr(preparing, "_finish", interrupt)
        with pytest.raises(KeyboardInterrupt):
            made(data, tokenizers)
    [building] = [path for path in (tmp_path / "other").iterdir() if path.name != ".locks"]
    damaged(building / f"shard-00000{suffix}", how)
    for extra in (".json", ".npy", ".arrow"):  # a shard that this corpus does not have
        shutil.copyfile(building / f"shard-00001{extra}", building / f"shard-00009{extra}")
    store = made(data, tokenizers)
    found = {path.name: path.read_bytes() for path in store.folder.iterdir() if path.name != "shard-00009.arrow"}
    assert found == files
    [message] = caplog.messages  # none about shard 1
    assert message.endswith(f"/shard-00000{suffix}: damaged or changed; its pairs are tokenized again")


def test_damage_after_the_last_shard_is_an_error(
    corpus: Corpus, pairs: Pairs, tokenizers: TokenizerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next command makes the damaged shard again."""
    data, finish = corpus(pairs), preparing._finish

    def finish_after_damage(job: _Job, num_shards: int) -> None:
        damaged(job.path(3, ".npy"), "bit")
        finish(job, num_shards)

    with monkeypatch.context() as patch:
        patch.setattr(preparing, "_finish", finish_after_damage)
        with pytest.raises(DataError, match=r"shard-00003.npy: damaged or changed; run the command again"):
            made(data, tokenizers)
    check_content(made(data, tokenizers), pairs, tokenizers)


def interrupt_if_exhausted(left: Iterator[int], real: Callable[[Path, Path], None], source: Path, target: Path) -> None:
    if next(left, None) is None:
        raise KeyboardInterrupt
    real(source, target)


def test_several_processes_give_the_same_result(
    corpus: Corpus, pairs: Pairs, tokenizers: TokenizerPair, tmp_path: Path
) -> None:
    repeated = [pair for pair in pairs[:170] for _ in range(2)] + pairs[170:] + pairs[:100]
    one = made(corpus(repeated), tokenizers)
    other = made(corpus(repeated, num_workers=2, cache_dir=str(tmp_path / "other")), tokenizers)
    assert other.report == one.report
    assert one.report.left_out == {"duplicate": 270}
    check_content(one, pairs, tokenizers)
    assert one.report.tokens["src"] == len(one.read(range(one.num_blocks))["src"].flatten())
    for path in one.folder.iterdir():
        assert (other.folder / path.name).read_bytes() == path.read_bytes()


def test_processes_parse_every_kind_of_source(
    corpus: Corpus,
    pairs: Pairs,
    tokenizers: TokenizerPair,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Shard boundaries differ from the boundaries of blocks of lines and of dataset tables."""
    monkeypatch.setattr(preparing, "SHARD_PAIRS", 170)
    monkeypatch.setattr(preparing, "PAIRS_AT_ONCE", 64)
    monkeypatch.setattr(hub, "ROWS_AT_ONCE", 100)
    data = corpus([], num_workers=2)
    kinds = ("tsv", "jsonl", "parquet")
    sources = [written(kind, tmp_path / kind, pairs[400 * n : 400 * (n + 1)]) for n, kind in enumerate(kinds)]
    check_content(prepare(sources, data, tokenizers, is_training=False), pairs, tokenizers)


def test_a_faulty_line_in_another_process_raises_an_error(
    corpus: Corpus, pairs: Pairs, tokenizers: TokenizerPair, tmp_path: Path
) -> None:
    data, path = corpus([], num_workers=2), tmp_path / "x.jsonl"
    source = written("jsonl", path, pairs[:700])
    with open(path, "a", encoding="utf-8") as file:
        file.write('{"en": "a"')
    with pytest.raises(DataError, match=r"x.jsonl:701: not JSON \(Expecting"):
        prepare([source], data, tokenizers, is_training=False)
    assert folders(data) == []


def written(kind: str, path: Path, pairs: Pairs) -> Source:
    if kind.startswith("tsv"):
        with gzip.open(path, "wt") if kind == "tsv.gz" else open(path, "w", encoding="utf-8") as file:
            file.writelines(f"{src}\t{tgt}\n" for src, tgt in pairs)
        return TsvFile(tsv=str(path))
    rows = [{"en": src, "de": tgt, "number": number} for number, (src, tgt) in enumerate(pairs)]
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return JsonlFile(jsonl=str(path))
    import datasets

    path.mkdir()
    datasets.Dataset.from_list(rows).to_parquet(path / "train.parquet")
    return HubDataset(dataset=str(path), stream=kind == "stream")


def test_progress_is_reported(
    corpus: Corpus, pairs: Pairs, tokenizers: TokenizerPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test two sources with 6 and 4 shards, interrupted and resumed."""
    monkeypatch.setattr(preparing, "SHARD_PAIRS", 200)
    data = corpus(pairs, num_workers=2)
    (tmp_path / "more.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in pairs[:799]), encoding="utf-8")
    sources = [*data.train, TsvFile(tsv=str(tmp_path / "more.tsv"))]
    calls: list[tuple[int, float]] = []

    def advance(num_pairs: int, share: float) -> None:
        calls.append((num_pairs, share))
        if len(calls) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(sources, data, tokenizers, is_training=False, advance=advance)
    store = prepare(sources, data, tokenizers, is_training=False, advance=advance)
    assert len(store) == 1999
    ends = [end for end, _ in calls]
    assert ends[:4] == [200, 400, 600, 800]
    assert ends[4:] in [[*range(first, 2000, 200), 1999] for first in (1000, 1200, 1400)]
    shares = [share for _, share in calls]
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] == 1


def test_a_killed_process_raises_an_error(
    corpus: Corpus, pairs: Pairs, tokenizers: TokenizerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "_Job", KilledJob)
    data = corpus(pairs, num_workers=2)
    with pytest.raises(DataError, match=r"process was killed, .*; lower data.num_workers; finished shards are kept"):
        made(data, tokenizers)
    monkeypatch.undo()
    check_content(made(data, tokenizers), pairs, tokenizers)


class KilledJob(_Job):
    """A job whose worker processes are killed."""

    def make_shard(self, shard: _RawShard, num_threads: int = 1) -> None:
        if multiprocessing.parent_process() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        super().make_shard(shard, num_threads)


def test_shards_are_kept_if_the_disk_is_full(
    corpus: Corpus, pairs: Pairs, tokenizers: TokenizerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, calls = corpus(pairs), iter(range(2))

    def until_full(path: Path, pairs: Block) -> None:
        if next(calls, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_shard(path, pairs)

    with monkeypatch.context() as patch:
        patch.setattr(preparing, "write_shard", until_full)
        with pytest.raises(
            DataError, match=r"cache: .* cannot be written: No space left on device; .*finished shards are kept"
        ):
            made(data, tokenizers)
    (folder,) = cache_folder(data.cache_dir).glob("*.building")
    assert sorted(path.name for path in folder.glob("*.arrow")) == ["shard-00000.arrow", "shard-00001.arrow"]
    os.utime(folder, (0, 0))  # old, but in use by this process
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*.arrow")}
    store = made(data, tokenizers)
    check_content(store, pairs, tokenizers)
    assert all((store.folder / path.name).stat().st_mtime_ns == when for path, when in before.items())


def test_shards_are_kept_if_the_network_fails(
    corpus: Corpus, pairs: Pairs, tokenizers: TokenizerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, real = corpus(pairs), preparing._raw_shards

    def interrupted(*arguments: Any) -> Iterator[_RawShard]:
        yield from islice(real(*arguments), 2)
        raise DataError("the connection was lost") from ConnectionError()

    with monkeypatch.context() as patch:
        patch.setattr(preparing, "_raw_shards", interrupted)
        with pytest.raises(DataError, match="connection was lost"):
            made(data, tokenizers)
    (folder,) = cache_folder(data.cache_dir).glob("*.building")
    assert len(list(folder.glob("*.arrow"))) == 2
    check_content(made(data, tokenizers), pairs, tokenizers)


def test_the_cache_folder_depends_on_the_config_and_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plain = DataConfig(src_lang="en", tgt_lang="de")
    monkeypatch.setenv("MTFORMER_CACHE", str(tmp_path))
    assert cache_folder(plain.cache_dir) == tmp_path
    assert cache_folder(plain.model_copy(update={"cache_dir": "/elsewhere"}).cache_dir) == Path("/elsewhere")
    monkeypatch.delenv("MTFORMER_CACHE")
    monkeypatch.setenv("HOME", "/home/someone")
    for shared, expected in (
        ("/shared", "/shared"),
        ("relative", "/home/someone/.cache"),
        ("", "/home/someone/.cache"),
    ):
        monkeypatch.setenv("XDG_CACHE_HOME", shared)
        assert cache_folder(plain.cache_dir) == Path(expected, "mtformer")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder(plain.cache_dir) == Path("/home/someone/.cache/mtformer")


def test_interrupted_preparations_are_deleted_after_a_week(
    corpus: Corpus, pairs: Pairs, tokenizers: TokenizerPair, caplog: pytest.LogCaptureFixture
) -> None:
    """Recent preparations, and an old one that is being resumed, are kept."""
    data = corpus(pairs)
    old, at_work, new = (cache_folder(data.cache_dir) / f"{name}.building" for name in ("old", "atwork", "new"))
    for folder in (old, at_work, new):
        folder.mkdir(parents=True)
        (folder / "shard-00000.arrow").write_bytes(b"x")
        if folder != new:
            os.utime(folder, (0, time.time() - preparing.STALE_SECONDS - 60))
    (cache_folder(data.cache_dir) / ".locks").mkdir()
    with FileLock(cache_folder(data.cache_dir) / ".locks" / "atwork"), caplog.at_level("INFO", logger="mtformer"):
        name = made(data, tokenizers).fingerprint
    assert folders(data) == sorted([name, "atwork.building", "new.building"])
    messages = [record.message for record in caplog.records if "more than a week ago" in record.message]
    assert messages == [f"{old}: deleted; its preparation was interrupted more than a week ago"]
