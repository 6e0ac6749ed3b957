"""Pipelines of synthetic conversations, each a class that a recipe names."""
