"""The tokenised store: what went in comes out, it is found again, and it is there whole or not at all."""

import errno
import multiprocessing
import os
import platform
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from mtformer.config.schema import DataConfig, TextFiles, TokenizerConfig
from mtformer.data import store as store_module
from mtformer.data.store import Store, cache_folder, prepare
from mtformer.errors import DataError
from mtformer.text.tokenizer import Tokenizer, TokenizerPair
from mtformer.text.train import train_tokenizer

Pairs = list[tuple[str, str]]
Corpus = Callable[..., DataConfig]


def made(data: DataConfig, tokenizers: TokenizerPair, **options: bool) -> Store:
    return prepare(data.train, data, tokenizers, **{"is_training": True, **options})


def folders(data: DataConfig) -> list[str]:
    return sorted(path.name for path in cache_folder(data).iterdir())


def check_content(store: Store, pairs: Pairs, tokenizers: TokenizerPair) -> None:
    """The store holds these pairs, in this order."""
    assert len(store) == len(pairs)
    indices = np.random.default_rng(1).permutation(len(pairs))
    chosen = [pairs[index] for index in indices]
    for side, ragged, lengths, tokenizer in zip(
        (0, 1),
        store.gather(indices),
        (store.src_lengths, store.tgt_lengths),
        (tokenizers.src, tokenizers.tgt),
        strict=True,
    ):
        ids = tokenizer.encode([pair[side] for pair in chosen])
        assert ragged.ids_N.tolist() == [piece for line in ids for piece in line]
        assert ragged.lengths_B.tolist() == lengths[indices].tolist() == [len(line) for line in ids]
        if store.has_text:
            assert store.text(indices)[side] == [pair[side] for pair in chosen]


@pytest.mark.parametrize("keep_text", [True, False])
@pytest.mark.parametrize("chunk", [7, 20_000])
def test_what_went_in_comes_out(
    corpus: Corpus,
    pairs: Pairs,
    tokenizers: TokenizerPair,
    monkeypatch: pytest.MonkeyPatch,
    chunk: int,
    keep_text: bool,
) -> None:
    monkeypatch.setattr(store_module, "CHUNK_PAIRS", chunk)
    store = made(corpus(pairs), tokenizers, keep_text=keep_text)
    assert store.has_text == keep_text
    check_content(store, pairs, tokenizers)
    assert store.report.tokens["src"] == store.src_lengths.sum()


def test_chunks_without_a_pair_or_a_token(
    corpus: Corpus, tokenizers: TokenizerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "CHUNK_PAIRS", 2)
    blank = [("", ""), ("", "")]
    pairs = [*blank, ("one", "two"), ("", "x"), *blank, ("three", "four five")]
    check_content(made(corpus(pairs), tokenizers, is_training=False), pairs, tokenizers)
    data = corpus(pairs, filters={"max_filtered_share": 0.9})
    check_content(made(data, tokenizers), [pairs[2], pairs[6]], tokenizers)


def test_unusual_lines_come_back_as_they_were(corpus: Corpus, tokenizers: TokenizerPair) -> None:
    pairs = [("a\u2028b \x00", "😀 ä"), ("", "漢字"), ("\rx", "  spaces  ")]
    check_content(made(corpus(pairs), tokenizers, is_training=False), pairs, tokenizers)


def test_filters_and_report(corpus: Corpus, tokenizers: TokenizerPair) -> None:
    pairs = [
        ("one", "two"),
        ("", "x"),
        ("one", "two"),
        ("red", "red"),
        ("old " * 50, "new " * 50),
        ("blue 漢", "green"),
    ]
    store = made(corpus(pairs, filters={"max_tokens": 30, "max_filtered_share": 0.7}), tokenizers)
    check_content(store, [pairs[0], pairs[5]], tokenizers)
    assert (store.report.read, store.report.kept) == (6, 2)
    assert store.report.left_out == {"empty": 1, "identical": 1, "duplicate": 1, "too long": 1}
    assert store.report.unknown == {"src": 1, "tgt": 0}


def test_dev_keeps_all_lines_and_tells_of_blank_ones(corpus: Corpus, tokenizers: TokenizerPair) -> None:
    pairs = [("one", "two"), ("", "x"), ("one", "two"), ("one", "one")]
    store = made(corpus(pairs), tokenizers, is_training=False)
    check_content(store, pairs, tokenizers)
    assert store.report.blank == {"src": 1, "tgt": 0}


