"""What may change between the two halves of a run, and what may not."""

import logging

from mtformer.config.loading import config_diff
from mtformer.config.schema import Config
from mtformer.errors import CheckpointError
from mtformer.rundir import RunDir

FIXED = ("model.", "tokenizer.", "data.src_lang", "data.tgt_lang", "training.optimizer")
"""Keys that the saved weights and optimizer state depend on."""
EXACT = ("training.seed", "training.batch_tokens", "training.accumulation_steps", "training.precision", "data.")
"""Keys that change which batches come, or the arithmetic: the run goes on, but not as it would have."""
log = logging.getLogger("mtformer")


def compare(run: RunDir, old: Config, new: Config) -> None:
    """Tells every difference as old -> new; raises CheckpointError on one that the checkpoint does not allow."""
    for key, before, after in config_diff(old, new):
        if key.startswith(FIXED):
            raise CheckpointError(
                f"{run.path}: cannot resume with {key} {before!r} -> {after!r}: the saved weights depend on it; "
                "set it back, or start anew with --overwrite"
            )
        note = " (from here on not the same run as one that never stopped)" if key.startswith(EXACT) else ""
        log.warning("resuming with %s %r -> %r%s", key, before, after, note)
