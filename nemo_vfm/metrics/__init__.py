"""Implements measures, one per file: arrays to plain numbers and names, without any model."""
