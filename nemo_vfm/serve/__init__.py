"""Answers requests to a language model, many at once, behind an OpenAI-compatible endpoint or without one."""
