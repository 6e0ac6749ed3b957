"""Holds what the sections of a page and the page itself share: types, charts, media, and how run folders are read."""
