"""Computes matrix products in FP8: scales, casts, amax histories and linears, on any device."""
