"""Prepare a training loop to continue from a checkpoint, or to start at step 0."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mtformer.files import utc_now
from mtformer.training.checkpoint import LoadedCheckpoint, load_checkpoint
from mtformer.training.history import cut_after
from mtformer.training.loop import Trainer
from mtformer.training.state import restore_state

SCHEDULE_KEYS = ("learning_rate", "max_minutes", "max_steps", "schedule", "warmup_steps")
"""Keys of `training` that determine the learning rate."""


def resume_trainer(trainer: Trainer, checkpoint: Path | None, changes: Mapping[str, Any] | None = None) -> None:
    """Load a checkpoint into a new trainer, or let it start at step 0.

    Args:
        trainer: The training loop, which has not started.
        checkpoint: The checkpoint (see `newest_good`); None: start at step 0.
        changes: Settings and parts of the environment that have changed, as pairs of the old and the new value, which
            are recorded in metrics.jsonl.

    Raises:
        CheckpointError: If the weights do not fit the model, or the state cannot be loaded.
    """
    is_temporary = True
    logs: dict[str, Any] = {}
    if checkpoint is not None:
        loaded = load_checkpoint(checkpoint, trainer.step.load_weights)
        _restore(trainer, loaded)
        is_temporary = loaded.is_temporary
        logs = loaded.logs

    trainer.step.share_memory_limit()  # the devices of the processes may differ, so not all may have restored it
    last_saved_step = max(trainer.run.regular_steps(), default=0)
    trainer.saved_step = trainer.ranks.gather(last_saved_step)[0]
    if not trainer.ranks.is_main:
        return

    for path in (trainer.run.metrics, trainer.run.samples):
        cut_after(path, trainer.position.step, not is_temporary, logs.get(path.name))
    changes = changes or {}
    jump = _log_rate_jump(trainer, changes)
    trainer.resumed = {"time": utc_now(), "changes": {**changes, **jump}}


def _restore(trainer: Trainer, checkpoint: LoadedCheckpoint) -> None:
    """Restore the state of all parts; raise CheckpointError if it is invalid."""
    state = checkpoint.trainer_state
    if checkpoint.made_with != trainer.made_with:  # on another device, more memory may be available
        state = {**state, "max_padded_tokens": trainer.step.max_padded_tokens}
    restore_state(trainer.parts, state, checkpoint.folder)
    trainer.plan.apply_limits(trainer.position)
    trainer.step.config = trainer.plan.schedule.config

    dev_data = trainer.made_with.get("dev data")
    if dev_data is not None and dev_data != checkpoint.made_with.get("dev data"):
        trainer.best_score.reset()  # scores on different data are not comparable


def _log_rate_jump(trainer: Trainer, changes: Mapping[str, Any]) -> dict[str, list[float]]:
    """Log and return the change of the learning rate by changed settings; see `TrainingStep.log_rate_jump`."""
    schedule_keys = [key for key in changes if key.removeprefix("training.") in SCHEDULE_KEYS]
    if not schedule_keys:
        return {}
    cause = f"{' and '.join(schedule_keys)} changed"
    step = trainer.position.step
    return trainer.step.log_rate_jump(step, trainer.plan.schedule.step_of(step), cause)
