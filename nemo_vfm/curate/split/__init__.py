"""Splits the frames of a video into the spans of its shots; each method has a file."""
