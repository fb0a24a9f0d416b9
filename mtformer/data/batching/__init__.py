"""Batches of prepared corpora as a deterministic function of seed and position."""
