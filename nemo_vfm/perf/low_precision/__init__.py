"""Predicts what products in FP8 save and cost: seconds, bytes, and from which width they pay."""
