"""Decides the fate of every clip from the table of scores and the recipe's rules; no file here reads a video."""
