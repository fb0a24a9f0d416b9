"""Batches contain each pair once, respect the budget, depend on the sampler state only, and have little padding."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, fields, replace
from itertools import islice
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from mtformer.config.data import DataConfig, NoiseConfig
from mtformer.config.schema import TokenizerConfig
from mtformer.data.batching import shares
from mtformer.data.batching.augment import Augmentation, Keys, Languages
from mtformer.data.batching.batches import Batch, TrainingBatches, make_batch, ordered_batches, plan_window
from mtformer.data.batching.mixture import START, Mixture, SamplerState
from mtformer.data.batching.mixture import Corpus as Mixed
from mtformer.data.corpus.sources import read_pairs
from mtformer.data.store.pairs import Ints, join, lengths, make_pairs
from mtformer.data.store.prepare import prepare
from mtformer.data.store.store import BLOCK_PAIRS, Store
from mtformer.text.tokenizer import BOS, EOS, PAD, Tokenizer, TokenizerPair
from mtformer.text.train import train_tokenizer

Pairs = list[tuple[str, str]]
Corpus = Callable[..., DataConfig]
BUDGET = 700
TYPOS = 0.3
"""Share of words with typos, which changes most source lines."""


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


def assert_same(one: Batch, two: Batch) -> None:
    for field in fields(Batch):
        a, b = getattr(one, field.name), getattr(two, field.name)
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b, field.name


def lines_of(batch: Batch, tokenizers: TokenizerPair) -> Pairs:
    src, tgt = tokenizers.src.decode(batch.src_BS.tolist()), tokenizers.tgt.decode(batch.tgt_out_BT.tolist())
    return list(zip(src, tgt, strict=True))


# ---- a batch --------------------------------------------------------------------------------------------------------


def test_contents_of_a_batch() -> None:
    batch = make_batch([([5, 6, 7], [8]), ([], [9, 10]), ([11], [])])
    assert batch.src_BS.tolist() == [[5, 6, 7, EOS], [EOS, PAD, PAD, PAD], [11, EOS, PAD, PAD]]
    assert batch.tgt_in_BT.tolist() == [[BOS, 8, PAD], [BOS, 9, 10], [BOS, PAD, PAD]]
    assert batch.tgt_out_BT.tolist() == [[8, EOS, PAD], [9, 10, EOS], [EOS, PAD, PAD]]
    assert batch.src_lengths_B.tolist() == [4, 1, 2]
    assert (batch.num_pairs, batch.num_src_tokens, batch.num_tgt_tokens) == (3, 7, 6)
    assert make_batch([([5], [8]), ([6], [9, 9])], start=7).tgt_in_BT.tolist() == [[7, 8, PAD], [7, 9, 9]]
    assert {t.dtype for t in vars(batch).values() if isinstance(t, torch.Tensor)} == {torch.int64}


def test_moving_a_batch_keeps_all_fields() -> None:
    batch = make_batch([([5], [6])])
    assert_same(batch.to("cpu"), batch)
    assert {t.device.type for t in vars(batch.to("meta")).values() if isinstance(t, torch.Tensor)} == {"meta"}


# ---- the plan of a window -------------------------------------------------------------------------------------------


def plan(src: np.ndarray, tgt: np.ndarray, seed: int = 1, budget: int = BUDGET) -> list[Ints]:
    return plan_window(src, tgt, budget, np.random.default_rng(seed))


def test_each_pair_occurs_once_and_batches_respect_the_budget() -> None:
    src, tgt = random_lengths(2000)
    for seed in range(3):
        found = plan(src, tgt, seed)
        assert sorted(np.concatenate(found).tolist()) == list(range(2000))
        for indices in found:
            assert len(indices) * (max(src[indices].max(), tgt[indices].max()) + 1) <= BUDGET


def test_batches_are_full() -> None:
    lengths = np.full(100, 9, dtype=np.int32)
    for budget in (300, 309):
        sizes = [len(indices) for indices in plan(lengths, lengths, budget=budget)]
        assert sum(sizes) == 100
        # Only the first batch, which has a random size, and the last one are smaller.
        assert [size for size in sizes if size == 30] == [30] * (len(sizes) - 2)
        assert max(sizes) == 30


def test_a_pair_above_the_budget_gets_its_own_batch() -> None:
    src = np.array([3, 900, 3, 700, 3], dtype=np.int32)
    assert sorted(map(sorted, as_lists(plan(src, np.full(5, 3, dtype=np.int32))))) == [[0, 2, 4], [1], [3]]
    assert plan(src[:0], src[:0]) == []


def test_order_and_batches_depend_on_the_seed_only() -> None:
    src, tgt = random_lengths(6000)
    plans = [as_lists(plan(src, tgt, seed)) for seed in range(4)]
    assert as_lists(plan(src, tgt, 2)) == plans[2]
    together = [{frozenset(indices) for indices in one} for one in plans]
    for number, one in enumerate(together):
        for other in together[:number]:
            assert len(one & other) < 0.1 * len(one)


def test_lengths_of_consecutive_batches_are_independent() -> None:
    src, tgt = random_lengths(5000)
    means = [src[indices].mean() for indices in plan(src, tgt)]
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.3


# ---- training batches -----------------------------------------------------------------------------------------------


WINDOW_PAIRS = 600
"""Window size that divides the corpus into two windows."""


def batches_of(
    store: Store, tokenizers: TokenizerPair, typos: float = 0.0, budget: int = BUDGET, max_tokens: int = 200
) -> TrainingBatches:
    augmentation = Augmentation(tokenizers, NoiseConfig(typos=typos), max_tokens) if typos else None
    return TrainingBatches(Mixture([Mixed("train", store)], 3, window_pairs=WINDOW_PAIRS), budget, augmentation)


@pytest.fixture(params=[0.0, TYPOS])
def training(request: pytest.FixtureRequest, store: Store, tokenizers: TokenizerPair) -> TrainingBatches:
    return batches_of(store, tokenizers, request.param)


def epoch_of(training: TrainingBatches, epoch: int) -> list[Batch]:
    with closing(training.start(max_epochs=epoch + 1)) as batches:
        return [batch for batch in batches if batch.end.epoch == epoch]


def test_every_epoch_contains_the_corpus(training: TrainingBatches, pairs: Pairs, tokenizers: TokenizerPair) -> None:
    with closing(training.start(max_epochs=3)) as batches:
        made = list(batches)
    orders = []
    for epoch in range(3):
        some = [batch for batch in made if batch.end.epoch == epoch]
        lines = [pair for batch in some for pair in lines_of(batch, tokenizers)]
        if training.augmentation is None:
            assert sorted(lines) == sorted(pairs)
        assert sorted(tgt for _, tgt in lines) == sorted(tgt for _, tgt in pairs)
        assert all(batch.num_padded_tokens <= BUDGET for batch in some)
        assert [batch.end.pairs for batch in some] == np.cumsum([batch.num_pairs for batch in some]).tolist()
        orders.append(lines)
    assert orders[0] != orders[1] != orders[2]


def test_batches_of_a_single_window_differ_between_epochs(store: Store, tokenizers: TokenizerPair) -> None:
    training = TrainingBatches(Mixture([Mixed("train", store)], 3), BUDGET)
    zero, one = ({str(batch.src_BS.tolist()) for batch in epoch_of(training, epoch)} for epoch in (0, 1))
    assert len(zero & one) < 0.1 * len(zero)


def test_resuming_at_any_position(training: TrainingBatches) -> None:
    with closing(training.start()) as batches:
        whole = list(islice(batches, 3 * len(epoch_of(training, 0))))
    for stop in (0, 1, 7, *range(20, len(whole) - 3, 9)):
        place = whole[stop - 1].end if stop else SamplerState()
        with closing(training.start(place)) as rest:
            for expected, found in zip(whole[stop : stop + 3], islice(rest, 3), strict=True):
                assert_same(expected, found)


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_ranks_share_one_list_of_batches(store: Store, tokenizers: TokenizerPair, num_ranks: int) -> None:
    training = batches_of(store, tokenizers)
    with closing(training.start(max_epochs=2)) as batches:
        whole = list(batches)
    shares = []
    for rank in range(num_ranks):
        with closing(training.start(max_epochs=2, rank=rank, num_ranks=num_ranks)) as batches:
            shares.append(list(batches))
    assert len({len(share) for share in shares}) == 1
    together = [batch for group in zip(*shares, strict=True) for batch in group]
    for expected, found in zip(whole, together[: len(whole)], strict=True):
        assert_same(expected, replace(found, end=expected.end))
    for row in range(len(shares[0])):
        last = whole[min((row + 1) * num_ranks, len(whole)) - 1]
        assert all(share[row].end == last.end for share in shares)
    for blank in together[len(whole) :]:
        assert (blank.num_pairs, blank.num_tgt_tokens, int(blank.tgt_out_BT.max())) == (0, 0, PAD)
    # Each rank can resume at the end of a group.
    with closing(training.start(shares[0][2].end, max_epochs=2, rank=1, num_ranks=num_ranks)) as rest:
        assert_same(next(rest), shares[1][3])


def test_splitting_a_batch_keeps_its_pairs(training: TrainingBatches, tokenizers: TokenizerPair) -> None:
    with closing(training.start()) as batches:
        for batch in islice(batches, 5):
            assert batch.split(None) == batch.split(batch.num_padded_tokens) == [batch]
            pieces = batch.split(batch.num_padded_tokens // 3)
            assert len(pieces) > 2
            assert all(piece.num_padded_tokens <= batch.num_padded_tokens // 3 for piece in pieces)
            assert [line for p in pieces for line in lines_of(p, tokenizers)] == lines_of(batch, tokenizers)
            for name in ("num_pairs", "num_src_tokens", "num_tgt_tokens"):
                assert sum(getattr(piece, name) for piece in pieces) == getattr(batch, name)
            for piece in pieces:
                assert piece.src_BS.size(1) == int(piece.src_lengths_B.max())
                assert piece.tgt_in_BT.shape == piece.tgt_out_BT.shape
                assert (piece.tgt_out_BT != PAD).any(0).all()
    assert all(piece.num_pairs == 1 for piece in batch.split(1))


def test_resuming_at_the_end_of_an_epoch_starts_the_next_epoch(training: TrainingBatches, store: Store) -> None:
    whole = epoch_of(training, 0)
    with closing(training.start(whole[-1].end)) as batches:
        assert_same(next(batches), epoch_of(training, 1)[0])
    with closing(training.start(SamplerState(1, len(store)), max_epochs=2)) as batches:
        assert list(batches) == []


def test_no_pair_is_lost_if_the_budget_changes(store: Store, tokenizers: TokenizerPair) -> None:
    other = batches_of(store, tokenizers, budget=BUDGET // 2)
    ends = [batch.end.pairs for batch in epoch_of(other, 0)]
    with closing(other.start(SamplerState(0, 500))) as batches:
        begun = next(batches)
    assert begun.end.pairs == min(end for end in ends if end > 500)
    assert begun.end.pairs - begun.num_pairs <= 500


def test_sizes_of_the_largest_batches(training: TrainingBatches, store: Store) -> None:
    sizes, whole = training.sizes(), epoch_of(training, 0)
    half = [batch for batch in whole if batch.end.pairs <= 700]
    assert sizes.largest.num_padded_tokens == max(batch.num_padded_tokens for batch in half)
    assert sizes.longest.src_BS.size(1) == store.longest[0] + 1
    assert sizes.longest.tgt_in_BT.size(1) == store.longest[1] + 1
    assert sizes.longest.num_padded_tokens <= BUDGET
    if training.augmentation is None:
        squares = max(batch.num_pairs * max(batch.src_BS.size(1), batch.tgt_in_BT.size(1)) ** 2 for batch in whole)
        assert sizes.longest.num_pairs * (max(store.longest) + 1) ** 2 >= 0.9 * squares
    assert sizes.num_batches == pytest.approx(len(whole), rel=0.1)
    for size_of in (lambda batch: batch.num_padded_tokens, lambda batch: batch.tgt_in_BT.size(1)):
        mean = np.mean([size_of(batch) for batch in whole])
        assert np.mean([size_of(batch) for batch in sizes.typical]) == pytest.approx(mean, rel=0.15)


def test_sizes_of_a_corpus_with_a_small_weight(store: Store, tokenizers: TokenizerPair) -> None:
    """Its first epochs may have no pair."""
    for seed in range(3):
        mixture = Mixture([Mixed("x", store, weight=0.01)], seed)
        assert TrainingBatches(mixture, BUDGET, None).sizes().largest.num_pairs > 0


# ---- noise ----------------------------------------------------------------------------------------------------------


def test_noise_differs_between_epochs(store: Store, tokenizers: TokenizerPair) -> None:
    training = batches_of(store, tokenizers, TYPOS)
    zero, one, plain = epoch_of(training, 0), epoch_of(training, 1), epoch_of(batches_of(store, tokenizers), 0)

    def sources(batches: list[Batch]) -> set[str]:
        return {src for batch in batches for src, _ in lines_of(batch, tokenizers)}

    assert padding(zero) < padding(plain) + 0.05
    assert len(sources(zero) & sources(one)) < 0.3 * len(sources(plain))


class Gathering:
    """Exchange of values between threads, each of which is a process of a run."""

    def __init__(self, num_ranks: int) -> None:
        self.barrier = threading.Barrier(num_ranks, timeout=60)
        self.values: list[list[int]] = [[]] * num_ranks

    def of(self, rank: int) -> Callable[[list[int]], list[list[int]]]:
        def gather(value: list[int]) -> list[list[int]]:
            self.values[rank] = value
            self.barrier.wait()
            gathered = list(self.values)
            self.barrier.wait()
            return gathered

        return gather


def shares_of(
    training: TrainingBatches, num_ranks: int, max_epochs: int = 2, state: SamplerState = START
) -> list[list[Batch]]:
    """Return the batches of each process."""
    gathering = Gathering(num_ranks)

    def share(rank: int) -> list[Batch]:
        with closing(
            training.start(state, max_epochs=max_epochs, rank=rank, num_ranks=num_ranks, gather=gathering.of(rank))
        ) as batches:
            return list(batches)

    with ThreadPoolExecutor(num_ranks) as threads:
        return list(threads.map(share, range(num_ranks)))


def noisy(store: Store, tokenizers: TokenizerPair, num_workers: int = 1) -> TrainingBatches:
    return replace(batches_of(store, tokenizers, TYPOS), num_workers=num_workers)


@pytest.mark.parametrize("num_ranks", [2, 3, 8])
def test_ranks_have_the_same_number_of_noisy_batches_and_all_pairs(
    store: Store, tokenizers: TokenizerPair, num_ranks: int
) -> None:
    training = noisy(store, tokenizers)
    shares = shares_of(training, num_ranks)
    assert len({len(share) for share in shares}) == 1
    for share in shares:
        assert [batch.end for batch in share] == [batch.end for batch in shares[0]]
        assert all(batch.num_padded_tokens <= BUDGET for batch in share)

    num_pairs = np.array([[batch.num_pairs for batch in share] for share in shares])
    ends = np.array([batch.end.pairs + batch.end.epoch * len(store) for batch in shares[0]])
    assert np.cumsum(num_pairs.sum(0)).tolist() == ends.tolist()
    # Processes wait for each other at the end of a window only.
    assert (num_pairs == 0).sum() <= 2 * 2 * num_ranks
    for share in shares:
        for batch in share:
            assert batch.num_pairs or (batch.num_tgt_tokens, int(batch.tgt_out_BT.max())) == (0, PAD)


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_the_noise_of_a_pair_does_not_depend_on_the_number_of_ranks(
    store: Store, tokenizers: TokenizerPair, num_ranks: int
) -> None:
    training = noisy(store, tokenizers)
    for epoch in (0, 1):
        alone = [line for batch in epoch_of(training, epoch) for line in lines_of(batch, tokenizers)]
        together = [
            line
            for share in shares_of(training, num_ranks)
            for batch in share
            if batch.end.epoch == epoch and batch.num_pairs
            for line in lines_of(batch, tokenizers)
        ]
        assert sorted(together) == sorted(alone)


def test_each_rank_adds_noise_to_its_own_pairs_only(store: Store, tokenizers: TokenizerPair) -> None:
    training = noisy(store, tokenizers)
    counts: list[int] = []

    def augment(pairs: pa.RecordBatch, keys: Keys, languages: Languages) -> pa.RecordBatch:
        counts.append(len(pairs))
        assert training.augmentation is not None
        return training.augmentation(pairs, keys, languages)

    shares_of(replace(training, augmentation=augment), 3, max_epochs=2)
    assert sum(counts) == 2 * len(store)


def test_ranks_resume_at_any_position_with_noise(store: Store, tokenizers: TokenizerPair) -> None:
    training = noisy(store, tokenizers)
    whole = shares_of(training, 2, max_epochs=3)
    for stop in (1, 7, len(whole[0]) // 3, len(whole[0]) // 2, len(whole[0]) - 1):
        for share, expected in zip(shares_of(training, 2, 3, whole[0][stop - 1].end), whole, strict=True):
            assert len(share) == len(expected) - stop
            for one, other in zip(share, expected[stop:], strict=True):
                assert_same(one, other)


def test_processes_that_add_noise_do_not_change_the_batches(
    store: Store, tokenizers: TokenizerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are started after the first tasks; resuming with another number of them is exact, too."""
    monkeypatch.setattr(shares, "TASK_BLOCKS", 1)
    with closing(noisy(store, tokenizers).start(max_epochs=4)) as batches:
        whole = list(batches)
    middle = len(whole) // 2
    with closing(noisy(store, tokenizers, num_workers=2).start(whole[middle].end, max_epochs=4)) as batches:
        rest: list[Batch] = []
        others: list[BaseProcess] = []
        for batch in batches:
            rest.append(batch)
            others += active_children()
    assert len(others) > 0
    assert not any(process.is_alive() for process in others), "they end with the batches"
    for expected, found in zip(whole[middle + 1 :], rest, strict=True):
        assert_same(expected, found)


