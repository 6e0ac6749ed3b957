# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Which errors of writing say that no other file would fare better."""

import errno

import av.error
import pytest

from nemo_vfm.core.files import is_full


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (av.error.FFmpegError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), True),
        (OSError(errno.EACCES, "Permission denied"), False),
        (ValueError("No space left on device"), False),
    ],
)
def test_a_full_disk_is_known_whoever_met_it(error, full):
    assert is_full(error) is full
