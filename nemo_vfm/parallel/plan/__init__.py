"""Plans which rank holds and computes what."""
