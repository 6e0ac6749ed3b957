"""Loads global batches ahead of training, in worker processes."""
