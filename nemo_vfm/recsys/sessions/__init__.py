"""Makes logs of sessions in which everything is a function of the seed and the place."""
