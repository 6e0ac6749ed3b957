"""Tests that scores of the shortest, smallest, darkest and flattest clips are still numbers."""

import math

import numpy as np
import pytest

from nemo_vfm.curate.record.footage import ClipFrames, MotionVectors
from nemo_vfm.curate.record.stage import HasLabels, Score
from nemo_vfm.curate.score.brightness import Brightness
from nemo_vfm.curate.score.camera_motion import CameraMotion
from nemo_vfm.curate.score.codec_motion import CodecMotion
from nemo_vfm.curate.score.freeze import Freeze
from nemo_vfm.curate.score.letterbox_share import Letterbox
from nemo_vfm.curate.score.motion import Motion
from nemo_vfm.curate.score.sharpness import Sharpness
from nemo_vfm.curate.score.technical_quality import TechnicalQuality
from nemo_vfm.curate.score.text_overlay import TextOverlay
from nemo_vfm.curate.score.ticker import Ticker
from tests.support.filmed import blocks
from tests.support.films import black, pan, texture

STAGES = (Motion(), CodecMotion(), CameraMotion(), Sharpness(), Brightness(), Freeze(), TechnicalQuality(),
          Letterbox(), TextOverlay(), Ticker())  # fmt: skip
NOISE = np.random.default_rng(0).integers(0, 255, (12, 64, 96, 3), np.uint8)
CLIPS = {
    "one frame": texture(0)[None],
    "two frames": pan(1, 2),
    "three frames": pan(1, 3),
    "five frames": pan(1, 5),
    "tiny": NOISE[:, :16, :16],
    "one row of many": NOISE[:, :16],
    "upright": NOISE[:, :, :17],
    "black": black(),
    "white": black() + np.uint8(255),
    "one colour": black() + np.array([200, 10, 60], np.uint8),
    "noise": NOISE,
    "black and white in turn": np.repeat(np.array([0, 255] * 6, np.uint8), 64 * 96 * 3).reshape(NOISE.shape),
}


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: type(stage).__name__)
@pytest.mark.parametrize("name", CLIPS)
def test_every_column_is_a_number_or_one_of_its_words(stage, name):
    clip = ClipFrames.of(np.ascontiguousarray(CLIPS[name]), 12.0)
    check(stage, stage.measure(clip))


@pytest.mark.parametrize(
    ("stage", "others"),
    [
        (Motion, {"side_px": 64, "num_pairs": 3}),
        (CameraMotion, {"still": 60.0, "num_pairs": 3, "max_points": 10}),
        (Freeze, {"tolerance": 0.1}),
        (Brightness, {"black": 220.0}),
        (TechnicalQuality, {"num_frames": 3}),
    ],
)
def test_each_setting_changes_a_score(stage, others):
    clean = np.concatenate([pan(1, 20, 1), pan(2, 20, 3), texture(3)[None].repeat(10, 0)])
    noisy = np.clip(clean + np.random.default_rng(0).normal(0, 1.5, clean.shape), 0, 255).astype(np.uint8)
    usual = stage().measure(ClipFrames.of(noisy, 12.0))
    assert not [
        one for one, value in others.items() if stage(**{one: value}).measure(ClipFrames.of(noisy, 12.0)) == usual
    ]


def test_what_other_stages_ask_for_changes_no_score():
    """Frames and flow are kept for all stages of a clip."""
    stages = [
        *STAGES,
        Motion(side_px=64),
        Motion(num_pairs=3),
        CameraMotion(num_pairs=3),
        TechnicalQuality(num_frames=3),
    ]
    film, shared = pan(1, 30, 3), ClipFrames.of(pan(1, 30, 3), 12.0)
    for stage in (*stages, *stages[::-1]):
        assert stage.measure(shared) == stage.measure(ClipFrames.of(film, 12.0)), vars(stage)


def test_vectors_of_no_block_and_of_unknown_sizes_give_numbers():
    odd = blocks({"source": -1, "w": 4, "h": 4, "motion_x": 9}, {"source": 1, "w": 8, "h": 8}, {"source": -1})
    for found in (blocks(), odd):
        clip = ClipFrames(12, 12.0, lambda n: NOISE[list(n)], lambda n, f=found: [MotionVectors(96, 64, f) for _ in n])
        check(CodecMotion(), CodecMotion().measure(clip))


def check(stage, scores):
    """Its columns, all of them, as it said."""
    words = stage.labels() if isinstance(stage, HasLabels) else {}
    assert isinstance(stage, Score) and list(scores) == list(stage.columns())
    for column, value in scores.items():
        assert value in words[column] if column in words else math.isfinite(value)


@pytest.mark.parametrize("stage", [Motion(), CodecMotion(), CameraMotion(), TechnicalQuality(), TextOverlay()])
def test_a_picture_that_is_too_small_is_refused_in_words(stage):
    with pytest.raises(ValueError, match="the picture is 8x8, too small"):
        stage.measure(ClipFrames.of(np.zeros((2, 8, 8, 3), np.uint8), 12.0))
