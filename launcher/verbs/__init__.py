"""Holds one verb per file: its arguments and what it does; `vfm-launch --help` shows their first lines."""
