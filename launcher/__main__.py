"""Runs `vfm-launch`, also as `python -m launcher`, without searching the working directory for modules."""

import os
import sys


def main() -> int:
    """Run one verb of the process's own words."""
    # `-m` and an empty entry of PYTHONPATH put the working directory first, where a stranger's yaml.py may lie. Until
    # it is gone, nothing is imported but what Python itself has loaded already.
    here, own = os.path.realpath("."), os.path.dirname(os.path.dirname(os.path.realpath(__file__)))  # noqa: PTH120
    sys.path[:] = [entry for entry in sys.path if os.path.isabs(entry) and os.path.realpath(entry) != here]  # noqa: PTH117
    from launcher.plan.isolated import NamedPackages

    sys.meta_path.insert(0, NamedPackages(dict.fromkeys(("nemo_vfm", "launcher"), own)))  # a checkout's, from here
    from launcher.cli import main as run_verb

    return run_verb()


if __name__ == "__main__":
    sys.exit(main())
