"""A training that a limit makes much shorter than recommended is reported before it starts."""

import logging
from pathlib import Path
from typing import Any

import pytest
from small_experiment import make_config, train, write_corpus

from mtformer.config.data import DataConfig
from mtformer.config.schema import Config, TrainingConfig
from mtformer.experiment.limits import warn_of_limits
from mtformer.experiment.recommend import SIZES, recommended_epochs
from mtformer.run_dir import RunDir
from mtformer.training.speed import Pace


def warning(caplog: pytest.LogCaptureFixture, num_steps: int, **training: Any) -> str:
    """Return the warning for 50,000 pairs in 170 steps per epoch, of one second, with validations of 10 seconds."""
    settings = TrainingConfig(**training)
    config = Config(data=DataConfig(src_lang="ja", tgt_lang="en"), training=settings)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        warn_of_limits(config, Pace(1.0, 10.0), num_steps, steps_per_epoch=170.0, num_pairs=50_000)
    return caplog.text


@pytest.mark.parametrize(
    ("num_steps", "training", "key", "settings"),
    [
        (1530, {"max_minutes": 25, "max_steps": 8500}, "max_minutes", "set training.max_minutes=144"),
        (
            1530,
            {"max_minutes": 25, "max_steps": 5000},
            "max_minutes",
            "set training.max_steps=8500 training.max_minutes=144",
        ),
        (1530, {"max_steps": 1530}, "max_steps", "set training.max_steps=8500"),
        (1530, {"max_epochs": 9}, "max_epochs", "set training.max_epochs=50"),
    ],
)
def test_a_limit_far_below_the_recommendation_is_named(
    caplog: pytest.LogCaptureFixture, num_steps: int, training: dict[str, Any], key: str, settings: str
) -> None:
    text = warning(caplog, num_steps, **training)
    assert f"training.{key} allows about 1,530 steps (9.0 epochs), 18% of the 50 epochs" in text
    assert "recommended for 50,000 pairs" in text
    assert text.endswith(settings + "\n")
    assert len(text.splitlines()) == 1
    assert caplog.records[0].levelname == ("WARNING" if "max_minutes" in training else "INFO")


@pytest.mark.parametrize(
    ("num_steps", "training"),
    [
        (4250, {"max_minutes": 60}),
        (8500, {"max_steps": 8500}),
        (100, {"max_minutes": 5, "init_from": "runs/general"}),  # fine-tuning needs fewer
    ],
)
def test_a_sufficient_limit_is_not_reported(
    caplog: pytest.LogCaptureFixture, num_steps: int, training: dict[str, Any]
) -> None:
    assert warning(caplog, num_steps, **training) == ""


def test_large_corpora_need_as_many_steps_as_a_million_pairs() -> None:
    assert [recommended_epochs(number) for number in (5000, 50_000, 400_000)] == [size.epochs for size in SIZES[:3]]
    assert recommended_epochs(10_000_000) == pytest.approx(SIZES[-1].epochs / 10)


def test_training_reports_it_before_the_first_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    corpus = write_corpus(tmp_path, train=300, dev=12)
    config = make_config(corpus, training={"max_minutes": 0.05, "max_steps": 100_000, "log_every": 1})
    with caplog.at_level(logging.INFO):
        train(config, RunDir(tmp_path / "run"))
    messages = [record.getMessage() for record in caplog.records]
    first_warning = next(number for number, text in enumerate(messages) if "that are recommended for 300 pairs" in text)
    assert not any(text.startswith("step ") for text in messages[:first_warning])
    assert sum("that are recommended for" in text for text in messages) == 1
    caplog.clear()
    train(config, RunDir(tmp_path / "run"), resume=True)
    assert "that are recommended for" not in caplog.text
