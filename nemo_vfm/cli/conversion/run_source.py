"""Finds the run that a source of weights belongs to."""

from pathlib import Path


def run_of(source: Path) -> Path:
    """The run whose checkpoints these are."""
    within = [folder for folder in (source, *source.resolve().parents) if folder.name == "checkpoints"]
    return within[0].parent if within else source
