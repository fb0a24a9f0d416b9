"""From corpora to padded batches: sources, filters, the tokenised store, and the order of an epoch."""
