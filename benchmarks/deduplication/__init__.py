"""Compares a log of sessions as it comes with the same log deduplicated, from the file to the update."""
