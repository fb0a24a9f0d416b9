"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017). Works on tensors only, not on files or text."""
