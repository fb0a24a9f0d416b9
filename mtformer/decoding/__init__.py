"""Inference: search, lines of text, decoding backends, and the translator on top of them."""
