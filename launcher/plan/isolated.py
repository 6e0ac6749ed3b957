"""Runs `nemo-vfm` with the module folders that the launcher names, and no others; a script for `python -I`.

`python -I` reads no PYTHONPATH and no `sitecustomize` but the installation's own. The first argument is JSON: `path`
becomes `sys.path`, and each package of `named` is taken from its folder alone. The others are those of `nemo-vfm`.
"""

import json
import runpy
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class NamedPackages:
    """Finds some packages, by name, in one folder each, before any other finder is asked."""

    def __init__(self, folders: Mapping[str, str]) -> None:
        self._folders = folders

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [self._folders[name]]) if name in self._folders else None


if __name__ == "__main__":
    given = json.loads(sys.argv.pop(1))
    sys.path[:] = given["path"]
    sys.meta_path.insert(0, NamedPackages(given["named"]))
    runpy.run_module("nemo_vfm", run_name="__main__", alter_sys=True)
