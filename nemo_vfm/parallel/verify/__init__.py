"""Compares a training across layouts, precisions and recipes."""
