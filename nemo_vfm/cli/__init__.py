"""Parses the command line, runs a verb and returns its exit status. Each file in `verbs/` is one verb."""
