"""Loads what `nemo-vfm serve` serves."""
