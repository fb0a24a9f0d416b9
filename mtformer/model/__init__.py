"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017), as pure tensors: no files, no text."""
