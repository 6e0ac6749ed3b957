"""Runs optimizer steps: schedule, reduction, clipping and update."""
