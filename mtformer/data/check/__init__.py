"""Inspection of corpora before training: faults, duplicates, outliers, overlap, and what the filters remove."""
