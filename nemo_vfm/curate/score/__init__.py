"""Scores clips without weights, by numbers and labels from small frames and motion vectors; each class has a file."""
