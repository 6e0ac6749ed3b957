"""Batches texts that join and leave at any token."""
