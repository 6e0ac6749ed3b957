"""Implements the mathematics of language models, without the models."""
