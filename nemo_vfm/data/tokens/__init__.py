"""Stores documents as memory-mapped files of tokens, and reads batches of sequences from them."""
