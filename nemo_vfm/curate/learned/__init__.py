"""Scores clips with models, and defines the tasks that train the same models."""
