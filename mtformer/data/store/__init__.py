"""Prepare corpora: filter, tokenize and store them on disk."""
