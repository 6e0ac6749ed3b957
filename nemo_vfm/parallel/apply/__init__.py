"""Splits a model over devices as the plan says."""