def test_sources_are_joined_in_order(corpus: Corpus, pairs: Pairs, tokenizers: TokenizerPair, tmp_path: Path) -> None:
    data = corpus(pairs[:50])
    (tmp_path / "more.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in pairs[50:60]), encoding="utf-8")
    data = DataConfig.model_validate(
        {**data.model_dump(), "train": [data.train[0], {"tsv": str(tmp_path / "more.tsv")}]}
    )
    check_content(made(data, tokenizers), pairs[:60], tokenizers)


def test_found_again_without_reading(
    corpus: Corpus, pairs: Pairs, tokenizers: TokenizerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = corpus(pairs)
    first = made(data, tokenizers)
    monkeypatch.setattr(store_module, "read_pairs", None)
    again = made(data, tokenizers)
    assert again.fingerprint == first.fingerprint
    assert again.report == first.report
    check_content(again, pairs, tokenizers)


def test_made_anew_when_anything_it_depends_on_changes(
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


def test_the_share_left_out_is_checked_each_time(corpus: Corpus, tokenizers: TokenizerPair) -> None:
    pairs = [("one", "two"), ("", "x"), ("", "y")]
    for _ in range(2):
        with pytest.raises(DataError, match=r"train.en and .*: 2 of 3 pairs are left out \(empty 2\)"):
            made(corpus(pairs), tokenizers)
    made(corpus(pairs, filters={"max_filtered_share": 0.7}), tokenizers)
    assert len(folders(corpus(pairs))) == 1


def test_an_empty_corpus(corpus: Corpus, tokenizers: TokenizerPair) -> None:
    for is_training in (True, False):
        with pytest.raises(DataError, match=r"train.en and .*train.de: the corpus is empty"):
            made(corpus([]), tokenizers, is_training=is_training)
    assert folders(corpus([])) == []


def test_nothing_stays_of_a_corpus_that_breaks_off(
    corpus: Corpus, pairs: Pairs, tokenizers: TokenizerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "CHUNK_PAIRS", 10)
    data = corpus(pairs)
    source = data.train[0]
    assert isinstance(source, TextFiles)
    with open(source.tgt, "a", encoding="utf-8") as file:
        file.write("one line more\n")
    with pytest.raises(DataError, match=r"has 1,200 lines but .* has 1,201"):
        made(data, tokenizers)
    assert folders(data) == []


def test_a_full_disk(corpus: Corpus, pairs: Pairs, tokenizers: TokenizerPair, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    data = corpus(pairs)
    with monkeypatch.context() as patch:
        patch.setattr(pa, "OSFile", no_space)
        with pytest.raises(DataError, match=r"cache: .* cannot be written: No space left on device; .*cache_dir"):
            made(data, tokenizers)
    assert folders(data) == []
    check_content(made(data, tokenizers), pairs, tokenizers)


def test_a_cache_that_cannot_be_made(corpus: Corpus, pairs: Pairs, tokenizers: TokenizerPair, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot be written: Not a directory"):
        made(corpus(pairs, cache_dir=str(tmp_path / "file" / "cache")), tokenizers)


def prepare_at(barrier: "multiprocessing.synchronize.Barrier", data: DataConfig, tokenizers: TokenizerPair) -> None:
    barrier.wait(60)
    assert len(made(data, tokenizers)) == 1200


def test_processes_that_make_the_same_at_once(corpus: Corpus, pairs: Pairs, tokenizers: TokenizerPair) -> None:
    data = corpus(pairs)
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(3)
    processes = [context.Process(target=prepare_at, args=(barrier, data, tokenizers)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert len(folders(data)) == 1
    check_content(made(data, tokenizers), pairs, tokenizers)


def test_what_a_killed_process_left_is_cleared_away(
    corpus: Corpus, pairs: Pairs, tokenizers: TokenizerPair, tmp_path: Path
) -> None:
    data = corpus(pairs)
    name = made(data, tokenizers).fingerprint
    shutil.rmtree(cache_folder(data) / name)
    process = multiprocessing.get_context("spawn").Process(target=print)
    process.start()
    process.join()
    left = cache_folder(data) / f".{name}@{platform.node()}.{process.pid}.tmp"
    left.mkdir()
    (left / "pairs.arrow").write_bytes(b"half")
    made(data, tokenizers)
    assert folders(data) == [name]


def test_an_open_store_outlives_its_cache(corpus: Corpus, pairs: Pairs, tokenizers: TokenizerPair) -> None:
    store = made(corpus(pairs), tokenizers)
    for file in store.folder.iterdir():
        file.unlink()
    check_content(store, pairs, tokenizers)


def test_the_view_costs_no_memory_of_its_own(corpus: Corpus, pairs: Pairs, tokenizers: TokenizerPair) -> None:
    before = pa.total_allocated_bytes()
    store = made(corpus(pairs), tokenizers)
    assert store._src.flat.flags.owndata is False
    assert pa.total_allocated_bytes() - before < 1000 < store._src.flat.nbytes


def test_where_the_cache_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    languages = {"src_lang": "en", "tgt_lang": "de"}
    monkeypatch.setenv("MTFORMER_CACHE", str(tmp_path))
    assert cache_folder(DataConfig(**languages)) == tmp_path
    assert cache_folder(DataConfig(**languages, cache_dir="/elsewhere")) == Path("/elsewhere")
    monkeypatch.delenv("MTFORMER_CACHE")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_folder(DataConfig(**languages)) == Path("/home/someone/.cache/mtformer")
