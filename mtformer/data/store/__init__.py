"""Preparing: filtered and tokenized corpora on disk."""
