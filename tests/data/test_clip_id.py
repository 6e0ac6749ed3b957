"""Tests that a clip's id follows from its source and span alone."""

import hashlib
from fractions import Fraction

import pytest

from nemo_vfm.data.shards.clip_id import Clip, is_key, source_id


def clip(first: int = 3, last: int = 9) -> Clip:
    return Clip("ab" * 32, first, last, first * 512, last * 512, Fraction(1, 12288))


def test_a_clip_is_named_by_source_and_span_alone() -> None:
    assert clip().id == hashlib.sha256(f"{'ab' * 32}:3:9".encode()).hexdigest()[:32]
    assert clip().id == Clip("ab" * 32, 3, 9, 0, 1, Fraction(1, 7)).id
    assert len({clip(3, 9).id, clip(3, 10).id, clip(2, 9).id}) == 3


def test_a_clip_knows_its_length_in_frames_and_seconds() -> None:
    assert clip().num_frames == 6
    assert clip().duration_s == pytest.approx(0.25)


def test_a_clip_without_frames_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one frame"):
        clip(5, 5)


def test_equal_bytes_are_one_source(tmp_path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"film")
    assert source_id(tmp_path / "a.mp4") == source_id(b"film") != source_id(b"film2")


@pytest.mark.parametrize("text", ["", "a.b", "a/b", "../a", "a b", "x" * 91, "a\nb"])
def test_a_key_cannot_leave_its_tar_or_end_early(text: str) -> None:
    assert not is_key(text)
