"""Finds near-duplicates: of clips by their embeddings, and of texts by their n-grams; nothing is read or written."""
