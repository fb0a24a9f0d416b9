"""Exports of a run for other programs, and import of their models."""
