"""Curates a folder of videos into clip shards, scores of every clip, and a ledger that adds up."""
