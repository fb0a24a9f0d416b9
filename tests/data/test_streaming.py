"""Streaming: every record once a pass, the same batches wherever a run goes on, and no more in memory than buffers."""

import gzip
import json
import logging
import lzma
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import zstandard
from pydantic import ValidationError

from mtformer.config.data import (
    DataConfig,
    FilterConfig,
    HubDataset,
    JsonlFile,
    NoiseConfig,
    Source,
    TextFiles,
    TsvFile,
)
from mtformer.config.schema import Config
from mtformer.data import streaming
from mtformer.data.batches import Batch, TrainingBatches
from mtformer.data.changes import Changes
from mtformer.data.mixture import START, Corpus, Place
from mtformer.data.records import Records, Unparsed
from mtformer.data.sources import open_records, stream_pairs
from mtformer.data.streaming import Stream, StreamMixture
from mtformer.errors import DataError
from mtformer.text.tokenizer import BOS, TokenizerPair

Pairs = list[tuple[str, str]]
Written = Callable[..., DataConfig]
BUDGET = 500
NOISE = NoiseConfig(word_dropout=0.2, typos=0.2, case=0.1)
DATA = DataConfig(src_lang="en", tgt_lang="de")
LENIENT = {"filters": {"max_length_difference": None, "max_length_ratio": None, "drop_other_languages": False}}


@pytest.fixture(autouse=True)
def _own_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even a lock file reaches the user's cache."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hub_cache"))


def stream(data: DataConfig, tokenizers: TokenizerPair, name: str = "train", keep_text: bool = True) -> Stream:
    return Stream(name, data.train, data, tokenizers, keep_text=keep_text)


def batches_of(
    corpora: list[Corpus[Stream]], buffer: int, tokenizers: TokenizerPair, *, is_changed: bool = False, seed: int = 3
) -> TrainingBatches:
    changes = Changes(tokenizers, 0.1, NOISE, 200) if is_changed else None
    return TrainingBatches(StreamMixture(corpora, seed, buffer), BUDGET, changes)


@pytest.fixture
def make(corpus: Written, tokenizers: TokenizerPair) -> Callable[..., TrainingBatches]:
    """make(pairs, buffer) gives the batches of one corpus of these pairs."""

    def make_batches(pairs: Pairs, buffer: int, **options: Any) -> TrainingBatches:
        data = corpus(pairs, **LENIENT)
        return batches_of([Corpus("train", stream(data, tokenizers))], buffer, tokenizers, **options)

    return make_batches


def lines_of(batch: Batch, tokenizers: TokenizerPair) -> Pairs:
    src, tgt = tokenizers.src.decode(batch.src_BS.tolist()), tokenizers.tgt.decode(batch.tgt_out_BT.tolist())
    return list(zip(src, tgt, strict=True))


def epochs(training: TrainingBatches, number: int) -> list[list[Batch]]:
    """The batches of the first buffers."""
    with training.start(max_epochs=number) as batches:
        made = list(batches)
    return [[batch for batch in made if batch.end.epoch == epoch] for epoch in range(number)]


def assert_same(one: Batch, two: Batch) -> None:
    for field in fields(Batch):
        a, b = getattr(one, field.name), getattr(two, field.name)
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b, field.name


# ---- sources from a record on ---------------------------------------------------------------------------------------


Pack = Callable[[bytes], bytes]
PACKERS: dict[str, Pack] = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.compress}


def packed(folder: Path, suffix: str, pack: Pack, pairs: Pairs) -> TextFiles:
    for side, name in enumerate(("en", "de")):
        (folder / f"x.{name}{suffix}").write_bytes(pack("".join(f"{pair[side]}\n" for pair in pairs).encode()))
    return TextFiles(src=str(folder / f"x.en{suffix}"), tgt=str(folder / f"x.de{suffix}"))


def hub(folder: Path, pairs: Pairs, ending: str) -> HubDataset:
    import datasets

    (folder / ending).mkdir()
    half = len(pairs) // 2
    for number, part in enumerate((pairs[:half], pairs[half:])):
        made = datasets.Dataset.from_list([{"translation": {"en": src, "de": tgt}} for src, tgt in part])
        to = made.to_parquet if ending == "parquet" else made.to_json
        to(folder / ending / f"train-{number}.{ending}")
    return HubDataset(dataset=str(folder / ending))


