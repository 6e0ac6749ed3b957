"""Declares the protocols and values that rooms share, one subject per file. Protocols have methods only."""
