"""Tests that pictures of odd shapes get a thumbnail."""

import cv2
import numpy as np
import pytest

from nemo_vfm.curate.examine.examine_file import thumbnail
from nemo_vfm.curate.record.footage import ClipFrames


@pytest.mark.parametrize(("height", "width"), [(4, 1024), (1024, 4), (1, 1)])
def test_a_clip_of_any_shape_has_a_thumbnail(height, width):
    """A film of 4096x16 failed whole: its strip was wider than a JPEG may be."""
    data = thumbnail(ClipFrames.of(np.zeros((4, height, width, 3), np.uint8), 12))
    picture = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert picture.shape[0] == 96 and picture.shape[1] <= 4 * 960
