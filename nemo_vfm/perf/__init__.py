"""Computes what a model costs and how much of the machine it uses."""
