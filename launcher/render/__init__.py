"""Renders batch scripts as text."""
