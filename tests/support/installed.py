"""Skips files of tests whose optional packages are absent, and imports none of them."""

import pytest

from nemo_vfm.core.optional import available


def skip_without(*packages: str) -> None:
    """Skip the file that calls it. `pytest.importorskip` imports, and all processes that share the tests read all
    files: PEFT and what it needs took 4 CPU seconds of each, for tests that one of them runs.
    """
    if absent := [name for name in packages if not available(name)]:
        pytest.skip(f"needs {', '.join(absent)} (the extra dev has all)", allow_module_level=True)
