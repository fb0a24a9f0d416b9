"""Search for translations: beam search, greedy search, sampling, and the model that they run."""
