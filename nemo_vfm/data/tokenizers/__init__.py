"""Converts texts to token numbers and back; nothing is downloaded."""