def test_a_pair_that_occurs_twice_in_an_epoch_has_different_noise(store: Store, tokenizers: TokenizerPair) -> None:
    augmentation = Augmentation(tokenizers, NoiseConfig(typos=0.9), 200)
    mixture = Mixture([Mixed("train", store, weight=2.0)], 3)
    batches = epoch_of(TrainingBatches(mixture, BUDGET, augmentation), 0)
    lines = [line for batch in batches for line in lines_of(batch, tokenizers)]
    assert len(lines) == 2 * len(store)
    assert len(set(lines)) > 1.9 * len(store)


@dataclass
class Lognormal:
    """Stand-in for a store, whose pairs have lognormal lengths."""

    num_pairs: int

    def __post_init__(self) -> None:
        random = np.random.default_rng(1)
        middle = random.lognormal(np.log(22), 0.65, self.num_pairs)
        columns = []
        for spread in (0.12, 0.15):
            counts = np.clip(middle * random.lognormal(0, spread, self.num_pairs), 1, 200).astype(np.int32)
            offsets = pa.array(np.append(0, np.cumsum(counts)).astype(np.int32))
            ids = pa.array(np.full(int(counts.sum()), 5, np.uint16))
            columns.append(pa.ListArray.from_arrays(offsets, ids))
        self.pairs = make_pairs(*columns)
        self.num_blocks = self.num_pairs // BLOCK_PAIRS
        self.block_sizes = np.full(self.num_blocks, BLOCK_PAIRS)

    def __len__(self) -> int:
        return self.num_pairs

    def read(self, numbers: Sequence[int]) -> pa.RecordBatch:
        return join(self.pairs.slice(number * BLOCK_PAIRS, BLOCK_PAIRS) for number in numbers)


