"""Reasons to leave a pair out of the training data, and the search for duplicates."""
