"""Removes stripes and finds bars in frames, by arithmetic on arrays and tensors only."""
