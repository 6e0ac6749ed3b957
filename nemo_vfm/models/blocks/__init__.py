"""Provides the building blocks of models, one idea per file."""
