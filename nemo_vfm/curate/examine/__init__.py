"""Examines each file in one pass: shots, scores and thumbnails."""
