"""Inspect corpora before training: faults, duplicates, outliers, overlap, and pairs that the filters remove."""
