# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Tests which write errors say that no other file would succeed."""

import errno
from pathlib import Path

import av.error
import pytest

from nemo_vfm.core.storage.files import is_full, last_records


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


def test_the_last_records_of_a_file_come_newest_first_without_rubbish(tmp_path: Path) -> None:
    lines = [b'{"step": 1}', b"not json", b"[3]", b'{"step": 4}', b'{"step": 5', b"\xff\xfe"]
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join(lines))
    assert list(last_records(tmp_path / "metrics.jsonl")) == [{"step": 4}, {"step": 1}]
    assert list(last_records(tmp_path / "metrics.jsonl", 30)) == [{"step": 4}]  # the first is cut off
    assert list(last_records(tmp_path / "absent")) == []
