"""Loads a benchmark's module, or runs it as a user does and reads its figures."""

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.support import preloaded
from tests.support.repository import ROOT


def module_of(name: str) -> ModuleType:
    """`benchmarks/<name>.py`, imported."""
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def figures_of(name: str, *words: str, folder: Path, timeout_s: float = 300) -> Any:
    """What `python benchmarks/<name>.py <words> --json FILE` writes; it must end well."""
    script, file = ROOT / "benchmarks" / f"{name}.py", folder / "figures.json"
    code = f"import runpy, sys; sys.path[0] = {str(script.parent)!r}; runpy.run_path({str(script)!r}, None, '__main__')"
    done = preloaded.run(
        [sys.executable, "-c", code, *words, "--json", str(file)], timeout=timeout_s, cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]
    return json.loads(file.read_text())
