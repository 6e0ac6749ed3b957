"""Computes full or causal attention over a sequence whose tokens are split over devices."""
