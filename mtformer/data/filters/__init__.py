"""Filters for training data, and detection of duplicates."""
