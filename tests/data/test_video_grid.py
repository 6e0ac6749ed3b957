"""Tests that grids show every video, in order, whole."""

from pathlib import Path

import numpy as np
from PIL import Image

from nemo_vfm.data.video.decode import open_video
from nemo_vfm.data.video.video_grid import film_strips, tile, write_grid


def videos(num: int) -> np.ndarray:
    """Videos whose every pixel is 10 * (number of the video + 1) + time."""
    value = 10 * (1 + np.arange(num))[:, None] + np.arange(5)
    return np.broadcast_to(value[:, :, None, None, None], (num, 5, 8, 8, 3)).astype(np.uint8).copy()


def test_tiles_keep_every_video_in_reading_order() -> None:
    tiled = tile(videos(5))
    assert tiled.shape == (5, 2 * 12, 3 * 12, 3)
    assert [int(tiled[3, 12 * row + 6, 12 * column + 6, 0]) for row in (0, 1) for column in (0, 1, 2)] == [
        13, 23, 33, 43, 53, 128,
    ]  # fmt: skip


def test_film_strips_hold_the_first_and_the_last_frame() -> None:
    strips = film_strips(videos(2))
    assert [int(strips[6, 2 + 8 * i + 4, 0]) for i in range(4)] == [10, 11, 13, 14]


def test_both_files_are_written_and_can_be_read(tmp_path: Path) -> None:
    write_grid(tmp_path / "deep" / "step-00000100", videos(3), 8.0)
    assert Image.open(tmp_path / "deep" / "step-00000100.png").size[0] > 0
    with open_video(tmp_path / "deep" / "step-00000100.mp4") as reader:
        assert reader.info().num_frames == 5
