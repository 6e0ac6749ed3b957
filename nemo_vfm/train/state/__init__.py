"""Keeps what callbacks see of a running training: its state, its place in the data, what is skipped."""
