# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Imports an optional module, or says in one sentence which package to install."""

from importlib.util import find_spec
from types import ModuleType

from nemo_vfm.core.errors import MissingPackage


def available(module: str) -> bool:
    """Whether `module` is installed; it is not imported."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def require(module: str, *, install: str, purpose: str) -> ModuleType:
    """Import `module`, or say how to get it.

    Args:
        install: what to give pip, such as "nemo_vfm[ray]" or the package's own name.
        purpose: what needs it, as the beginning of a sentence.

    Raises:
        MissingPackage: it is not installed.
    """
    try:
        __import__(module)
    except ImportError as error:
        raise MissingPackage(
            f"{purpose} needs the package {module!r}, which cannot be imported here ({error}). "
            f"Install it with: pip install '{install}'"
        ) from error
    import sys

    return sys.modules[module]
