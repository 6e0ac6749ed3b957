"""Browses shards: what a folder holds, and one sample of it. Import each name from its own file."""
