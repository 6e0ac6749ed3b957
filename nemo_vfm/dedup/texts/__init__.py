"""Finds texts that are equal, nearly equal or shared with an evaluation; functions over strings, nothing is written."""
