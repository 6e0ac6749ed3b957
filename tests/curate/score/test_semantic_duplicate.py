"""Tests which clips of one kind are kept, among generated and real videos."""

import os
from pathlib import Path

import cv2
import numpy as np
import pytest

from nemo_vfm.curate.record.footage import ClipFrames
from nemo_vfm.curate.record.stage import Comparison
from nemo_vfm.curate.score.local_duplicate import LocalDuplicate
from nemo_vfm.curate.score.near_duplicate import NearDuplicate
from nemo_vfm.curate.score.semantic_duplicate import SemanticDuplicate
from nemo_vfm.data.video.decode import open_video
from tests.curate.score.test_local_duplicate import backdrop
from tests.curate.score.test_near_duplicate import record
from tests.support.films import FPS, pan

STAGE = SemanticDuplicate()
DATA = Path(os.environ.get("NEMO_VFM_TEST_DATA", "absent"), "videos")


class Corner:
    """The mean colour of one corner."""

    def frame_indices(self, num_frames: int) -> list[int]:
        return [num_frames - 1]

    def embed(self, frames_THWC: np.ndarray) -> np.ndarray:
        colour = frames_THWC[0, :4, :4].mean(axis=(0, 1)).astype(np.float32)
        return colour / max(1.0, float(np.linalg.norm(colour)))


def remember(frames: np.ndarray, fps: float = FPS) -> str:
    return STAGE.remember(ClipFrames.of(frames, fps))


def test_it_is_a_comparison_and_any_embedder_will_do():
    assert isinstance(STAGE, Comparison)
    other = SemanticDuplicate(embedder=Corner())
    texts = [other.remember(ClipFrames.of(pan(seed), FPS)) for seed in (0, 0, 1)]
    assert other.likeness(texts)[:2] == pytest.approx([1, 1], abs=1e-3)


def test_the_largest_then_the_best_then_the_longest_stays():
    same = [remember(pan(1))] * 2
    judged = lambda a, b: STAGE.duplicates([a, b], same, 0.4)  # noqa: E731
    assert judged(record(0, size=64, sharpness=1.0), record(1, size=32, sharpness=9.0)) == {1: 0}
    assert judged(record(0, seconds=9, sharpness=1.0), record(1, seconds=1, sharpness=9.0)) == {0: 1}
    assert judged(record(0, seconds=9), record(1, seconds=1)) == {1: 0}


@pytest.mark.parametrize("kind", [NearDuplicate, LocalDuplicate, SemanticDuplicate])
def test_the_recipe_says_by_which_score_the_better_of_two_is_told(kind):
    clips = [record(0, sharpness=1.0, light=9.0), record(1, sharpness=9.0, light=1.0)]
    for place, clip in enumerate(clips):
        clip.source = f"{place}.mp4"
    same = [kind().remember(ClipFrames.of(np.stack([backdrop(3)] * 12), FPS))] * 2
    assert kind().duplicates(clips, same, 0.4) == {0: 1}
    assert kind(quality="light").duplicates(clips, same, 0.4) == {1: 0}


def test_of_equals_the_order_of_the_clips_does_not_choose():
    same, clips = [remember(pan(1))] * 3, [record(index) for index in range(3)]
    kept = {clips[place].clip.id for place in range(3) if place not in STAGE.duplicates(clips, same, 0.4)}
    clips.reverse()
    assert kept == {clips[place].clip.id for place in range(3) if place not in STAGE.duplicates(clips, same, 0.4)}


def test_a_quality_that_is_a_word_counts_as_none():
    same = [remember(pan(1))] * 2
    assert len(STAGE.duplicates([record(0, sharpness="high"), record(1, sharpness=0.1)], same, 0.4)) == 1


@pytest.mark.parametrize("kind", [NearDuplicate, LocalDuplicate, SemanticDuplicate])
def test_no_clips_give_nothing(kind):
    assert kind().likeness([]) == [] and kind().duplicates([], [], 0.9) == {}


@pytest.mark.slow  # embeds every shared video
@pytest.mark.skipif(not DATA.is_dir(), reason="NEMO_VFM_TEST_DATA is not set")
def test_the_two_clips_of_one_drive_are_found_and_no_other_pair():
    texts, names = [], ["dashcam_6.mp4", "dashcam_7.mp4", "crush_027.mp4", "flipping_a_pancake.mkv", "video_0.mov"]
    for name in [*names, "video_90.mov", "video_180.mov", "video_270.mov", "sintel_trailer_10s.mp4"]:
        with open_video(DATA / name, "pyav") as reader:
            frames = [cv2.resize(frame, (228, 128), interpolation=cv2.INTER_AREA) for frame in reader.frames()]
            texts.append(remember(np.stack(frames), reader.info().fps))
    texts += [remember(pan(seed)) for seed in range(20)]
    likeness = STAGE.likeness(texts)
    assert min(likeness[:2]) > 0.8
    assert max(likeness[2:]) < 0.75
    assert STAGE.duplicates([record(index) for index in range(len(texts))], texts, 0.8).keys() <= {0, 1}
