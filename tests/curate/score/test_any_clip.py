# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Clips that are as short, small, dark or flat as clips get, and scores that are numbers all the same."""

from nemo_vfm.curate.footage import Footage
from nemo_vfm.curate.score.brightness import Brightness
from nemo_vfm.curate.score.freeze import Freeze
from nemo_vfm.curate.score.motion import Motion
from nemo_vfm.curate.score.sharpness import Sharpness
from tests.support.films import texture


def test_one_frame_alone_can_be_scored():
    one = Footage.of(texture(0)[None], 12.0)
    for stage in (Motion(), Sharpness(), Brightness(), Freeze()):
        assert set(stage.measure(one)) == set(stage.columns())
