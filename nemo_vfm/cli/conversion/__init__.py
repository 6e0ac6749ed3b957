"""Converts weights from and to the formats of other frameworks."""
