"""Deterministic batches of prepared corpora, given the seed and the position in the data."""
