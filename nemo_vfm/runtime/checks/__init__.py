"""Checks what a constructor cannot see: how the parts of a recipe fit each other, its paths and its GPUs."""
