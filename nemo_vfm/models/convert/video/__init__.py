"""Converts video models from and to folders of diffusers."""
