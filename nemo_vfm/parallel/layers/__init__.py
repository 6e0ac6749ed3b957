"""Layers that models are built of, and how their tokens and heads lie on ranks."""
