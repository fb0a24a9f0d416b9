"""Reading: text files, TSV, JSONL and Hugging Face data sets as columns of source and target lines."""
