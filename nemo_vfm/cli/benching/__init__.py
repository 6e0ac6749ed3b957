"""Measures recipes: builds the one step that is measured, runs it, and shows what was found."""
