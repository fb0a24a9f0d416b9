"""Mixture of corpora: pairs occur in proportion to the weights, and the order depends on seed and epoch only."""

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from mtformer.config.data import DataConfig
from mtformer.data.batching.batches import Batch, TrainingBatches
from mtformer.data.batching.mixture import Corpus, Mixture
from mtformer.data.store import store as store_module
from mtformer.data.store.pairs import text_of
from mtformer.data.store.prepare import prepare
from mtformer.data.store.store import Store
from mtformer.errors import DataError
from mtformer.text.tokenizer import BOS, TokenizerPair

Lines = list[tuple[str, str]]
BLOCK = 10


@pytest.fixture
def stores(
    corpus: Callable[..., DataConfig], pairs: Lines, tokenizers: TokenizerPair, monkeypatch: pytest.MonkeyPatch
) -> list[Store]:
    """Stores with 400, 100 and 35 pairs in blocks of 10."""
    monkeypatch.setattr(store_module, "BLOCK_PAIRS", BLOCK)
    found = []
    for start, end in ((0, 400), (400, 500), (500, 535)):
        data = corpus(pairs[start:end])
        found.append(prepare(data.train, data, tokenizers, is_training=True))
    return found


def taken(mixture: Mixture, num_epochs: int) -> list[Counter[int]]:
    """Return the frequency of each block for each corpus."""
    counts = [Counter[int]() for _ in mixture.corpora]
    state = None
    for epoch in range(num_epochs):
        for window in mixture.windows(epoch, state):
            for count, blocks in zip(counts, window.blocks, strict=True):
                count.update(blocks.tolist())
            after = window.taken_after
        state = after
    return counts


def test_an_epoch_of_one_corpus_has_windows_of_equal_size(stores: list[Store]) -> None:
    mixture = Mixture([Corpus("a", stores[0])], 1, window_pairs=130)
    orders, taken = [], None
    for epoch in range(3):
        windows = list(mixture.windows(epoch, taken))
        taken = windows[-1].taken_after
        assert sorted(window.num_pairs for window in windows) == [130, 130, 140]
        orders.append(np.concatenate([window.blocks[0] for window in windows]).tolist())
        assert sorted(orders[-1]) == list(range(40))
    assert orders[0] != orders[1] != orders[2]
    for seed in (1, 2):
        again = Mixture([Corpus("a", stores[0])], seed, window_pairs=130)
        blocks = [window.blocks[0] for window in again.windows(1, {"a": 40})]
        assert (np.concatenate(blocks).tolist() == orders[1]) == (seed == 1)


@pytest.mark.parametrize("window_pairs", [100, 10_000])
def test_frequencies_equal_the_weights(stores: list[Store], window_pairs: int) -> None:
    weights = (1.0, 2.5, 0.3)
    corpora = [Corpus(name, store, w) for name, store, w in zip("abc", stores, weights, strict=True)]
    counts = taken(Mixture(corpora, 1, window_pairs=window_pairs), 40)
    for count, store, weight in zip(counts, stores, weights, strict=True):
        assert sum(count.values()) == pytest.approx(40 * weight * store.num_blocks, rel=0.06)
        # Frequencies of blocks differ by at most one.
        assert len(count) == store.num_blocks
        assert max(count.values()) - min(count.values()) <= 1


def test_every_window_contains_the_mixture(stores: list[Store]) -> None:
    mixture = Mixture([Corpus("a", stores[0]), Corpus("b", stores[1], 2.0)], 1, window_pairs=100)
    shares = [len(w.blocks[1]) / len(w.blocks[0]) for w in mixture.windows(0, None)]
    assert len(shares) == 6
    assert all(0.3 < share < 0.75 for share in shares)


def test_temperature_balances_the_sizes(stores: list[Store]) -> None:
    corpora = [Corpus(name, store) for name, store in zip("abc", stores, strict=True)]
    for temperature in (1.0, 2.0, 5.0, 1e6):
        mixture = Mixture(corpora, 1, temperature)
        sizes = np.array(mixture.shares) * [400, 100, 35]
        assert sizes.sum() == pytest.approx(535) == mixture.pairs_per_epoch
        assert sizes / sizes.sum() == pytest.approx(np.array([400, 100, 35]) ** (1 / temperature) /
                                                     (np.array([400, 100, 35]) ** (1 / temperature)).sum())  # fmt: skip


