"""Compares the training of recommenders with its parts."""
