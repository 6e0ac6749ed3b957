"""Adds low-rank adapters to the linears of a frozen model."""
