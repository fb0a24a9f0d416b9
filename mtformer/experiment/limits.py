"""Warning about a training that is much shorter than recommended."""

import logging
import math

from mtformer.config.schema import Config, TrainingConfig
from mtformer.errors import log
from mtformer.experiment.recommend import recommended_epochs
from mtformer.formatting import format_duration
from mtformer.training.budget import needed_seconds
from mtformer.training.speed import Pace

ENOUGH = 0.5
"""Share of the recommended number of epochs below which a training is too short."""


def warn_of_limits(config: Config, pace: Pace, num_steps: int, steps_per_epoch: float, num_pairs: float) -> None:
    """Log if a limit ends training long before the recommended number of epochs.

    It is a warning for a limit of time, whose effect on the number of epochs depends on the machine; who sets a number
    of steps or epochs is only informed.

    Args:
        config: The experiment.
        pace: Expected seconds of a step and of a validation.
        num_steps: Number of steps that the limits allow.
        steps_per_epoch: Number of steps of an epoch.
        num_pairs: Number of training pairs per epoch.
    """
    training = config.training
    epochs = num_steps / steps_per_epoch
    enough_epochs = recommended_epochs(num_pairs)
    if training.init_from is not None or epochs >= ENOUGH * enough_epochs:
        return

    enough_steps = 100 * math.ceil(enough_epochs * steps_per_epoch / 100)
    longer = training.model_copy(update={"max_steps": enough_steps})
    seconds = needed_seconds(pace, longer, 0, longer.max_steps)
    log.log(
        logging.WARNING if training.max_minutes is not None else logging.INFO,
        "training.%s allows about %s steps (%.1f epochs), %.2g%% of the %.0f epochs that are recommended for %s pairs, "
        "so the model may be undertrained; with this config, these take about %s at the measured speed: set %s",
        _limiting_key(training, num_steps),
        f"{num_steps:,}",
        epochs,
        100 * epochs / enough_epochs,
        enough_epochs,
        f"{num_pairs:,.0f}",
        format_duration(seconds),
        " ".join(_longer_settings(training, longer.max_steps, enough_epochs, seconds)),
    )


def _limiting_key(training: TrainingConfig, num_steps: int) -> str:
    """Return the name of the limit that ends training."""
    if num_steps >= training.max_steps:
        return "max_steps"
    return "max_minutes" if training.max_minutes is not None else "max_epochs"


def _longer_settings(training: TrainingConfig, num_steps: int, epochs: float, seconds: float) -> list[str]:
    """Return the settings with which training has the recommended length, as overrides."""
    settings: list[str] = []
    if training.max_steps < num_steps:
        settings.append(f"training.max_steps={num_steps}")
    if training.max_epochs is not None:
        settings.append(f"training.max_epochs={math.ceil(epochs)}")
    if training.max_minutes is not None:
        settings.append(f"training.max_minutes={math.ceil(seconds / 60)}")
    return settings
