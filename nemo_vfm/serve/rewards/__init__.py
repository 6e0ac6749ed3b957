"""Scores conversations with a reward model, over HTTP or in this process."""
