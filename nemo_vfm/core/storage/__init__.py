"""Reads and writes whole files, on this machine and in object stores."""
