"""From corpora to padded batches: sources, filters, the tokenized store, and the order of an epoch."""
