"""Converts adapter keys to and from the formats of other libraries."""
