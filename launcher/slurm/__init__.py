"""Asks Slurm about jobs, and submits and cancels them."""
