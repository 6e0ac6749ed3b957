"""Prepares a launch and checks it before it is submitted."""
