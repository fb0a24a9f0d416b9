"""Inference: search, translation and decoding backends."""
