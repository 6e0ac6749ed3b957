"""Provides small functions that every room may use. Import them from their own files."""

__version__ = "0.1.0"
