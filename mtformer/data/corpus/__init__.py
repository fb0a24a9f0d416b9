"""Read text files, TSV, JSONL and Hugging Face datasets as columns of source and target lines."""
