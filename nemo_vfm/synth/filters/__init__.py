"""Drops rows that a pipeline has made: copies, texts of evaluations, other languages, lengths, what a guard refuses."""
