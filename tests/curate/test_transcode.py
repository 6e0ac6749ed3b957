# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Which clips are encoded again."""

from nemo_vfm.curate.restore.destripe import Destripe
from nemo_vfm.curate.restore.letterbox import Letterbox
from nemo_vfm.curate.transcode import Media, Transcode


def test_restorers_in_another_order_make_other_clips(tmp_path):
    stripes, bars = Destripe(), Letterbox()
    one = Media.of(tmp_path, Transcode(), {"stripes": stripes, "bars": bars})
    other = Media.of(tmp_path, Transcode(), {"bars": bars, "stripes": stripes})
    assert one.stamp != other.stamp
