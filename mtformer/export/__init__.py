"""Exports of a run for other programs, and imports of their models."""
