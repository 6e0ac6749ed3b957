"""Holds one file per section, found by page.py: `ORDER` and `BUDGET_MB` place it, `sections` renders a run."""
