"""Makes conversations in which the assistant calls functions."""
