# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Tests how much time a run gets to end, from what it says of itself."""

import json
from pathlib import Path

import pytest

from launcher.plan.signal_lead_time import lead_s
from nemo_vfm.core import progress


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, 300),
        ({"step_s": 4.0}, 300),
        ({"checkpoint_s": 2.0, "step_s": 0.5}, 120),
        ({"checkpoint_s": 200.0, "step_s": 31.0}, 720),  # 662 s
        ({"checkpoint_s": 60.0, "step_s": None}, 180),
        ({"checkpoint_s": -1.0}, 300),
        ({"checkpoint_s": "long"}, 300),
        ([1, 2], 300),
    ],
)
def test_the_lead_follows_from_the_slowest_checkpoint(tmp_path: Path, said: object, expected: int):
    (tmp_path / "status.json").write_text(json.dumps(said))
    assert lead_s(tmp_path) == expected


def test_a_run_that_has_not_begun_has_the_usual_lead(tmp_path: Path):
    assert lead_s(tmp_path) == 300
    (tmp_path / "status.json").write_text("{half")
    assert lead_s(tmp_path) == 300


def test_the_slowest_checkpoint_is_what_a_run_tells():
    progress.forget()
    for seconds in (2.0, 5.25, 3.0):
        progress.checkpoint(seconds)
    assert progress.current() == {"checkpoint_s": 5.25}
    progress.forget()
