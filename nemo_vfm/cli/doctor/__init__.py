"""Examines this machine: what works, what does not, and what to install."""