@pytest.mark.parametrize("batch_tokens", [4096, 8192, 32_768])
def test_windows_with_noise_are_large_enough_for_little_padding(batch_tokens: int) -> None:
    """Noise that changes nothing leaves at most one percent more padding than no noise, on one and on two processes."""
    store: Any = Lognormal(1 << 18)
    plain = TrainingBatches(Mixture([Mixed("train", store)], 1), batch_tokens)
    unchanged = replace(plain, augmentation=lambda pairs, keys, languages: pairs)
    expected = padding(epoch_of(plain, 0))
    assert padding(epoch_of(unchanged, 0)) < expected + 0.01
    both = [batch for share in shares_of(unchanged, 2, max_epochs=1) for batch in share if batch.num_pairs]
    assert padding(both) < expected + 0.01


def test_noisy_lines_respect_the_length_limit(store: Store, tokenizers: TokenizerPair) -> None:
    longest = max(store.longest)
    for limit in (longest, longest + 5):
        widths = [
            max(batch.src_BS.shape[1], batch.tgt_in_BT.shape[1])
            for batch in epoch_of(batches_of(store, tokenizers, TYPOS, max_tokens=limit), 0)
        ]
        assert limit - 3 <= max(widths) <= limit + 1


# ---- dev ------------------------------------------------------------------------------------------------------------


