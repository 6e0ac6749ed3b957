"""Trains autoencoders: the task, the terms of the loss, and what is measured on held-out clips."""
