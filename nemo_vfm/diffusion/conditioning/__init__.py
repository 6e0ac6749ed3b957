"""Conditions a network on given frames: a first image, or the start of a video."""
