"""The last stages after training, called from Python."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mtformer.config.loading import load_config
from mtformer.decoding.translator import Translator
from mtformer.errors import DataError
from mtformer.evaluation.card import read_card
from mtformer.evaluation.evaluate import named_sets
from mtformer.experiment.calibrate import calibrate_run
from mtformer.experiment.evaluate_run import Advance, evaluate_run
from mtformer.experiment.finish import finish_training
from mtformer.run_dir import RunDir


def test_the_test_sets_are_scored_with_progress(run: Path) -> None:
    opened = {}
    counted = {}

    @contextmanager
    def progress(description: str, num_lines: int) -> Iterator[Advance]:
        opened[description] = num_lines
        counted[description] = 0

        def advance(num_translated: int) -> None:
            counted[description] += num_translated

        yield advance

    saved = read_card(run / "eval" / "small")
    cards = finish_training(run, load_config(run / "config.yaml").config, progress)
    assert opened == counted == {"small": 20}
    assert list(cards) == [run / "eval" / "small"]
    assert cards[run / "eval" / "small"].scores == saved.scores


def test_a_folder_that_cannot_be_written_is_refused_before_the_translation(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    data = load_config(run / "config.yaml").config.data
    output = tmp_path / "file" / "scores"
    with pytest.raises(DataError, match=r"scores/small: cannot be written; name another folder with --output"):
        evaluate_run(RunDir(run), Translator.load(run, device="cpu"), named_sets(data.test, data), output)


def test_a_confidence_needs_enough_pairs(run: Path) -> None:
    data = load_config(run / "config.yaml").config.data
    sets = named_sets(data.test, data)
    with pytest.raises(DataError, match=r"confidence needs at least \d+ dev pairs, not 20; add dev data"):
        calibrate_run(RunDir(run), Translator.load(run, device="cpu"), sets)
    assert not RunDir(run).confidence.exists()
