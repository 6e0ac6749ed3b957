# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""What a walk remembers stays within its bytes, and footage of what it forgot is the same."""

import numpy as np
import pytest

from nemo_vfm.curate.walk import Walk
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
