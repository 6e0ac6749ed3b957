"""Tests that HDR becomes SDR by the named curve, whichever way its frames are read."""

import struct
import zlib

import cv2
import numpy as np
import pytest

from nemo_vfm.core.errors import DataError
from nemo_vfm.curate.examine.frame_stream import Walk
from nemo_vfm.data.batching.bucket import Bucket
from nemo_vfm.data.video import library_reader
from nemo_vfm.data.video.decode import open_video
from nemo_vfm.data.video.fit_to_bucket import decode_image, video_to_bucket
from nemo_vfm.data.video.image_file import is_deep, open_image
from nemo_vfm.data.video.pyav_reader import PyAVReader
from nemo_vfm.data.video.tone_map import tone_mapped
from tests.support.hdr_films import coded, film, flat, sdr

NITS = {"pq": (0, 1, 10, 50, 142, 203, 600, 1000, 4000), "hlg": (0, 1, 10, 50, 142, 203, 400, 600, 990)}
both = pytest.mark.parametrize("transfer", ["pq", "hlg"])


@both
@pytest.mark.parametrize("primaries", [1, 9, 12])
def test_sdr_of_hdr_equals_a_computation_in_float64(transfer, primaries):
    codes = np.random.default_rng(0).integers(0, 65_536, (200, 1000, 3)).astype(np.uint16)
    expected = sdr(codes / 65_535, transfer, primaries)
    assert np.abs(tone_mapped(codes, transfer, primaries) - expected).max() <= 2


@both
def test_greys_stay_grey_rise_and_are_rolled_off_above_diffuse_white(transfer):
    codes = np.repeat(np.arange(65_536, dtype=np.uint16)[None, :, None], 3, 2)
    greys = tone_mapped(codes, transfer)[0].astype(int)
    assert np.ptp(greys, axis=1).max() <= 1 and (np.diff(greys[:, 0]) >= 0).all()
    assert (greys[0, 0], greys[-1, 0]) == (0, 255)
    levels = [greys[round(65_535 * coded(nits, transfer)), 0] for nits in (203, 300, 600)]
    assert levels[0] >= 235 and (np.diff(levels) > 0).all() and levels[-1] < 255
    if transfer == "hlg":
        assert greys[round(0.75 * 65_535), 0] >= 235


@both
def test_a_film_of_hdr_is_read_as_sdr_upright_or_turned_in_order_and_small(transfer, tmp_path):
    picture = flat(NITS[transfer], transfer)
    expected = sdr(picture, transfer)[16, 16::32, 0]
    for turned in (False, True):
        data = film([picture] * 6, transfer, turned=turned)
        (path := tmp_path / "a.mp4").write_bytes(data)
        with open_video(data) as reader, Walk(path, side_px=16) as walk:
            assert type(reader) is PyAVReader and reader.info().transfer == transfer
            whole = [reader.read([3, 3])[1], next(reader.frames(3))]
            small = next(walk.frames())
            footage = walk.footage((0, 1))
        ways = [np.rot90(frame, int(turned)) for frame in (*whole, small)]
        assert footage.decoder_report.transfer == transfer
        assert {frame.shape for frame in ways} == {(32, 288, 3), (16, 144, 3)}
        for frame in ways:
            step = frame.shape[0]
            assert np.abs(frame[step // 2, step // 2 :: step] - expected[:, None]).max() <= 2


def test_training_gets_sdr_in_its_colours():
    picture = flat([203, 1000], "pq")
    picture[:, 32:] = 0.52, 0.45, 0.38  # of skin
    frames_THWC, _ = video_to_bucket(film([picture] * 6, "pq"), Bucket(width=64, height=32, num_frames=5))
    assert np.abs(frames_THWC[:, 16, [16, 48]] - sdr(picture, "pq")[16, [16, 48]]).max() <= 2


def test_hdr_is_read_by_pyav_where_a_library_is_named_that_does_not_tone_map(monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(library_reader, "warn_once", said.append)
    hdr = film([flat([203], "hlg")] * 2, "hlg")
    assert (open_video(hdr, "decord").read([1]) == open_video(hdr, "pyav").read([1])).all()
    assert said == [
        "some videos are read by PyAV, because decord cannot read them: HDR (HLG), which it does not tone-map"
    ]


def test_hdr_whose_colours_cannot_be_read_is_refused():
    with pytest.raises(DataError, match="is HDR in ICtCp or IPT, which cannot be read; convert it"):
        open_video(film([flat([203], "pq")] * 2, "pq", matrix=14)).info()


@both
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_a_png_of_hdr_is_read_and_stored_as_sdr(transfer, dtype):
    picture = flat([1, 203, 600], transfer)
    _, data = cv2.imencode(".png", np.round(picture * np.iinfo(dtype).max).astype(dtype))
    png = data.tobytes()
    body = b"cICP" + bytes([9, {"pq": 16, "hlg": 18}[transfer], 0, 1])
    png = png[:33] + struct.pack(">I", 4) + body + struct.pack(">I", zlib.crc32(body)) + png[33:]
    image = open_image(png)
    extension, stored = image.as_stored()
    assert not is_deep(png)
    for shown in (image.picture_HWC, decode_image(png), decode_image(stored)):
        assert extension == "png" and np.abs(shown - sdr(picture, transfer)).max() <= (2 if dtype == np.uint16 else 5)


def test_ten_bits_of_sdr_are_read_as_the_scaler_makes_them():
    picture = np.random.default_rng(0).random((4, 6, 3)).repeat(16, 0).repeat(16, 1)
    with PyAVReader(film([picture] * 2, "sdr")) as reader:
        assert reader.info().transfer == "sdr"
        _, frame = next(reader.decode_at([0]))
        assert np.array_equal(reader.read([0])[0], frame.to_ndarray(format="rgb24"))
