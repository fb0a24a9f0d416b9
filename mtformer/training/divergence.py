"""End a run that has diverged: its gradients or its weights are no longer finite."""

from collections.abc import Mapping

from torch import Tensor

from mtformer.errors import MtformerError
from mtformer.run_dir import RunDir
from mtformer.training.checkpoint import last_good
from mtformer.training.step import MAX_SKIPPED_IN_A_ROW
from mtformer.weights import not_finite


def divergence(run: RunDir, at_step: int, problem: str) -> MtformerError:
    """Return the error for training that has diverged.

    Args:
        run: run directory, whose last good checkpoint is named.
        at_step: number of steps of the run so far.
        problem: what is not finite.
    """
    remedy = "Lower training.learning_rate, raise training.warmup_steps, or set training.precision to fp32"
    return MtformerError(f"step {at_step}: {problem}; {last_good(run)}. {remedy}")


def check_gradients(run: RunDir, at_step: int, skipped_in_a_row: Tensor) -> None:
    """Raise MtformerError after too many consecutive skipped steps. On a GPU, this waits for the device.

    Args:
        run: run directory.
        at_step: number of steps of the run so far.
        skipped_in_a_row: `TrainingStep.skipped_in_a_row`.
    """
    num_skipped = int(skipped_in_a_row)
    if num_skipped >= MAX_SKIPPED_IN_A_ROW:
        raise divergence(run, at_step, f"the gradient was not finite {num_skipped} times in a row")


def check_any_step_taken(run: RunDir, num_steps: int, skipped_in_a_row: Tensor) -> None:
    """Raise MtformerError if all steps of a run were skipped, even if these are too few for `check_gradients`.

    Args:
        run: run directory.
        num_steps: number of steps of the run.
        skipped_in_a_row: `TrainingStep.skipped_in_a_row`.
    """
    if num_steps <= int(skipped_in_a_row):
        raise divergence(run, num_steps, "the gradient was not finite in any step")


def check_weights(run: RunDir, at_step: int, *weights: Mapping[str, Tensor]) -> None:
    """Raise MtformerError if weights, by name, are not finite."""
    for weights_by_name in weights:
        name = not_finite(weights_by_name)
        if name:
            raise divergence(run, at_step, f"{name} has NaN or infinite values")
