"""The parts of a look at corpora: lengths and outliers, processes, reading."""

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mtformer.config.data import DataConfig, TextFiles, TsvFile
from mtformer.data.check_findings import Example, Findings, Lengths, LogRatios, outlier_limits
from mtformer.data.check_reading import SourceReader, decode
from mtformer.data.check_repeats import Memory
from mtformer.data.sources import bytes_on_disk, read_pairs
from mtformer.data.workers import Workers
from mtformer.errors import DataError


def test_percentiles_and_sums_are_numpys() -> None:
    values = [random.Random(1).randint(0, 300) for _ in range(1001)]
    lengths = Lengths(values)
    for percent in (1, 25, 50, 99, 100):
        assert lengths.percentile(percent) == np.percentile(values, percent, method="inverted_cdf")
    assert lengths.sum() == sum(values)
    assert lengths.above(40) == sum(value > 40 for value in values)


@pytest.mark.parametrize("values", [[0], [3], list(range(500)), [1] * 99 + [10_000], [5] * 1000])
def test_a_histogram_holds_each_length_in_its_bin(values: list[int]) -> None:
    edges, counts = Lengths(values).histogram()
    assert counts == np.histogram(values, edges)[0].tolist()
    assert sum(counts) == len(values)


def test_outliers_are_far_from_the_median_of_the_logarithms() -> None:
    values = [round(value) for value in np.exp(np.random.default_rng(1).normal(4, 0.5, 20_000))]
    low, high = outlier_limits(Lengths(values))
    assert np.log(low) == pytest.approx(4 - 3.5 * 0.5, abs=0.1)
    assert np.log(high) == pytest.approx(4 + 3.5 * 0.5, abs=0.1)


def test_what_is_less_than_twice_the_median_is_no_outlier() -> None:
    assert outlier_limits({10: 100, 19: 1}) == pytest.approx((5, 20))


def test_ratios_are_kept_to_a_hundredth() -> None:
    for ratio in (0.01, 0.5, 1, 1.37, 40):
        assert list(LogRatios([LogRatios.key(ratio)]).ratios()) == [pytest.approx(ratio, rel=0.0101)]


def test_findings_added_up_keep_the_worst_and_the_first() -> None:
    numbers = list(range(100))
    ranks = [random.Random(2).choice([0.0, 1.0, 2.0]) for _ in numbers]
    examples = [Example(number, "", "", rank) for number, rank in zip(numbers, ranks, strict=True)]
    whole = Findings()
    for part in (examples[:7], examples[7:50], examples[50:]):
        one = Findings()
        one.add("kind", "src", len(part), part)
        whole.merge(one)
    assert whole["kind", "src"].count == 100
    assert whole["kind", "src"].examples == sorted(examples, key=lambda one: (-one.rank, one.index))[:10]


def test_what_stood_before_is_never_missed() -> None:
    hashes = np.random.default_rng(3).integers(1, 1 << 63, 5000, dtype=np.uint64)
    hashes[2500:3000] = hashes[:500]
    hashes[[10, 20, 4000]] = 0
    expected = np.zeros(5000, dtype=bool)
    expected[2500:3000] = True
    expected[[2510, 2520]] = False
    for size in (1, 700, 5000):
        memory = Memory()
        found = np.concatenate([memory.add(hashes[start : start + size]) for start in range(0, 5000, size)])
        assert (found >= expected).all()
        assert found.sum() < 510
        assert (memory.all() == hashes).all()


def _adder(offset: int) -> Callable[[int], int]:
    def add(number: int) -> int:
        if number == 13:
            raise DataError("unlucky")
        if number == 14:
            os.kill(os.getpid(), signal.SIGKILL)
        return number + offset

    return add


@pytest.mark.parametrize("num_processes", [1, 3])
def test_results_come_in_order(num_processes: int) -> None:
    with Workers[int, int](_adder, 100, num_processes) as workers:
        assert list(workers.map(range(10))) == [(number, number + 100) for number in range(10)]
        assert list(workers.map([1])) == [(1, 101)]
        with pytest.raises(DataError, match="unlucky"):
            list(workers.map(range(10, 14)))


def test_a_process_that_is_killed_is_told() -> None:
    with Workers[int, int](_adder, 0, 2) as workers, pytest.raises(DataError, match="ended by the system"):
        list(workers.map([1, 14, 2, 3, 4]))


def _who(settings: None) -> Callable[[int], int]:
    return lambda number: os.getpid()


def test_processes_share_the_work_and_do_not_outlive_it() -> None:
    with Workers[int, int](_who, None, 2) as workers:
        assert len({pid for _, pid in workers.map(range(6))} - {os.getpid()}) == 2
        processes = list(workers._processes)
        assert all(process.is_alive() for process in processes)
    assert not any(process.is_alive() for process in processes)


def data(**settings: object) -> DataConfig:
    return DataConfig.model_validate({"src_lang": "en", "tgt_lang": "de", **settings})


@pytest.mark.parametrize("chunk_bytes", [1, 17, 1 << 20])
def test_sound_files_are_read_as_training_reads_them(tmp_path: Path, chunk_bytes: int) -> None:
    (tmp_path / "a").write_bytes("\ufeffone\r\ntwo\u2028 \x0b\r\r\n\nfour\tx".encode())
    (tmp_path / "b").write_bytes("eins\nzwei\n\r\nvier\t\ufeff\r\n".encode())
    (tmp_path / "c").write_bytes("\ufeffone\teins\r\n\tzwei\nthree\t\r\nvier\tfour\tx".encode())
    files = TextFiles(src=str(tmp_path / "a"), tgt=str(tmp_path / "b"))
    for source in (
        files,
        TsvFile(tsv=str(tmp_path / "c")),
        TsvFile(tsv=str(tmp_path / "c"), src_column=2, tgt_column=1),
    ):
        pairs = []
        size = 0
        for chunk, more in SourceReader(source, data(), 0, True).chunks(chunk_bytes):
            decoded = decode(chunk)
            assert chunk.start == len(pairs)
            pairs += list(zip(decoded.src, decoded.tgt, strict=True))
            size += more
        assert pairs == list(read_pairs(source, data()))
        assert size == bytes_on_disk(source)