def test_dev_batches_are_sorted_largest_first(store: Store, pairs: Pairs, tokenizers: TokenizerPair) -> None:
    made = list(ordered_batches(Mixed("dev", store), BUDGET))
    assert sorted(pair for batch in made for pair in lines_of(batch, tokenizers)) == sorted(pairs)
    longest = [max(batch.src_BS.shape[1], batch.tgt_in_BT.shape[1]) for batch in made]
    assert longest == sorted(longest, reverse=True)
    assert all(batch.num_padded_tokens <= BUDGET for batch in made)
    assert padding(made) < 0.1


def test_long_dev_lines_are_cut_with_a_warning(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    plain, cut = (list(ordered_batches(Mixed("dev", store), 10**9, limit)) for limit in (None, 9))
    everything = store.read(range(store.num_blocks))
    num_long = int((np.maximum(lengths(everything["src"]), lengths(everything["tgt"])) > 9).sum())
    assert f"{num_long:,} of {len(store):,} pairs of dev were cut to 9 tokens per side" in caplog.text
    assert cut[0].src_BS.shape[1] == cut[0].tgt_in_BT.shape[1] == 10
    assert (cut[0].src_BS == EOS).sum(1).eq(1).all()
    starts = {tuple(row[:9]) for row in plain[0].src_BS.tolist() if row[9] != PAD}
    assert {tuple(row[:9]) for row in cut[0].src_BS.tolist() if row[9] == EOS} == starts
    caplog.clear()
    list(ordered_batches(Mixed("dev", store), BUDGET, max_tokens=500))
    assert caplog.text == ""


# ---- real data ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def multi30k(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainingBatches:
    """Training batches of 4,096 tokens with a joint vocabulary of 8,000 (BPE, which trains in a second)."""
    folder = tmp_path_factory.mktemp("multi30k")
    source = {side: str(shared_data / "multi30k" / f"train.{lang}.gz") for side, lang in (("src", "en"), ("tgt", "de"))}
    languages = {"src_lang": "en", "tgt_lang": "de"}
    data = DataConfig.model_validate({**languages, "train": [source], "cache_dir": str(folder / "cache")})
    lines = (line for pair in read_pairs(data.train[0], data) for line in pair)
    train_tokenizer(lines, TokenizerConfig(model_type="bpe"), folder / "joint.model")
    joint = Tokenizer.load(folder / "joint.model")
    tokenizers = TokenizerPair(joint, joint)
    store = prepare(data.train, data, tokenizers, is_training=True)
    return TrainingBatches(Mixture([Mixed("train", store)], 1), 4096)


def test_batches_of_multi30k(multi30k: TrainingBatches) -> None:
    for epoch in range(2):
        made = epoch_of(multi30k, epoch)
        assert padding(made) < 0.05
        assert all(batch.num_padded_tokens <= 4096 for batch in made)
    store = multi30k.mixture.corpora[0].store
    assert store.report.read == 29_000
    assert store.report.kept == len(store) > 28_000
    assert store.report.unknown_rate("tgt") < 0.01
