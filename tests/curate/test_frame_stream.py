"""Tests that a stream stays within its bytes, and that forgotten footage is decoded to the same frames."""

import av
import numpy as np
import pytest

from nemo_vfm.core.optional import available
from nemo_vfm.curate.examine.frame_stream import Walk
from nemo_vfm.data.video.codecs import open_encoder
from nemo_vfm.data.video.decode import open_video
from nemo_vfm.data.video.encode import encode_mp4
from tests.support.films import pan, write_film


@pytest.mark.parametrize("vectors", [False, True])
def test_what_was_forgotten_is_decoded_again_and_vectors_count_as_memory(tmp_path, vectors):
    film = write_film(tmp_path / "a.mp4", pan(1, 30))
    with Walk(film, side_px=32, vectors=vectors) as whole:
        list(whole.frames())
        footage = whole.footage((0, 30))
        expected, moves = footage.frames([0, 7, 29]), footage.motion_vectors([7])
        most = whole.held_bytes // 2
    with Walk(film, side_px=32, vectors=vectors, max_held_bytes=most) as walk:
        for _ in walk.frames():
            assert walk.held_bytes <= most
        footage = walk.footage((0, 30))
        assert np.array_equal(footage.frames([0, 7, 29]), expected)
        if vectors:
            assert moves[0].blocks_B.nbytes > expected[0].nbytes / 2, "the vectors are too few to matter"
            assert np.array_equal(footage.motion_vectors([7])[0].blocks_B, moves[0].blocks_B)


def noise(path, width, pix_fmt, color_trc):
    """Two frames of any width without loss, which only ffv1 takes in every format."""
    random = np.random.default_rng(width)
    with av.open(str(path), "w", format="matroska") as out:
        stream = out.add_stream("ffv1", rate=12)
        stream.width, stream.height, stream.pix_fmt = width, 18, pix_fmt
        stream.codec_context.color_trc = color_trc
        open_encoder(stream)
        for _ in range(2):
            picture = random.integers(0, 256, (18, width, 3), dtype=np.uint8)
            out.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format=pix_fmt)))
        out.mux(stream.encode(None))
    return path


def walked(path):
    with Walk(path, side_px=256) as walk:
        return np.stack(list(walk.frames()))


def read_by(decoder):
    def read(path):
        with open_video(path, decoder) as reader:
            return reader.read([0, 1])

    return read


def dirty_heap(value, num_bytes):
    """Fill and free blocks of about `num_bytes`, which the next ones to ask for as many are given."""
    blocks = [np.full(num_bytes + 512 * more, value, np.uint8) for more in range(12)]
    del blocks


def differs(path, read, width):
    """Whether memory that was full of something else beforehand shows in what is read."""
    seen = []
    for value in (3, 200):
        dirty_heap(value, width * 18 * 3)
        dirty_heap(255 - value, width * 18)
        seen.append(read(path))
    return not np.array_equal(*seen)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pix_fmt", "color_trc"), [("yuv420p", 1), ("yuv422p", 1), ("yuv420p", 16), ("yuv420p10le", 16)]
)
def test_every_pixel_of_a_frame_of_any_width_is_written(tmp_path, pix_fmt, color_trc):
    widths = range(16, 273, 3)  # every remainder of 16
    films = {width: noise(tmp_path / f"{width}.mkv", width, pix_fmt, color_trc) for width in widths}
    for read in (walked, read_by("pyav")):
        assert [width for width, film in films.items() if differs(film, read, width)] == []


@pytest.mark.skipif(not available("decord"), reason="decord is not installed")
def test_every_pixel_is_written_by_decord_too(tmp_path):
    random, bad = np.random.default_rng(0), []
    for width in range(16, 273, 10):  # every even remainder of 16
        encode_mp4(film := tmp_path / f"{width}.mp4", random.integers(0, 256, (2, 18, width, 3), np.uint8), 12)
        if differs(film, read_by("decord"), width):
            bad.append(width)
    assert bad == []
