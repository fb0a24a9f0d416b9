"""Translation of documents with markup."""
