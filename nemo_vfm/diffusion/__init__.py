"""Implements the mathematics of diffusion: noise, objectives, samplers and guidance. No network is defined here."""
