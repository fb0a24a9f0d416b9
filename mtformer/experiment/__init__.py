"""The workflows: train, resume, sweep, verify, list runs."""
