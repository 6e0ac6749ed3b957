"""Reads what the user asks for: the recipe, the cluster and the size."""
