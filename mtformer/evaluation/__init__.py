"""Evaluation: metrics, significance tests, score cards and comparisons."""
