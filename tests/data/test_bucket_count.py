"""Tests that every clip is counted once, and that the missing property named would make it fit."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_vfm.data.batching.bucket import Bucket, Buckets
from nemo_vfm.data.batching.bucket_count import Shape, buckets_line, count_buckets, nearest_miss

BUCKETS = Buckets(buckets={"wide": Bucket(96, 56, 9, 8), "tall": Bucket(56, 96, 17, 8), "image": Bucket(64, 64, 1)})


def shape(width=96, height=56, num_frames=9, fps=8.0, key="a"):
    return Shape(key, width, height, num_frames, fps, 1_000_000)


def test_clips_are_counted_by_bucket_and_by_reason_and_the_nearest_come_first():
    shapes = [shape(), shape(num_frames=5, key="b"), shape(num_frames=8, key="c"), shape(width=90, key="d")]
    found = count_buckets(shapes, BUCKETS)
    assert found["buckets"]["wide"] == {"clips": 1, "seconds": 1.0}
    assert found["unbinned"]["too short for every bucket"] == {
        "clips": 2, "seconds": 2.0, "nearest": {"wide": 2}, "more_frames": {"least": 1, "median": 2.5, "most": 4},
    }  # fmt: skip
    assert [(miss["clip_id"], miss["needs"]) for miss in found["nearest_misses"]] == [
        ("d", "6 more pixels of width"), ("c", "1 more frame"), ("b", "4 more frames"),
    ]  # fmt: skip
    assert buckets_line(found) == (
        "buckets: 1 wide; left out: 2 too short for every bucket (1 to 4 more frames would suffice "
        "for the nearest), 1 too small for every bucket"
    )


def test_a_clip_of_a_kind_without_buckets_lacks_a_bucket():
    films = Buckets(buckets={"wide": Bucket(96, 56, 9, 8)})
    assert str(nearest_miss(shape(num_frames=1), films)) == "a bucket of its kind"


def test_a_slow_clip_needs_a_frame_rate():
    assert str(nearest_miss(shape(fps=6.0), BUCKETS)) == "8 frames per second"


def test_a_banner_needs_a_bucket_that_may_cut_more_away():
    miss = nearest_miss(shape(width=960, height=100), BUCKETS)
    assert str(miss) == "a max_crop of 0.83" and miss.bucket == "wide"
    assert count_buckets([shape(width=960, height=100)], BUCKETS)["unbinned"].keys() == {
        "cropped too much by every bucket (max_crop)"
    }


@settings(max_examples=200)
@given(st.integers(8, 400), st.integers(8, 200), st.integers(1, 60), st.floats(1, 60))
def test_a_clip_that_gets_what_it_lacks_fits(width, height, num_frames, fps):
    clip = shape(width, height, num_frames, fps)
    if BUCKETS.assign(width, height, num_frames, fps).bucket is not None:
        return
    miss = nearest_miss(clip, BUCKETS)
    assert miss.ratio > 1 and str(miss) != "a bucket of its kind"
    more = replace(
        clip, width=width + miss.pixels[0], height=height + miss.pixels[1], num_frames=num_frames + miss.frames,
        fps=miss.fps if miss.fps is not None else fps,
    )  # fmt: skip
    allowed = {name: replace(bucket, max_crop=1.0) for name, bucket in BUCKETS.buckets.items()}
    buckets = BUCKETS if miss.crop is None else Buckets(buckets=allowed)
    assert buckets.assign(more.width, more.height, more.num_frames, more.fps).bucket is not None


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(8, 200), st.integers(8, 200), st.integers(1, 60)), max_size=20))
def test_every_clip_is_counted_once(sizes):
    found = count_buckets([shape(w, h, n, key=str(i)) for i, (w, h, n) in enumerate(sizes)], BUCKETS)
    counted = [*found["buckets"].values(), *found["unbinned"].values()]
    assert sum(amount["clips"] for amount in counted) == len(sizes)
