"""Answers the prompts of our recipes without a model."""