def of_every_kind(folder: Path, pairs: Pairs) -> Iterator[Source]:
    for suffix, pack in PACKERS.items():
        yield packed(folder, suffix, pack, pairs)
    (folder / "x.tsv").write_text("".join(f"{tgt}\t{src}\n" for src, tgt in pairs))
    yield TsvFile(tsv=str(folder / "x.tsv"), src_column=2, tgt_column=1)
    (folder / "x.jsonl").write_text("".join(json.dumps({"en": src, "de": tgt}) + "\n" for src, tgt in pairs))
    yield JsonlFile(jsonl=str(folder / "x.jsonl"))
    yield hub(folder, pairs, "parquet")
    yield hub(folder, pairs, "jsonl")


def test_every_kind_of_source_begins_at_any_record_and_tells_how_many_it_has(tmp_path: Path) -> None:
    pairs = [(f"source {n}", f"target {n}") for n in range(2_300)]
    for source in of_every_kind(tmp_path, pairs):
        for start in (0, 1, 999, 1_000, 1_001, 2_299, 2_300, 9_000):
            found: Pairs = []

            def whole(start: int = start, source: Source = source, found: Pairs = found) -> Iterator[int]:
                reading = stream_pairs(source, DATA, start)
                while True:
                    try:
                        found.append(next(reading))
                    except StopIteration as stop:
                        yield stop.value
                        return

            assert list(whole()) == [2_300]
            assert found == pairs[start:]


def test_what_is_passed_over_is_not_looked_at(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b'\xff\n{"en":\n{"en": "a", "de": "b"}\n')
    source = JsonlFile(jsonl=str(tmp_path / "x.jsonl"))
    assert list(stream_pairs(source, DATA, 2)) == [("a", "b")]
    with pytest.raises(DataError, match=r"x.jsonl:2: not JSON"):
        list(stream_pairs(source, DATA, 1))


@pytest.mark.parametrize("start", [0, 2, 4, 9])
def test_files_of_unequal_length_are_told_wherever_reading_began(start: int, tmp_path: Path) -> None:
    source = TextFiles(src=str(tmp_path / "x.en"), tgt=str(tmp_path / "x.de"))
    for lengths in ((3, 5), (5, 3)):
        for path, length in zip((source.src, source.tgt), lengths, strict=True):
            Path(path).write_text("a\n" * length)
        with pytest.raises(DataError, match=rf"x.en has {lengths[0]} lines but \S+x.de has {lengths[1]};"):
            list(stream_pairs(source, DATA, start))


# ---- what comes when ------------------------------------------------------------------------------------------------


def test_every_record_comes_once_a_pass(
    make: Callable[..., TrainingBatches], pairs: Pairs, tokenizers: TokenizerPair
) -> None:
    made = epochs(make(pairs[:300], 70), 30)
    lines = [[line for batch in epoch for line in lines_of(batch, tokenizers)] for epoch in made]
    assert {len(epoch) for epoch in lines} == {70}
    assert sorted(lines[0]) == sorted(pairs[:70])
    assert lines[0] != pairs[:70]
    assert sorted(lines[4]) == sorted(pairs[280:300] + pairs[:50])
    assert Counter(line for epoch in lines for line in epoch) == dict.fromkeys(pairs[:300], 7)


def test_a_buffer_larger_than_the_corpus_holds_it_several_times(
    make: Callable[..., TrainingBatches], pairs: Pairs, tokenizers: TokenizerPair
) -> None:
    """Those of a later pass are no duplicates of those of an earlier one."""
    training = make(pairs[:40], 100)
    lines = Counter(line for epoch in epochs(training, 2) for batch in epoch for line in lines_of(batch, tokenizers))
    assert lines == dict.fromkeys(pairs[:40], 5)
    assert training.mixture.corpora[0].store.report.left_out == {}


def test_several_sources_are_one_corpus(tmp_path: Path, pairs: Pairs, tokenizers: TokenizerPair) -> None:
    sources = []
    for number, (start, end) in enumerate(((0, 30), (30, 31), (31, 100))):
        (tmp_path / str(number)).mkdir()
        sources.append(packed(tmp_path / str(number), ".gz", gzip.compress, pairs[start:end]))
    data = DataConfig.model_validate({"src_lang": "en", "tgt_lang": "de", "train": sources, **LENIENT})

    def read(start: int, end: int) -> Pairs:
        return list(zip(*stream(data, tokenizers).read(range(start, end)).text(), strict=True))

    assert read(0, 250) == pairs[:100] * 2 + pairs[:50]
    for start in (1, 29, 30, 31, 99, 100, 130, 131, 245):
        assert read(start, 250) == (pairs[:100] * 2 + pairs[:50])[start:]


