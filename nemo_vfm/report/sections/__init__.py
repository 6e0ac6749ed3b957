"""Holds one file per section for page.py: `ORDER` places it, `sections` renders a run, `BUDGET_MB` limits its media."""
