"""Spreads a training step over devices: engines, attention, checkpoints."""
