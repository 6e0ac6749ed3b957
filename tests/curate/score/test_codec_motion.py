"""Tests codec motion on videos of known speed, on vectors made by hand, and on a real video with published numbers."""

import os
from pathlib import Path

import av
import numpy as np
import pytest

from nemo_vfm.curate.record.footage import ClipFrames, MotionVectors
from nemo_vfm.curate.score.codec_motion import CodecMotion, cell_areas, cell_lengths, cosmos_lengths
from tests.support.filmed import blocks, filmed
from tests.support.films import HEIGHT, WIDTH, pan, texture

DATA = Path(os.environ.get("NEMO_VFM_TEST_DATA", "absent")) / "videos"
MACROBLOCK = {"source": -1, "w": 16, "h": 16, "motion_scale": 4}


def encoded(path, frames, codec="libx264", **options):
    """A file with just these frames, 12 a second."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=12, options={"crf": "18", **options})
        stream.width, stream.height, stream.pix_fmt = frames.shape[2], frames.shape[1], "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return path


def measured(path, frames, codec="libx264", **options):
    return CodecMotion().measure(filmed(encoded(path, frames, codec, **options)))


@pytest.mark.parametrize("b_frames", ["0", "2"])
@pytest.mark.parametrize("step_px", [2, 4])
def test_vectors_say_how_far_a_film_moves_per_frame(tmp_path, step_px, b_frames):
    scores = measured(tmp_path / "a.mp4", pan(3, 30, step_px), bf=b_frames)
    assert scores["motion.from"] == "vectors"
    assert scores["motion.global_mean"] == pytest.approx(step_px / (WIDTH + HEIGHT), rel=0.12)


def test_flow_stands_in_where_a_codec_has_no_vectors_and_says_about_the_same(tmp_path):
    scores = measured(tmp_path / "a.mp4", pan(3, 30, 3), "libx265", **{"x265-params": "log-level=none"})
    assert scores["motion.from"] == "flow"
    assert scores["motion.global_mean"] == pytest.approx(3 / (WIDTH + HEIGHT), rel=0.15)


def test_flow_stands_in_where_every_frame_is_coded_by_itself(tmp_path):
    frames = pan(3, 30, 3)
    assert measured(tmp_path / "a.mp4", frames, g="1")["motion.from"] == "flow"
    mixed = CodecMotion().measure(vectored(frames, lambda number: blocks() if number % 4 else whole(12)))
    assert mixed["motion.from"] == "flow"


def test_keyframes_among_others_are_left_out():
    scores = CodecMotion().measure(vectored(pan(3, 30, 3), lambda number: whole(12) if number % 4 else blocks()))
    assert scores["motion.from"] == "vectors"
    assert scores["motion.global_mean"] == pytest.approx(3 / (WIDTH + HEIGHT))


def test_a_still_film_has_none_from_either_source(tmp_path):
    still = np.stack([texture(1)] * 30)
    scores = measured(tmp_path / "a.mp4", still)
    assert (scores["motion.global_mean"], scores["motion.patch_min"]) == (0.0, 0.0)
    repeated = CodecMotion().measure(vectored(still, lambda _: blocks()))
    assert repeated == {"motion.global_mean": 0.0, "motion.patch_min": 0.0, "motion.from": "vectors"}


def test_the_stillest_part_is_still_where_a_corner_does_not_move():
    film = pan(3, 30, 3)
    corner = {**MACROBLOCK, "dst_x": 8, "dst_y": 8}
    moving = np.concatenate(
        [whole(12), blocks(*({**corner, "dst_x": x, "dst_y": y} for x in (8, 24) for y in (8, 24)))]
    )
    scores = CodecMotion().measure(vectored(film, lambda _: moving))
    assert scores["motion.patch_min"] == 0 < scores["motion.global_mean"]


def test_a_clip_of_one_frame_does_not_move():
    one = vectored(texture(0)[None], lambda _: whole(12))
    assert CodecMotion().measure(one)["motion.global_mean"] == 0.0
    assert CodecMotion(compat="cosmos").measure(one)["motion.global_mean"] == 0.0


def whole(quarters):
    """A vector of that many quarter pixels for every macroblock."""
    at = [(x, y) for y in range(8, HEIGHT, 16) for x in range(8, WIDTH, 16)]
    return blocks(*({**MACROBLOCK, "dst_x": x, "dst_y": y, "motion_x": quarters} for x, y in at))


def vectored(frames, of):
    """A clip whose frames have the vectors that `of` their number says."""
    height, width = frames.shape[1:3]
    return ClipFrames(
        len(frames),
        12.0,
        lambda numbers: frames[list(numbers)],
        lambda numbers: [MotionVectors(width, height, of(number)) for number in numbers],
    )


def test_cells_hold_the_length_of_their_block_and_those_of_no_block_are_unknown():
    vector = {"source": -1, "motion_scale": 4, "motion_x": 12, "motion_y": 16}
    future = {**vector, "source": 1, "w": 8, "h": 8, "dst_x": 36, "dst_y": 4}
    found = cell_lengths(MotionVectors(40, 20, blocks({**vector, "w": 16, "h": 8, "dst_x": 16, "dst_y": 12}, future)))
    assert found.shape == cell_areas(40, 20).shape == (3, 5)
    assert np.argwhere(~np.isnan(found)).tolist() == [[1, 1], [1, 2]] and found[1, 1] == 5.0


def test_blocks_outside_the_picture_are_no_part_of_it():
    outside = [(-4, 4), (4, -4), (44, 4), (4, 28), (-60, 90)]
    rows = ({"source": -1, "w": 8, "h": 8, "motion_scale": 4, "dst_x": x, "dst_y": y} for x, y in outside)
    assert np.isnan(cell_lengths(MotionVectors(40, 24, blocks(*rows)))).all()


def test_cells_of_a_cut_edge_count_for_the_pixels_they_have():
    assert cell_areas(20, 12).tolist() == [[64, 64, 32], [32, 32, 16]]


def test_blocks_beyond_the_edge_are_pressed_into_it_as_in_cosmos_curate():
    beyond = {"source": 1, "w": 8, "h": 8, "dst_x": 24, "dst_y": 4, "motion_x": 8, "motion_scale": 4}
    found = cosmos_lengths(MotionVectors(18, 8, blocks(beyond)))
    assert (found[:, 17] == 2).all() and not found[:, :17].any()


def test_a_picture_that_cosmos_curate_refuses_is_refused_in_words():
    with pytest.raises(ValueError, match="no value for sides below 256 pixels"):
        CodecMotion(compat="cosmos").measure(vectored(pan(3, 30), lambda _: whole(12)))


@pytest.mark.skipif(not DATA.is_dir(), reason="NEMO_VFM_TEST_DATA is not set")
def test_compatibility_mode_gives_the_published_numbers():
    scores = CodecMotion(compat="cosmos").measure(filmed(DATA / "sintel_trailer_10s.mp4"))
    assert scores["motion.global_mean"] == pytest.approx(0.002402, abs=1e-5)
    assert scores["motion.patch_min"] == pytest.approx(0.001553, abs=1e-5)


def test_a_frame_without_vectors_is_still_only_where_it_repeats_the_one_before():
    film = pan(3, 30, 3)
    film[9::2] = film[
        8:-1:2
    ]  # from the ninth on every second frame repeats the one before, and is like none further back
    scores = CodecMotion(num_frames=30).measure(vectored(film, lambda number: whole(12) if number < 9 else blocks()))
    moving, still = 8, 11
    assert scores["motion.global_mean"] == pytest.approx(3 / (WIDTH + HEIGHT) * moving / (moving + still))
