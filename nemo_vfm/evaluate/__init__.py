"""Evaluates what a run generated."""
