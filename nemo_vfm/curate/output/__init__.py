"""Writes the kept clips, the tables and the shards of a curation."""
