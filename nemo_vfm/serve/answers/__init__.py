"""Turns the tokens of an answer into text as they come."""
