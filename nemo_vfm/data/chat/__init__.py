"""Writes conversations as tokens by a model's own chat template."""
