"""Tests that a clip gets the bucket nearest in shape, or is dropped with a counted reason."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_vfm.data.batching.bucket import Bucket, BucketChoice, Buckets

BUCKETS = Buckets(
    buckets={
        "square": Bucket(64, 64, 9, 8),
        "wide": Bucket(96, 56, 9, 8),
        "wide_long": Bucket(96, 56, 17, 8),
        "image": Bucket(64, 64, 1),
    }
)


@pytest.mark.parametrize(
    ("clip", "expected"),
    [
        ((64, 64, 9, 8), "square"),
        ((1280, 720, 500, 24), "wide_long"),
        ((1280, 720, 30, 24), "wide"),
        ((480, 640, 25, 24), "square"),
        ((64, 64, 9, 8.02), "square"),
        ((640, 480, 1, 25), "image"),
        ((255, 64, 1, 25), "image"),
    ],
)
def test_the_nearest_aspect_and_then_the_largest_bucket_wins(clip: tuple[int, int, int, float], expected: str) -> None:
    assert BUCKETS.assign(*clip) == BucketChoice(expected)


@pytest.mark.parametrize(
    ("clip", "reason"),
    [
        ((64, 64, 8, 8), "too short"),
        ((64, 64, 24, 24), "too short"),
        ((50, 64, 90, 8), "too small"),
        ((64, 64, 90, 5), "frame rate below"),
        ((32, 32, 1, 1), "too small"),
        ((640, 64, 1, 1), "cropped too much"),
        ((64, 640, 90, 8), "cropped too much"),
    ],
)
def test_what_fits_no_bucket_is_left_out_with_a_reason(clip: tuple[int, int, int, float], reason: str) -> None:
    assigned = BUCKETS.assign(*clip)
    assert assigned.bucket is None and reason in assigned.reason


@given(st.integers(64, 2000), st.integers(64, 2000), st.floats(0, 1))
def test_no_bucket_cuts_away_more_of_a_picture_than_it_may(width: int, height: int, max_crop: float) -> None:
    bucket = Bucket(64, 48, 1, max_crop=max_crop)
    scale = max(64 / width, 48 / height)
    lost = 1 - 64 * 48 / (width * scale * height * scale)
    assert bucket.crop(width, height) == pytest.approx(lost, abs=1e-8)
    assigned = Buckets(buckets={"image": bucket}).assign(width, height, 1, 1)
    assert (assigned.bucket is None) == (bucket.crop(width, height) > max_crop)


def test_images_and_videos_do_not_take_each_others_buckets() -> None:
    assert "images" in Buckets(buckets={"v": Bucket(64, 64, 9)}).assign(64, 64, 1, 1).reason
    assert "images" in Buckets(buckets={"i": Bucket(64, 64, 1)}).assign(64, 64, 9, 8).reason


@pytest.mark.parametrize("bad", [{"width": 0}, {"num_frames": 0}, {"fps": 0.0}, {"batch_size": 0}, {"max_crop": 1.1}])
def test_impossible_buckets_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="bucket"):
        Bucket(**({"width": 8, "height": 8, "num_frames": 1} | bad))  # type: ignore[arg-type]
