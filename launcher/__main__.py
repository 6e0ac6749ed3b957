# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Runs `vfm-launch`, also as `python -m launcher`, without a look into the working directory for modules."""

import sys
from pathlib import Path


def main() -> int:
    """Run one verb of the process's own words."""
    own, here = Path(__file__).resolve().parents[1], Path.cwd().resolve()
    # `-m` and an empty entry of PYTHONPATH put the working directory first, where a stranger's yaml.py may lie.
    sys.path[:] = [entry for entry in sys.path if Path(entry).is_absolute() and Path(entry).resolve() != here]
    from launcher.isolated import NamedPackages

    sys.meta_path.insert(0, NamedPackages(dict.fromkeys(("nemo_vfm", "launcher"), str(own))))  # a checkout's, from here
    from launcher.cli import main as run_verb

    return run_verb()


if __name__ == "__main__":
    sys.exit(main())
