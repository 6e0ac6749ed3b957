"""Tests the share of frozen frames of clips that stand still in part."""

import numpy as np
import pytest

from nemo_vfm.curate.record.footage import ClipFrames
from nemo_vfm.curate.score.freeze import Freeze
from tests.support.films import disc_that_moves, pan, texture


def footage(frames, fps=12.0):
    return ClipFrames.of(np.asarray(frames), fps)


def test_a_still_picture_is_frozen():
    assert Freeze().measure(footage(np.stack([texture(1)] * 20))) == {"freeze_ratio": 1.0}


def test_a_small_thing_that_moves_is_not_frozen():
    assert Freeze().measure(footage(disc_that_moves())) == {"freeze_ratio": 0.0}


def test_grain_over_a_still_picture_does_not_thaw_it():
    random = np.random.default_rng(0)
    grainy = texture(1) + random.normal(0, 3, (20, *texture(1).shape))
    assert Freeze().measure(footage(grainy.clip(0, 255).astype(np.uint8))) == {"freeze_ratio": 1.0}


def test_half_frozen_is_half():
    moving, still = pan(2, 40, 3), np.stack([texture(9)] * 40)
    assert Freeze().measure(footage(np.concatenate([moving, still])))["freeze_ratio"] == pytest.approx(0.5, abs=0.13)
