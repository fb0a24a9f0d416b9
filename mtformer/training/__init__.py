"""Training: loss, optimizer step, training loop and checkpoints."""
