"""Holds parts of language models that only some families have."""