def test_order_hangs_on_the_seed_alone(make: Callable[..., TrainingBatches], pairs: Pairs) -> None:
    one, again, other = (epochs(make(pairs[:300], 120, seed=seed), 2) for seed in (1, 1, 2))
    for a, b in zip(one[1], again[1], strict=True):
        assert_same(a, b)
    assert [batch.src_BS.tolist() for batch in one[1]] != [batch.src_BS.tolist() for batch in other[1]]


def test_weights_are_the_parts_of_a_buffer(corpus: Written, pairs: Pairs, tokenizers: TokenizerPair) -> None:
    data = corpus(pairs[:50], **LENIENT)
    weights = {"a": 1.0, "b": 2.5, "c": 0.01}
    corpora = [Corpus(name, stream(data, tokenizers, name), ((0, weight),)) for name, weight in weights.items()]
    mixture = StreamMixture(corpora, 1, 97)
    taken, parts = mixture.begin(Place()), []
    for epoch in range(2_000):
        (window,) = mixture.windows(epoch, 0, taken)
        parts.append([len(records) for records in window.blocks])
        assert sum(parts[-1]) == window.num_pairs == 97
        for (name, before), records in zip(taken.items(), window.blocks, strict=True):
            assert records.tolist() == list(range(before, window.taken_after[name]))
        taken = window.taken_after
    for number, weight in enumerate(weights.values()):
        exact = 97 * weight / sum(weights.values())
        assert max(abs(part[number] - exact) for part in parts) < 1
        assert taken[corpora[number].name] == pytest.approx(2_000 * exact, rel=0.05)


def test_weights_follow_their_schedule(corpus: Written, pairs: Pairs, tokenizers: TokenizerPair) -> None:
    data = corpus(pairs[:50], **LENIENT)
    schedule = ((0, 1.0), (8, 3.0), (20, 0.0))
    corpora = [
        Corpus("a", stream(data, tokenizers, "a")),
        Corpus("b", stream(data, tokenizers, "b"), schedule),
    ]
    with batches_of(corpora, 60, tokenizers).start(batches_per_step=2) as batches:
        made = list(islice(batches, 80))
    parts: dict[int, Counter[str]] = {}
    for batch in made:
        parts.setdefault(batch.end.since_step, Counter()).update(batch.pairs_of)
    for since, part in list(parts.items())[:-1]:
        expected = 0.5 if since < 8 else 0.75 if since < 20 else 0.0
        assert part["b"] / part.total() == pytest.approx(expected, abs=0.02)
    assert len(parts) > 6


def test_both_directions_tags_and_starts(corpus: Written, pairs: Pairs, tokenizers: TokenizerPair) -> None:
    data = corpus(pairs[:60], **LENIENT)
    corpora = [
        Corpus("ab", stream(data, tokenizers, "ab"), tags=(7,)),
        Corpus("ba", stream(data, tokenizers, "ba"), is_swapped=True, tags=(8, 9), start=6),
    ]
    found: dict[int, Pairs] = {BOS: [], 6: []}
    for epoch in epochs(batches_of(corpora, 40, tokenizers), 3):
        for batch in epoch:
            rows = zip(batch.src_BS.tolist(), batch.tgt_in_BT.tolist(), lines_of(batch, tokenizers), strict=True)
            for src, tgt_in, (_, tgt_line) in rows:
                tags = [7] if tgt_in[0] == BOS else [8, 9]
                assert src[: len(tags)] == tags
                found[tgt_in[0]].append((tokenizers.src.decode([src[len(tags) :]])[0], tgt_line))
    assert sorted(found[BOS]) == sorted(pairs[:60])
    assert sorted(found[6]) == sorted((tgt, src) for src, tgt in pairs[:60])
    assert corpora[1].longest() == (256 + 2, 256)


