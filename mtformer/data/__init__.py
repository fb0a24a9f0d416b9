"""Data pipeline from corpora to padded batches: sources, filters, tokenized store, and batching."""
