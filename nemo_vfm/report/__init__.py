"""Renders a run folder as one self-contained HTML page."""
