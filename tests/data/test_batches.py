"""Batches: each pair once, within the budget, a function of (seed, epoch, index), and little padding."""

import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from mtformer.config.schema import DataConfig, TokenizerConfig
from mtformer.data import batches as batches_module
from mtformer.data.batches import Batch, Ints, TrainingBatches, make_batch, ordered_batches, pad, plan_epoch
from mtformer.data.store import Store, prepare
from mtformer.errors import DataError
from mtformer.text.tokenizer import BOS, EOS, PAD, Tokenizer, TokenizerPair
from mtformer.text.train import train_tokenizer

Pairs = list[tuple[str, str]]
Corpus = Callable[..., DataConfig]
BUDGET = 700
ALPHA = 0.05
"""Of so plain a vocabulary, what changes 4 lines in 5."""


@pytest.fixture
def store(corpus: Corpus, pairs: Pairs, tokenizers: TokenizerPair) -> Store:
    data = corpus(pairs)
    return prepare(data.train, data, tokenizers, is_training=True)


def random_lengths(number: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    src = random.integers(0, 60, size=number, dtype=np.int32)
    return src, np.maximum(0, src + random.integers(-8, 9, size=number, dtype=np.int32))


def as_lists(plan: list[Ints]) -> list[list[int]]:
    return [indices.tolist() for indices in plan]


def padding(batches: list[Batch]) -> float:
    real = sum(batch.num_src_tokens + batch.num_tgt_tokens for batch in batches)
    return 1 - real / sum(batch.src_BS.numel() + batch.tgt_in_BT.numel() for batch in batches)


def cells(batch: Batch) -> int:
    return batch.num_pairs * max(batch.src_BS.shape[1], batch.tgt_in_BT.shape[1])


def assert_same(one: Batch, two: Batch) -> None:
    for field in fields(Batch):
        a, b = getattr(one, field.name), getattr(two, field.name)
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b, field.name


def lines_of(batch: Batch, tokenizers: TokenizerPair) -> Pairs:
    src, tgt = tokenizers.src.decode(batch.src_BS.tolist()), tokenizers.tgt.decode(batch.tgt_out_BT.tolist())
    return list(zip(src, tgt, strict=True))


# ---- what a batch is ------------------------------------------------------------------------------------------------


def test_a_batch_written_out() -> None:
    batch = make_batch([([5, 6, 7], [8]), ([], [9, 10]), ([11], [])])
    assert batch.src_BS.tolist() == [[5, 6, 7, EOS], [EOS, PAD, PAD, PAD], [11, EOS, PAD, PAD]]
    assert batch.tgt_in_BT.tolist() == [[BOS, 8, PAD], [BOS, 9, 10], [BOS, PAD, PAD]]
    assert batch.tgt_out_BT.tolist() == [[8, EOS, PAD], [9, 10, EOS], [EOS, PAD, PAD]]
    assert batch.src_lengths_B.tolist() == [4, 1, 2]
    assert (batch.num_pairs, batch.num_src_tokens, batch.num_tgt_tokens) == (3, 7, 6)
    assert {t.dtype for t in vars(batch).values() if isinstance(t, torch.Tensor)} == {torch.int64}


def test_moving_a_batch_keeps_all_of_it() -> None:
    batch = make_batch([([5], [6])])
    assert_same(batch.to("cpu"), batch)
    assert {t.device.type for t in vars(batch.to("meta")).values() if isinstance(t, torch.Tensor)} == {"meta"}


def test_pad_adds_nothing_but_padding() -> None:
    ids_BS, lengths_B = pad([[5, 6], [], [7, 8, 9]])
    assert ids_BS.tolist() == [[5, 6, PAD], [PAD] * 3, [7, 8, 9]]
    assert lengths_B.tolist() == [2, 0, 3]
    assert (ids_BS.dtype, lengths_B.dtype) == (torch.int64, torch.int64)
    assert pad([])[0].shape == (0, 0)
    assert pad([[], []])[0].shape == (2, 0)


# ---- the plan of an epoch -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [250_000, 300])
def test_each_pair_once_and_within_the_budget(monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    monkeypatch.setattr(batches_module, "WINDOW_PAIRS", window)
    src, tgt = random_lengths(2000)
    for epoch in range(3):
        plan = plan_epoch(src, tgt, BUDGET, seed=4, epoch=epoch)
        assert sorted(np.concatenate(plan).tolist()) == list(range(2000))
        for indices in plan:
            assert len(indices) * (max(src[indices].max(), tgt[indices].max()) + 1) <= BUDGET


def test_batches_are_as_full_as_can_be() -> None:
    lengths = np.full(100, 9, dtype=np.int32)
    for budget in (300, 309):
        sizes = [len(indices) for indices in plan_epoch(lengths, lengths, budget, 1, 0)]
        assert sum(sizes) == 100
        # Only the first one cut, of a random size, and the last one are smaller.
        assert [size for size in sizes if size == 30] == [30] * (len(sizes) - 2)
        assert max(sizes) == 30


def test_a_pair_above_the_budget_is_a_batch_of_its_own() -> None:
    src = np.array([3, 900, 3, 700, 3], dtype=np.int32)
    plan = as_lists(plan_epoch(src, np.full(5, 3, dtype=np.int32), BUDGET, 1, 0))
    assert sorted(map(sorted, plan)) == [[0, 2, 4], [1], [3]]


def test_order_and_company_depend_on_seed_and_epoch_alone() -> None:
    src, tgt = random_lengths(2000)
    plans = {(seed, epoch): as_lists(plan_epoch(src, tgt, BUDGET, seed, epoch)) for seed in (1, 2) for epoch in (0, 1)}
    assert as_lists(plan_epoch(src, tgt, BUDGET, 1, 1)) == plans[1, 1]
    together = [{frozenset(indices) for indices in plan} for plan in plans.values()]
    for number, one in enumerate(together):
        for other in together[:number]:
            assert len(one & other) < 0.1 * len(one)


def test_batches_of_like_length_do_not_follow_each_other() -> None:
    src, tgt = random_lengths(5000)
    means = [src[indices].mean() for indices in plan_epoch(src, tgt, BUDGET, 1, 0)]
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.3


def test_one_pair_and_none() -> None:
    one = np.array([3], dtype=np.int32)
    assert as_lists(plan_epoch(one, one, BUDGET, 1, 0)) == [[0]]
    assert plan_epoch(one[:0], one[:0], BUDGET, 1, 0) == []


# ---- training batches -----------------------------------------------------------------------------------------------


def first(batches: Iterator[Batch], number: int) -> list[Batch]:
    return list(islice(batches, number))


@pytest.fixture(params=[0.0, ALPHA])
def training(request: pytest.FixtureRequest, store: Store, tokenizers: TokenizerPair) -> TrainingBatches:
    return TrainingBatches(store, BUDGET, seed=3, tokenizers=tokenizers, sampling_alpha=request.param)


def test_every_epoch_holds_the_corpus(training: TrainingBatches, pairs: Pairs, tokenizers: TokenizerPair) -> None:
    for epoch in (0, 1):
        num_batches = len(training.plan(epoch))
        with training.start(epoch) as batches:
            made = first(batches, num_batches + 1)
        assert [(batch.epoch, batch.index) for batch in made] == [
            *((epoch, index) for index in range(num_batches)),
            (epoch + 1, 0),
        ]
        assert sorted(pair for batch in made[:-1] for pair in lines_of(batch, tokenizers)) == sorted(pairs)


def test_the_budget_holds(training: TrainingBatches) -> None:
    with training.start() as batches:
        for batch in first(batches, len(training.plan(0))):
            assert cells(batch) <= BUDGET


def test_going_on_is_as_if_never_stopped(training: TrainingBatches) -> None:
    num_batches = len(training.plan(0))
    with training.start() as batches:
        whole = first(batches, num_batches + 5)
    for stop in (0, 1, 7, num_batches - 1, num_batches, num_batches + 2):
        epoch, pairs = whole[stop - 1].end if stop else (0, 0)
        with training.start(epoch, pairs) as rest:
            for expected, found in zip(whole[stop : stop + 3], rest, strict=False):
                assert_same(expected, found)


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_several_processes_share_one_list(training: TrainingBatches, num_ranks: int) -> None:
    with training.start(max_epochs=2) as batches:
        whole = list(batches)
    shares = []
    for rank in range(num_ranks):
        with training.start(max_epochs=2, rank=rank, num_ranks=num_ranks) as batches:
            shares.append(list(batches))
    assert len({len(share) for share in shares}) == 1
    together = [batch for group in zip(*shares, strict=True) for batch in group]
    for expected, found in zip(whole, together, strict=False):
        assert_same(expected, replace(found, end=expected.end))
    for row in range(len(shares[0])):
        last = whole[min((row + 1) * num_ranks, len(whole)) - 1]
        assert {share[row].end for share in shares} == {last.end}
    for blank in together[len(whole) :]:
        assert (blank.num_pairs, blank.num_tgt_tokens, int(blank.tgt_out_BT.max())) == (0, 0, PAD)
    # And any of them goes on from the end of a group.
    epoch, pairs = shares[0][2].end
    with training.start(epoch, pairs, max_epochs=2, rank=1, num_ranks=num_ranks) as rest:
        assert_same(next(rest), shares[1][3])


def test_max_epochs_is_the_end(training: TrainingBatches) -> None:
    with training.start(1, max_epochs=2) as batches:
        assert len(list(batches)) == len(training.plan(1))
    with training.start(*(1, len(training.store)), max_epochs=2) as batches:
        assert list(batches) == []


def test_a_split_batch_has_the_same_pairs(training: TrainingBatches, tokenizers: TokenizerPair) -> None:
    with training.start() as batches:
        for batch in first(batches, 5):
            assert batch.split(None) == batch.split(batch.num_cells) == [batch]
            pieces = batch.split(batch.num_cells // 3)
            assert len(pieces) > 2
            assert all(piece.num_cells <= batch.num_cells // 3 for piece in pieces)
            assert [line for p in pieces for line in lines_of(p, tokenizers)] == lines_of(batch, tokenizers)
            for name in ("num_pairs", "num_src_tokens", "num_tgt_tokens"):
                assert sum(getattr(piece, name) for piece in pieces) == getattr(batch, name)
            for piece in pieces:
                assert piece.src_BS.size(1) == int(piece.src_lengths_B.max())
                assert piece.tgt_in_BT.shape == piece.tgt_out_BT.shape
                assert (piece.tgt_out_BT != PAD).any(0).all()
    assert all(piece.num_pairs == 1 for piece in batch.split(1))


def test_the_end_of_an_epoch_goes_on_with_the_next(training: TrainingBatches, store: Store) -> None:
    with training.start(0, pairs=len(store)) as batches:
        assert (next(batches).epoch, next(batches).index) == (1, 1)


def test_no_pair_is_lost_when_the_budget_changes_on_the_way(
    store: Store, tokenizers: TokenizerPair, training: TrainingBatches
) -> None:
    other = TrainingBatches(store, BUDGET // 2, 3, tokenizers)
    sizes = np.cumsum([len(indices) for indices in other.plan(0)])
    with other.start(0, pairs=500) as batches:
        begun = next(batches).index
    assert (sizes[begun - 1] if begun else 0) <= 500 < sizes[begun]


def test_make_is_what_start_gives(training: TrainingBatches) -> None:
    plan = training.plan(2)
    with training.start(2, sum(map(len, plan[:4]))) as batches:
        made = next(batches)
    alone = training.make(plan[4], 2, 4)
    assert torch.equal(alone.src_BS, made.src_BS)
    assert torch.equal(alone.tgt_out_BT, made.tgt_out_BT)


def test_an_empty_store_is_refused(corpus: Corpus, tokenizers: TokenizerPair, store: Store) -> None:
    store._src.lengths = store._src.lengths[:0]
    with pytest.raises(DataError, match="training corpus is empty"):
        TrainingBatches(store, BUDGET, 1, tokenizers)


# ---- sampling -------------------------------------------------------------------------------------------------------


def test_sampled_segmentations_differ_from_epoch_to_epoch(store: Store, tokenizers: TokenizerPair) -> None:
    training = TrainingBatches(store, BUDGET, 3, tokenizers, sampling_alpha=ALPHA)
    plain = TrainingBatches(store, BUDGET, 3, tokenizers)
    indices = np.arange(20)
    zero, one = training.make(indices, 0, 5), training.make(indices, 1, 5)
    assert lines_of(zero, tokenizers) == lines_of(one, tokenizers) == lines_of(plain.make(indices, 0, 5), tokenizers)
    assert zero.src_BS.tolist() != one.src_BS.tolist()
    assert zero.num_src_tokens > plain.make(indices, 0, 5).num_src_tokens


def test_a_sampled_line_is_never_longer_than_is_allowed(store: Store, tokenizers: TokenizerPair) -> None:
    training = TrainingBatches(store, 10**6, 3, tokenizers, sampling_alpha=ALPHA)
    longest = max(store.src_lengths.max(), store.tgt_lengths.max())
    everything = np.arange(len(store))
    batch = training.make(everything, 0, 0)
    assert max(batch.src_BS.shape[1], batch.tgt_in_BT.shape[1]) <= longest + 1
    wider = TrainingBatches(store, 10**6, 3, tokenizers, sampling_alpha=ALPHA, max_tokens=longest + 5)
    assert wider.make(everything, 0, 0).src_BS.shape[1] in range(longest + 2, longest + 7)


def test_most_lines_are_sampled_in_spite_of_the_limits(store: Store, tokenizers: TokenizerPair) -> None:
    training = TrainingBatches(store, BUDGET, 3, tokenizers, sampling_alpha=ALPHA, max_tokens=200)
    lines = store.text(range(len(store)))[0]
    plain = tokenizers.src.encode(lines)
    free = tokenizers.src.sample(lines, ALPHA, seed=1)
    share_changed = np.mean([one != other for one, other in zip(plain, free, strict=True)])
    known = set(map(tuple, plain))
    rows = [
        tuple(row[:length])
        for index, indices in enumerate(training.plan(0))
        for batch in [training.make(indices, 0, index)]
        for row, length in zip(batch.src_BS.tolist(), (batch.src_lengths_B - 1).tolist(), strict=True)
    ]
    assert np.mean([row not in known for row in rows]) > share_changed - 0.1


# ---- dev ------------------------------------------------------------------------------------------------------------


def test_dev_once_largest_first(store: Store, pairs: Pairs, tokenizers: TokenizerPair) -> None:
    made = list(ordered_batches(store, BUDGET))
    assert sorted(pair for batch in made for pair in lines_of(batch, tokenizers)) == sorted(pairs)
    longest = [max(batch.src_BS.shape[1], batch.tgt_in_BT.shape[1]) for batch in made]
    assert longest == sorted(longest, reverse=True)
    assert all(cells(batch) <= BUDGET for batch in made)
    assert [batch.index for batch in made] == list(range(len(made)))
    assert padding(made) < 0.1


def test_dev_lines_too_long_for_the_model_are_cut_and_told(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    plain, cut = list(ordered_batches(store, 10**9)), list(ordered_batches(store, 10**9, max_tokens=9))
    num_long = int((np.maximum(store.src_lengths, store.tgt_lengths) > 9).sum())
    assert f"{num_long} of {len(store)} pairs cut to 9 tokens a side" in caplog.text
    assert cut[0].src_BS.shape[1] == cut[0].tgt_in_BT.shape[1] == 10
    assert (cut[0].src_BS == EOS).sum(1).eq(1).all()
    starts = {tuple(row[:9]) for row in plain[0].src_BS.tolist() if row[9] != PAD}
    assert {tuple(row[:9]) for row in cut[0].src_BS.tolist() if row[9] == EOS} == starts
    caplog.clear()
    list(ordered_batches(store, BUDGET, max_tokens=500))
    assert caplog.text == ""


# ---- real data ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def multi30k(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainingBatches:
    """The training pairs with a joint vocabulary of 8,000, 4,096 tokens a batch (BPE: it trains in a second)."""
    folder = tmp_path_factory.mktemp("multi30k")
    data = DataConfig.model_validate(
        {
            "src_lang": "en",
            "tgt_lang": "de",
            "train": [{side: str(shared_data / "multi30k" / f"train.{lang}.gz")
                       for side, lang in (("src", "en"), ("tgt", "de"))}],
            "cache_dir": str(folder / "cache"),
        }
    )  # fmt: skip
    from mtformer.data.sources import read_pairs

    lines = (line for pair in read_pairs(data.train[0], data) for line in pair)
    train_tokenizer(lines, TokenizerConfig(model_type="bpe"), folder / "joint.model")
    joint = Tokenizer.load(folder / "joint.model")
    tokenizers = TokenizerPair(joint, joint)
    return TrainingBatches(prepare(data.train, data, tokenizers, is_training=True), 4096, 1, tokenizers)


def test_real_padding_stays_below_five_percent(multi30k: TrainingBatches) -> None:
    for epoch in range(2):
        with multi30k.start(epoch) as batches:
            made = first(batches, len(multi30k.plan(epoch)))
        assert padding(made) < 0.05
        assert all(cells(batch) <= 4096 for batch in made)


def test_the_loader_is_far_quicker_than_any_training_on_a_cpu(multi30k: TrainingBatches) -> None:
    num_batches = len(multi30k.plan(0))
    begin = time.perf_counter()
    with multi30k.start() as batches:
        tokens = sum(batch.num_src_tokens + batch.num_tgt_tokens for batch in first(batches, 2 * num_batches))
    assert tokens / (time.perf_counter() - begin) > 1_000_000


def test_the_real_report(multi30k: TrainingBatches) -> None:
    report = multi30k.store.report
    assert report.read == 29_000
    assert report.kept == len(multi30k.store) > 28_900
    assert report.unknown_rate("tgt") < 0.01