# ---- going on -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_changed", [False, True])
@pytest.mark.parametrize("num_ranks", [1, 3])
def test_going_on_is_as_if_never_stopped(
    is_changed: bool, num_ranks: int, corpus: Written, pairs: Pairs, tokenizers: TokenizerPair
) -> None:
    """Over several passes, in each of several processes, with text that is changed and weights that change."""
    data = corpus([*pairs[:90], ("", ""), *pairs[:3]], **LENIENT)

    def training() -> TrainingBatches:
        """What a new process makes."""
        corpora = [
            Corpus("a", stream(data, tokenizers, "a"), ((0, 1.0), (9, 0.3))),
            Corpus("b", stream(data, tokenizers, "b"), ((0, 0.5),), is_swapped=True),
        ]
        return batches_of(corpora, 80, tokenizers, is_changed=is_changed)

    def first(number: int, rank: int, place: Place = START, step: int = 0) -> list[Batch]:
        with training().start(place, step, batches_per_step=num_ranks, rank=rank, num_ranks=num_ranks) as batches:
            return list(islice(batches, number))

    whole = [first(60, rank) for rank in range(num_ranks)]
    assert whole[0][-1].end.epoch > 4
    for stop in range(1, 58, 7):
        rank = stop % num_ranks
        place = whole[rank][stop - 1].end
        for expected, found in zip(whole[rank][stop : stop + 9], first(9, rank, place, stop), strict=False):
            assert_same(expected, found)
    with training().start(batches_per_step=num_ranks) as batches:
        alone = list(islice(batches, 12 * num_ranks))
    for rank in range(num_ranks):
        for expected, found in zip(alone[rank::num_ranks], whole[rank], strict=False):
            assert_same(replace(expected, end=found.end), found)


