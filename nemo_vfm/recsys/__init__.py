"""Makes and describes logs of recommenders."""
