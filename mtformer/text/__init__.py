"""SentencePiece tokenizers: training, and conversion between lines of text and token ids."""
