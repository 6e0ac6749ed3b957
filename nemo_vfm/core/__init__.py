"""Provides small functions that every room may use. Import them from their own files."""
