"""Reads and writes video, image and audio files."""
