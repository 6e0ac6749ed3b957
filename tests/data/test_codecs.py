"""Tests that encoders are tried before use, and that their output reads back."""

import io
from unittest.mock import Mock

import numpy as np
import pytest

from nemo_vfm.core.errors import UserError
from nemo_vfm.data.video import codecs
from nemo_vfm.data.video.decode import open_video
from nemo_vfm.data.video.encode import encode_mp4
from tests.support.films import pan

WORKING = [name for name in codecs.ENCODERS if codecs.why_not(name) is None]


def test_x264_works_wherever_tests_do():
    assert "x264" in WORKING


@pytest.mark.parametrize("name", [name for name in WORKING if name != "nvenc"])
def test_what_an_encoder_writes_can_be_read_frame_by_frame(name):
    frames, file = pan(1, 20), io.BytesIO()
    assert encode_mp4(file, frames, 24, crf=20, preset="veryfast", encoder=name) == 20
    with open_video(file.getvalue(), "pyav") as reader:
        assert reader.info().num_frames == 20
        seen = reader.read(range(20))
    error = np.mean((seen.astype(float) - frames) ** 2)
    assert 10 * np.log10(255**2 / error) > 30


@pytest.mark.parametrize("name", [name for name in WORKING if name != "nvenc"])
def test_equal_frames_give_equal_bytes(name):
    one, two = io.BytesIO(), io.BytesIO()
    for file in (one, two):
        encode_mp4(file, pan(1, 12), 24, crf=30, preset="ultrafast", encoder=name)
    assert one.getvalue() == two.getvalue()


def test_an_encoder_that_does_not_work_is_refused_with_those_that_do(monkeypatch):
    monkeypatch.setattr(codecs, "why_not", lambda name: "no such device" if name == "nvenc" else None)
    with pytest.raises(UserError, match=r"nvenc does not work here: no such device.*x264, svtav1, vp9"):
        codecs.encoder_of("nvenc")


@pytest.mark.parametrize(("error", "said"), [(OSError("no device"), "no device"), (StopIteration(), "StopIteration")])
def test_nvdec_says_why_it_cannot_be_used_or_can(monkeypatch, error, said):
    assert codecs.nvdec_why_not() is None or len(codecs.nvdec_why_not()) > 5
    monkeypatch.setattr("av.codec.hwaccel.hwdevices_available", lambda: ["cuda"])
    monkeypatch.setattr("av.codec.hwaccel.HWAccel", Mock(side_effect=error))
    assert codecs.nvdec_why_not.__wrapped__() == said