def test_weights_count_once_with_a_temperature(stores: list[Store]) -> None:
    mixture = Mixture([Corpus("a", stores[0], 0.25), Corpus("b", stores[1], 4.0)], 1, temperature=2.0)
    # 500 pairs in the ratio of the roots of 100 and 400
    assert np.array(mixture.shares) * [400, 100] == pytest.approx([500 / 3, 1000 / 3])


def test_resuming_a_mixture(stores: list[Store]) -> None:
    corpora = [Corpus(name, store, w) for name, store, w in zip("abc", stores, (0.5, 2.0, 0.4), strict=True)]
    training = TrainingBatches(Mixture(corpora, 1, 1.5, window_pairs=60), 300)
    with closing(training.start()) as stream:
        whole = [next(stream) for _ in range(120)]
    for stop in range(2, 118, 2):
        with closing(training.start(whole[stop - 1].end)) as stream:
            assert key(next(stream)) == key(whole[stop])
            if stop % 10 == 0:
                rest = [next(stream) for _ in range(len(whole) - stop - 1)]
                assert list(map(key, rest)) == list(map(key, whole[stop + 1 :]))


def key(batch: Batch) -> object:
    return batch.src_BS.tolist(), batch.tgt_out_BT.tolist(), batch.end, dict(batch.pairs_of)


def test_adding_a_corpus_does_not_change_other_streams(stores: list[Store]) -> None:
    alone = Mixture([Corpus("a", stores[0])], 1)
    both = Mixture([Corpus("b", stores[1]), Corpus("a", stores[0])], 1)
    (one,), (two,) = (list(m.windows(0, None)) for m in (alone, both))
    assert one.blocks[0].tolist() == two.blocks[1].tolist()


def test_tags_directions_and_start_tokens(stores: list[Store], tokenizers: TokenizerPair) -> None:
    corpora = [Corpus("ab", stores[1], tags=(7,)), Corpus("ba", stores[1], is_swapped=True, tags=(8, 9), start=6)]
    training = TrainingBatches(Mixture(corpora, 1), 10_000)
    with closing(training.start(max_epochs=1)) as stream:
        batches = list(stream)
    found: dict[int, list[tuple[str, str]]] = {BOS: [], 6: []}
    for batch in batches:
        for src, tgt_in, tgt_out in zip(batch.src_BS.tolist(), batch.tgt_in_BT.tolist(), batch.tgt_out_BT.tolist(),
                                        strict=True):  # fmt: skip
            tags = (7,) if tgt_in[0] == BOS else (8, 9)
            assert tuple(src[: len(tags)]) == tags
            lines = (tokenizers.src.decode([src[len(tags) :]])[0], tokenizers.tgt.decode([tgt_out])[0])
            found[tgt_in[0]].append(lines)
        assert sum(batch.pairs_of.values()) == batch.num_pairs
    text = list(zip(*text_of(stores[1].read(range(stores[1].num_blocks))), strict=True))
    assert sorted(found[BOS]) == sorted(text)
    assert sorted(found[6]) == sorted((tgt, src) for src, tgt in text)
    assert corpora[1].longest() == (stores[1].longest[1] + 2, stores[1].longest[0])


def test_weights_of_less_than_a_pair_per_epoch_are_refused(stores: list[Store]) -> None:
    with pytest.raises(DataError, match="an epoch has less than one pair"):
        Mixture([Corpus("a", stores[0], weight=1e-9)], seed=1)


def test_an_error_is_raised_if_all_corpora_are_empty(stores: list[Store], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "__len__", lambda self: 0)
    with pytest.raises(DataError, match="training corpus is empty"):
        Mixture([Corpus("a", stores[0])], 1)


def test_a_corpus_with_less_than_one_block_per_epoch_is_sampled_in_some_epochs(
    stores: list[Store], tmp_path: Path
) -> None:
    corpora = [Corpus("a", stores[0]), Corpus("c", stores[2], 0.02)]
    (count,) = taken(Mixture(corpora, 1), 300)[1:]
    assert sum(count.values()) == pytest.approx(300 * 0.02 * 4, rel=0.4)
