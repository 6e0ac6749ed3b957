"""Submits from a machine outside the cluster: sends the working tree and the arguments to a login node by ssh."""
