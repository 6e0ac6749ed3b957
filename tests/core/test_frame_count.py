"""Tests that pixel frames and latent frames are never taken for each other."""

import pytest

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.frame_count import LatentFrames, PixelFrames


@pytest.mark.parametrize("kind", [PixelFrames, LatentFrames])
@pytest.mark.parametrize("count", [0, 1, 93])
def test_what_is_written_is_read_again(kind, count) -> None:
    assert kind.parse(str(kind(count))) == kind(count)
    assert kind.parse(f" {count}  {kind.kind} frame ") == kind(count)


def test_the_other_kind_is_refused_and_both_are_named() -> None:
    with pytest.raises(UserError, match="'2 latent frames' was given where pixel frames are expected"):
        PixelFrames.parse("2 latent frames")
    with pytest.raises(UserError, match="'5 pixel frames' was given where latent frames are expected"):
        LatentFrames.parse("5 pixel frames")
    assert PixelFrames(2) != LatentFrames(2)


@pytest.mark.parametrize("text", ["2", "two latent frames", "-1 latent frames", "1.5 latent frames", "2 frames", ""])
def test_what_is_no_number_of_frames_is_refused(text) -> None:
    with pytest.raises(UserError, match=r"is not a number of latent frames; write '2 latent frames'"):
        LatentFrames.parse(text)
