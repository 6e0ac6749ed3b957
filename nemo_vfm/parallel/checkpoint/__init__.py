"""Writes and reads checkpoints that are either whole or absent."""
