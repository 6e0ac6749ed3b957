"""Restores the frames of kept clips while they are encoded; each class has a file."""
