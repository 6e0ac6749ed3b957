"""Runs recipes: run folders, locks, ranks and sweeps."""
