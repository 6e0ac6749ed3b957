"""Keeps launches on disk: what was submitted, from which code, and how far it is."""
