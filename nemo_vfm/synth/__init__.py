"""Generates synthetic data: videos from plans, samples from prompts."""
