"""Reads media files and shards into batches. Import each name from its own file."""
