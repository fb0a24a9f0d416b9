"""SentencePiece: between lines of text and token ids."""
