"""Tests that tickers over real and generated videos are found, and none in pans, painted signs and clean videos."""

import os
from pathlib import Path

import cv2
import numpy as np
import pytest

from nemo_vfm.curate.record.footage import ClipFrames
from nemo_vfm.curate.score.ticker import Ticker
from tests.curate.score.test_text_overlay import WIDTH, panned, scene, write
from tests.support.filmed import filmed

DATA = Path(os.environ.get("NEMO_VFM_TEST_DATA", "absent")) / "videos"
# Whether it is at the bottom, widths of the picture a second to the left, and whether it has a ground of its own.
TICKERS = [(True, 0.12, True), (True, 0.25, True), (False, 0.12, True), (True, 0.12, False), (False, 0.2, False),
           (True, -0.08, True)]  # fmt: skip
NEWS = "BREAKING NEWS: CHEESE PRICES RISE AGAIN  *  RAIN IN THE NORTH  *  TRAINS DELAYED  *  " * 8


def with_ticker(frames, fps, at_bottom, speed, has_ground):
    """White letters with a black rim that run sideways."""
    frames = frames.copy()
    count, height, width = frames.shape[:3]
    high = round(height * 0.09)
    line = np.zeros((high, width * 8, 3), np.uint8)
    seen = np.full((high, width * 8), int(has_ground), np.uint8)
    line[:] = (20, 30, 90)
    for colour, thick in (((0, 0, 0), 4), ((255, 255, 255), 1)):
        cv2.putText(line, NEWS, (0, int(high * 0.72)), cv2.FONT_HERSHEY_SIMPLEX, high / 38, colour, thick, cv2.LINE_AA)
    cv2.putText(seen, NEWS, (0, int(high * 0.72)), cv2.FONT_HERSHEY_SIMPLEX, high / 38, 1, 4)
    top = height - high - round(height * 0.03) if at_bottom else round(height * 0.02)
    for number in range(count):
        first = 2 * width + round(speed * width * number / fps)
        part = frames[number, top : top + high]
        np.copyto(part, line[:, first : first + width], where=seen[:, first : first + width, None] > 0)
    return frames


def measured(frames, fps=12.0):
    return Ticker().measure(ClipFrames.of(np.ascontiguousarray(frames), fps))


@pytest.mark.parametrize("ticker", TICKERS)
def test_a_ticker_over_a_panning_picture_is_found(ticker):
    assert measured(with_ticker(panned(scene(1)), 12.0, *ticker))["ticker.overlay"] == 1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("step_px", [3, 6])
def test_pans_with_and_without_signs_have_no_ticker(seed, step_px):
    picture = scene(seed)
    assert measured(panned(picture, step_px))["ticker.overlay"] == 0
    for x in range(0, 2 * WIDTH, 220):
        for y in (30, 130, 230):
            write(picture, "BAKERY OPEN TODAY", (x, y))
    assert measured(panned(picture, step_px))["ticker.overlay"] == 0


def test_subtitles_stills_and_clips_of_one_frame_have_no_ticker():
    subtitled = np.stack(
        [write(frame.copy(), "I came for the cheese, and stayed", (20, 230)) for frame in panned(scene(2))]
    )
    for frames in (subtitled, subtitled[:1].repeat(24, axis=0), subtitled[:1], np.zeros((24, 40, 60, 3), np.uint8)):
        assert measured(frames) == {"ticker.overlay": 0, "ticker.likeness": 0}


def test_a_likeness_that_is_none_is_refused():
    with pytest.raises(ValueError, match="likeness"):
        Ticker(likeness=1.5)


@pytest.mark.skipif(not DATA.is_dir(), reason="NEMO_VFM_TEST_DATA is not set")
@pytest.mark.parametrize("name", ["crush_027.mp4", "dashcam_6.mp4", "dashcam_7.mp4", "flipping_a_pancake.mkv"])
@pytest.mark.slow
def test_tickers_over_real_videos_are_found_and_clean_ones_have_none(name):
    footage = filmed(DATA / name)
    frames = footage.frames(range(min(60, footage.num_frames)))
    found = [measured(with_ticker(frames, footage.fps, *ticker), footage.fps) for ticker in TICKERS]
    assert measured(frames, footage.fps)["ticker.overlay"] == 0
    assert sum(scores["ticker.overlay"] for scores in found) == len(TICKERS)