def test_going_on_in_a_later_pass_reads_no_more_than_it_must(
    corpus: Written, pairs: Pairs, tokenizers: TokenizerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, starts = corpus(pairs[:100], **LENIENT), []

    def watched(source: Source, data: DataConfig, start: int, *, is_streamed: bool) -> AbstractContextManager[Records]:
        starts.append(start)
        return open_records(source, data, start, is_streamed=is_streamed)

    monkeypatch.setattr(streaming, "open_records", watched)
    one = stream(data, tokenizers)
    assert [len(one.read(range(start, start + 10))) for start in (0, 10, 20)] == [10, 10, 10]
    assert starts == [0]
    assert list(one.read(range(730, 740)).text()[0]) == [pair[0] for pair in pairs[30:40]]
    assert starts == [0, 730, 30]
    one.read(range(1_250, 1_260))
    assert starts == [0, 730, 30, 50]


# ---- memory ---------------------------------------------------------------------------------------------------------


def test_no_more_than_a_few_buffers_are_read_ahead(
    corpus: Written, pairs: Pairs, tokenizers: TokenizerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_read = 0

    class Endless(Records):
        @property
        def number(self) -> int:
            return num_read

        @property
        def position(self) -> int:
            return 0

        def take(self, count: int) -> Unparsed:
            nonlocal num_read
            numbers = range(num_read, num_read + count)
            num_read += count
            src, tgt = ([f"{pairs[n % len(pairs)][side]} {n % len(pairs)}" for n in numbers] for side in (0, 1))
            return Unparsed(count, lambda: (src, tgt))

    monkeypatch.setattr(streaming, "open_records", lambda *_, **__: nullcontext(Endless()))
    data = corpus(pairs[:1], **LENIENT)
    training = batches_of([Corpus("a", stream(data, tokenizers))], 200, tokenizers)
    assert num_read == 200
    training.sizes()
    assert num_read == 200
    num_trained = 0
    with training.start() as batches:
        for batch in islice(batches, 300):
            num_trained += batch.num_pairs
            assert num_read - num_trained <= 5 * 200
    assert num_trained > 2_000


# ---- counts ---------------------------------------------------------------------------------------------------------


def test_nothing_is_dropped_without_a_count(
    corpus: Written, pairs: Pairs, tokenizers: TokenizerPair, caplog: pytest.LogCaptureFixture
) -> None:
    short = [pair for pair in pairs[:80] if len(pair[0].split()) < 12][:5]
    dirty = [*pairs[:80], ("", "x"), ("same", "same"), *short, ("a\u2028b", "one two"), *pairs[80:100]]
    data = corpus(dirty, filters={**LENIENT["filters"], "max_tokens": 20, "max_filtered_share": 0.9})
    one = stream(data, tokenizers)
    kept = one.read(range(0, len(dirty)))
    report = one.report
    too_long = report.left_out["too long"]
    assert report.left_out == {"empty": 1, "identical": 1, "too long": too_long, "duplicate": 5}
    assert 0 < too_long < 50
    assert len(kept) == report.kept == len(dirty) - 7 - too_long
    assert report.read == len(dirty)
    assert report.tokens == {"src": len(kept.src.ids_N), "tgt": len(kept.tgt.ids_N)}
    assert report.unusual["src"] == {"line or paragraph separator (U+2028, U+2029)": 1}
    assert max(kept.src.lengths_B.max(), kept.tgt.lengths_B.max()) == 20
    with caplog.at_level(logging.INFO, "mtformer"):
        for buffer in range(1, 9):
            one.read(range(buffer * len(dirty), (buffer + 1) * len(dirty)))
    told = [record.getMessage() for record in caplog.records]
    assert told[0].startswith(f"train: has {len(dirty)} records, and begins anew; read so far {len(dirty)}, kept ")
    assert [line.split(", kept")[0] for line in told[1:]] == [
        f"train: goes on; read so far {number * len(dirty)}" for number in (2, 4, 8)
    ]
    assert f"duplicate {one.report.left_out['duplicate']}" not in told[0]
    assert "too long" in told[0]
    assert one.report.left_out["duplicate"] == 9 * 5


def test_duplicates_are_found_within_a_buffer_only(corpus: Written, pairs: Pairs, tokenizers: TokenizerPair) -> None:
    one = stream(corpus(pairs[:10] * 2, **LENIENT), tokenizers)
    assert [len(one.read(range(start, start + 10))) for start in (0, 10)] == [10, 10]
    assert len(one.read(range(20, 40))) == 10


def test_asked_again_nothing_is_read_or_counted_again(corpus: Written, pairs: Pairs, tokenizers: TokenizerPair) -> None:
    one = stream(corpus(pairs[:50], **LENIENT), tokenizers)
    assert one.read(range(0, 20)) is one.read(range(0, 20))
    assert one.report.read == 20


def test_sizes_of_a_buffer(make: Callable[..., TrainingBatches], pairs: Pairs) -> None:
    training = make([*pairs[:60], *pairs[:40]], 100)
    sizes = training.sizes()
    assert training.mixture.pairs_per_epoch(0) == pytest.approx(60)
    assert sizes.num_batches == pytest.approx(len(epochs(training, 1)[0]))
    assert sizes.longest.src_BS.shape == sizes.longest.tgt_in_BT.shape == (BUDGET // 257, 257)


def test_text_is_there_for_changes_alone(corpus: Written, pairs: Pairs, tokenizers: TokenizerPair) -> None:
    data = corpus(pairs[:10], **LENIENT)
    assert stream(data, tokenizers, keep_text=False).read(range(0, 5)).src_text is None
    assert stream(data, tokenizers).read(range(0, 5)).text() == tuple(map(list, zip(*pairs[:5], strict=True)))


def test_a_fingerprint_is_of_names_sizes_and_times_and_of_the_filters(
    corpus: Written, pairs: Pairs, tokenizers: TokenizerPair, tmp_path: Path
) -> None:
    data = corpus(pairs[:20])
    first = stream(data, tokenizers).fingerprint
    assert stream(data, tokenizers).fingerprint == first
    filtered = data.model_copy(update={"filters": FilterConfig(max_tokens=9)})
    lenient = data.model_copy(update={"filters": FilterConfig(max_filtered_share=1.0)})
    assert stream(filtered, tokenizers).fingerprint != first == stream(lenient, tokenizers).fingerprint
    os.utime(tmp_path / "train.de", ns=(0, 0))
    at_another_time = stream(data, tokenizers).fingerprint
    with open(tmp_path / "train.de", "a", encoding="utf-8") as file:
        file.write("more")
    os.utime(tmp_path / "train.de", ns=(0, 0))
    assert len({first, at_another_time, stream(data, tokenizers).fingerprint}) == 3


# ---- mistakes -------------------------------------------------------------------------------------------------------


def test_an_empty_stream_and_one_of_which_nothing_is_kept(
    corpus: Written, make: Callable[..., TrainingBatches], pairs: Pairs
) -> None:
    with pytest.raises(DataError, match="the corpus is empty: not one line was read"):
        make([], 10)
    with pytest.raises(DataError, match=r"3 of 3 pairs are left out .empty 3.; nothing is left to train on"):
        make([("", "")] * 3, 3)


def test_too_much_left_out_of_the_first_buffer_is_an_error_and_later_is_not(
    make: Callable[..., TrainingBatches], pairs: Pairs
) -> None:
    dirty = [("", "x")] * 60
    with pytest.raises(DataError, match=r"in the first records: 60 of 100 pairs are left out .*max_filtered_share 0.5"):
        make([*dirty, *pairs[:100]], 100)
    made = epochs(make([*pairs[:100], *dirty, *pairs[100:140]], 100), 2)
    assert [sum(batch.num_pairs for batch in epoch) for epoch in made] == [100, 40]


def test_a_buffer_of_which_nothing_is_kept_is_passed_over(make: Callable[..., TrainingBatches], pairs: Pairs) -> None:
    for is_changed in (False, True):
        made = epochs(make([*pairs[:30], *[("", "x")] * 30, *pairs[30:60]], 30, is_changed=is_changed), 3)
        assert [sum(batch.num_pairs for batch in epoch) for epoch in made] == [30, 0, 30]


def test_a_mistake_met_on_the_way_is_raised_in_its_place_and_again(
    corpus: Written, pairs: Pairs, tokenizers: TokenizerPair
) -> None:
    data = corpus(pairs[:100], **LENIENT)
    with open(data.train[0].tgt, "a", encoding="utf-8") as file:  # type: ignore[union-attr]  # two files
        file.write("one more\n")
    one = stream(data, tokenizers)
    training = batches_of([Corpus("train", one)], 40, tokenizers)
    made: list[Batch] = []
    with training.start() as batches, pytest.raises(DataError, match=r"has 100 lines but .* has 101"):
        made.extend(batches)
    assert sum(batch.num_pairs for batch in made) == 80
    for _ in range(2):
        with pytest.raises(DataError, match="has 100 lines but"):
            one.read(range(80, 120))


def test_the_hub_out_of_reach(tokenizers: TokenizerPair, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def unreachable(*_: object, **options: object) -> None:
        assert options["streaming"]
        raise ConnectionError("Couldn't reach 'wmt/wmt14' on the Hub")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    data = DATA.model_copy(update={"train": [HubDataset(dataset="wmt/wmt14", name="de-en")]})
    with pytest.raises(DataError, match="wmt/wmt14 de-en train: the Hugging Face hub cannot be reached; check the"):
        stream(data, tokenizers).read(range(0, 10))


def test_the_hub_lost_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    class Breaking:
        def with_format(self, _: str) -> "Breaking":
            return self

        def iter(self, batch_size: int) -> Iterator[Any]:
            import pyarrow as pa

            yield pa.table({"en": ["a"] * batch_size, "de": ["b"] * batch_size})
            raise ConnectionError("Server Disconnected")

    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: Breaking())
    reading = stream_pairs(HubDataset(dataset="x/y"), DATA, 998)
    assert [next(reading), next(reading)] == [("a", "b")] * 2
    with pytest.raises(DataError, match="x/y train: the Hugging Face hub cannot be reached"):
        next(reading)


@pytest.mark.parametrize(
    ("section", "keys", "told"),
    [
        (
            "data",
            {"temperature": 2.0},
            "temperature needs the sizes of the corpora, which are not known with streaming",
        ),
        ("data", {"train": [{"dataset": "x", "split": "train[:10]"}]}, "split 'train[:10]' is a slice"),
        ("training", {"max_epochs": 3}, "training.max_epochs needs the size of the data"),
    ],
)
def test_what_does_not_go_with_streaming(section: str, keys: dict[str, Any], told: str) -> None:
    def config(is_streamed: bool) -> Config:
        tree: dict[str, Any] = {"data": {"src_lang": "en", "tgt_lang": "de", "streaming": is_streamed}, "training": {}}
        tree[section].update(keys)
        return Config.model_validate(tree)

    assert not config(False).data.streaming
    with pytest.raises(ValidationError) as error:
        config(True)
    assert told in str(error.value)
