"""Starts, connects and watches the processes of a run."""
