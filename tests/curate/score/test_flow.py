"""Tests that the lengths of a flow do not depend on where it lies in memory."""

import numpy as np

from nemo_vfm.curate.score.motion import lengths


def test_lengths_do_not_depend_on_where_in_memory_the_flow_lies():
    flow_HWD = np.random.default_rng(0).normal(0, 3, (96, 128, 2)).astype(np.float32)
    found = set()
    for skipped in range(17):
        room = np.empty(flow_HWD.size + skipped, np.float32)[skipped:].reshape(flow_HWD.shape)
        room[:] = flow_HWD
        found.add(lengths(room).tobytes())
    assert len(found) == 1
