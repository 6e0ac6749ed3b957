"""What a training is while it runs: its state, its place in the data, what it skips; callbacks stand on it."""
