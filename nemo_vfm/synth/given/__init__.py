"""Reads what a synthesis is given: rows, prompts, documents, and captions of clips."""
