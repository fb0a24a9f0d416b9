"""From batches to checkpoints: the loss, the step, the loop, and what is saved."""
