# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Computes how long before its time limit a job must be asked to stop, from its run folder."""

from pathlib import Path

from nemo_vfm.core.storage.files import read_json

USUAL_S = 300  # where nothing has been saved yet
_LEAST_S = 120
_TIMES, _STEPS = 3, 2  # a busy disk; the step that is under way, and the one after it


def lead_s(run_dir: Path) -> int:
    """Three times what the slowest checkpoint of the run took, and two steps; whole minutes, since Slurm asks within
    one.
    """
    try:
        status = read_json(run_dir / "status.json")
        saved, step = (float(status.get(name) or 0) for name in ("checkpoint_s", "step_s"))
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return USUAL_S
    if not 0 < saved < 86_400 or not 0 <= step < 86_400:
        return USUAL_S
    return max(_LEAST_S, 60 * -(-int(_TIMES * saved + _STEPS * step) // 60))
