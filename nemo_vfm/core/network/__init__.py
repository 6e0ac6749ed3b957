"""Talks to services over HTTP: which hosts may be reached, with which key, and what must not be sent."""
