# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Which clips are encoded again, and what is said of a restorer that fails."""

import pytest

from nemo_vfm.curate.restore.destripe import Destripe
from nemo_vfm.curate.restore.letterbox import Letterbox
from nemo_vfm.curate.transcode import Encode, Media, Transcode
from tests.support.films import pan, write_film


class Broken:
    """A restorer, and a restoration, that fails at one thing or the other."""

    def __init__(self, how):
        self.how = how

    def columns(self):
        return ("broken.level",)

    def look(self, frames_THWC):
        if self.how == "look":
            raise RuntimeError("no such filter")
        return self

    def apply(self, frames_THWC):
        if self.how == "apply":
            raise KeyError("level")
        return frames_THWC

    def facts(self):
        return {"broken.level": float("nan") if self.how == "facts" else 1.0}


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("look", "restorer mine: RuntimeError (no such filter)"),
        ("apply", "restorer mine: KeyError ('level')"),
        ("facts", "restorer mine: broken.level is nan, which no table can compare"),
        ("nothing", None),
    ],
)
def test_a_restorer_that_fails_is_named_and_leaves_nothing(tmp_path, how, said):
    film = write_film(tmp_path / "a.mp4", pan(1))
    encode = Encode(Transcode(preset="veryfast"), {"mine": Broken(how)}, Media(tmp_path / "clips", "x"))
    clips = [{"id": "one", "span": [0, 24], "fps": 12.0}]
    request = {"path": str(film), "name": "a.mp4", "source_id": "", "state": None, "clips": clips}
    (reply,) = encode(request, lambda count: None)
    assert reply.fact["message"] == said
    assert (tmp_path / "clips" / "one-x.mp4").exists() == (said is None)


def test_restorers_in_another_order_make_other_clips(tmp_path):
    stripes, bars = Destripe(), Letterbox()
    one = Media.of(tmp_path, Transcode(), {"stripes": stripes, "bars": bars})
    other = Media.of(tmp_path, Transcode(), {"bars": bars, "stripes": stripes})
    assert one.stamp != other.stamp
