"""Trains configurations of nemo-toolkit inside our run folder; only under `--trust nemo`."""
