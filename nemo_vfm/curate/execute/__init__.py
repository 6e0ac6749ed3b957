"""Executes the work of a curation: in this process, in several on this machine, or on a Ray cluster."""
