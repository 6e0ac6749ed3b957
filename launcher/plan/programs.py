"""Finds programs and modules on the user's search paths, and never in the working directory."""

import os
import shutil


def program(name: str) -> str | None:
    """The whole path of a program; None where there is none on `search_path`."""
    return shutil.which(name, path=search_path())


def search_path() -> str:
    """PATH without relative entries: `.` and empty ones mean the working directory, which may be a stranger's."""
    return whole_paths(os.environ.get("PATH", os.defpath))


def whole_paths(text: str) -> str:
    """The entries of a list such as PATH or PYTHONPATH that are whole paths."""
    return os.pathsep.join(entry for entry in text.split(os.pathsep) if os.path.isabs(entry))  # noqa: PTH117 (text)
