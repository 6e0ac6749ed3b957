"""Decides which samples form a batch, and collates them into one tensor."""
