"""Keeps what curation knows of files and clips: records, ledger, frames, and the protocols of stages."""
