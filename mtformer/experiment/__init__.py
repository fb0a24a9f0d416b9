"""Workflows: training, resuming, sweeps, verification, and listing runs."""
