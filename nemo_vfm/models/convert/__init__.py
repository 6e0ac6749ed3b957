"""Converts other frameworks' checkpoints to our weights and back; files are read as data and never executed."""
