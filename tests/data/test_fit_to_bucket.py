"""Tests that frames are even in time, scaled without distortion and cut in the middle; picture bombs are refused."""

import struct
import zlib

import cv2
import numpy as np
import pytest

from nemo_vfm.core.errors import DataError
from nemo_vfm.data.batching.bucket import Bucket
from nemo_vfm.data.video import fit_to_bucket
from tests.data.conftest import mp4
from tests.support.stills import png_chunk


@pytest.mark.parametrize("num_frames", [25, 26, 60])
@pytest.mark.parametrize("fps", [24.0, 16.0, 10.0, 8.0, 29.97])
def test_frames_are_evenly_spaced_inside_the_clip(num_frames: int, fps: float) -> None:
    bucket = Bucket(8, 8, 6, 8)
    indices = fit_to_bucket.frame_indices(num_frames, fps, bucket)
    assert len(indices) == 6 and indices[0] >= 0 and indices[-1] < num_frames
    ideal = [indices[0] + step * fps / 8 for step in range(6)]
    assert max(abs(got - want) for got, want in zip(indices, ideal, strict=True)) <= 1


def test_a_clip_just_long_enough_is_taken_and_one_frame_less_is_not() -> None:
    bucket = Bucket(8, 8, 9, 8)
    assert fit_to_bucket.frame_indices(25, 24, bucket) == list(range(0, 25, 3))
    with pytest.raises(DataError, match="need 25"):
        fit_to_bucket.frame_indices(24, 24, bucket)


def test_a_circle_stays_a_circle_and_the_middle_is_kept() -> None:
    frame = np.zeros((300, 500, 3), np.uint8)
    cv2.circle(frame, (250, 150), 75, (255, 255, 255), -1)
    out = fit_to_bucket.resize_and_crop(frame[None], 64, 64)[0]
    rows, columns = np.nonzero(out[..., 0] > 127)
    assert out.shape == (64, 64, 3)
    assert abs(np.ptp(rows) - np.ptp(columns)) <= 1 and abs(np.ptp(rows) - 32) <= 2
    assert abs(rows.mean() - 31.5) < 1 and abs(columns.mean() - 31.5) < 1


@pytest.mark.parametrize(("height", "width"), [(7, 300), (300, 7), (64, 64), (63, 65), (1, 1)])
def test_any_size_gives_the_buckets_size(height: int, width: int) -> None:
    assert fit_to_bucket.resize_and_crop(np.zeros((2, height, width, 3), np.uint8), 64, 48).shape == (2, 48, 64, 3)


def test_a_clip_gives_its_bucket_and_rate() -> None:
    frames, fps = fit_to_bucket.video_to_bucket(mp4(30, 72, 96, 24), Bucket(64, 48, 9, 8))
    assert frames.shape == (9, 48, 64, 3) and frames.dtype == np.uint8 and fps == pytest.approx(8)


@pytest.mark.parametrize("extension", [".png", ".jpg"])
def test_pictures_are_read_as_rgb(extension: str) -> None:
    picture = np.zeros((40, 60, 3), np.uint8)
    picture[..., 0] = 200
    data = cv2.imencode(extension, picture[..., ::-1])[1].tobytes()
    assert fit_to_bucket.image_size(data) == (60, 40)
    assert np.abs(fit_to_bucket.decode_image(data).astype(int) - picture).max() <= 3
    assert fit_to_bucket.image_to_bucket(data, Bucket(32, 32, 1))[0].shape == (1, 32, 32, 3)


def png_of(width: int, height: int) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(b"\x00" * 100)), (b"IEND", b"")]
    chunks = [struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in parts]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("orientation", range(10))
def test_a_picture_has_the_size_that_it_has_once_decoded_however_it_is_turned(orientation: int, order: str) -> None:
    plain = np.zeros((40, 60, 3), np.uint8)
    jpeg, png = (cv2.imencode(suffix, plain)[1].tobytes() for suffix in (".jpg", ".png"))
    exif = exif_of(orientation, order)
    xmp = b"http://ns.adobe.com/xap/1.0/\0<x/>"
    chunk = png_chunk(b"eXIf", exif)
    end = len(png) - 12
    for data in (
        jpeg[:2] + app1(b"Exif\0\0" + exif) + jpeg[2:],
        jpeg[:20] + app1(xmp) + app1(b"Exif\0\0" + exif) + jpeg[20:],
        jpeg[:2] + app1(b"Exif\0\0" + exif[:-12]) + jpeg[2:],  # cut short
        png[:33] + chunk + png[33:],
        png[:end] + chunk + png[end:],
    ):
        height, width = fit_to_bucket.decode_image(data).shape[:2]
        assert fit_to_bucket.image_size(data) == (width, height)


def exif_of(orientation: int, order: str) -> bytes:
    """A TIFF header with another tag before that of the orientation."""
    entries = [struct.pack(f"{order}HHIHH", tag, 3, 1, value, 0) for tag, value in ((0x0100, 7), (0x0112, orientation))]
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}IH", 8, len(entries))
    return head + b"".join(entries) + struct.pack(f"{order}I", 0)


def app1(content: bytes) -> bytes:
    return b"\xff\xe1" + struct.pack(">H", len(content) + 2) + content


@pytest.mark.parametrize("size", [(50_000, 50_000), (1, 2**31 - 1), (0, 5)])
def test_picture_bombs_are_refused_by_their_header(size: tuple[int, int]) -> None:
    with pytest.raises(DataError, match="pixels"):
        fit_to_bucket.decode_image(png_of(*size))


@pytest.mark.parametrize(
    "data", [b"", b"GIF89a", b"\xff\xd8\xff", b"\xff\xd8" + b"\xff" * 50, png_of(8, 8)[:40], png_of(64, 64)[:60]]
)
def test_damaged_pictures_are_data_errors(data: bytes) -> None:
    with pytest.raises(DataError):
        fit_to_bucket.decode_image(data)
