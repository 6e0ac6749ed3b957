"""Trains tokenizers on documents, and tokenizes documents into files of tokens."""
