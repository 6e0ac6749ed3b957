"""Tests that a slow piece of work delays no others, and that a long video is many pieces."""

import threading
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest

from nemo_vfm.curate.execute.ordered import map_as_completed
from nemo_vfm.curate.media_pipeline import encode_missing
from nemo_vfm.curate.output.transcode import Encode, Transcode
from nemo_vfm.curate.record.ledger import ClipRecord, FileRecord, MediaInfo, SourceFile
from nemo_vfm.data.shards.clip_id import Clip


def test_all_others_are_done_while_the_first_is_not():
    others = threading.Event()

    def work(item):
        assert item or others.wait(30), "it waited for others that wait for it"
        return -item

    seen = []
    for number, result in map_as_completed(work, range(20), workers=2):
        seen.append(number)
        assert result == -number
        if len(seen) == 19:
            assert 0 not in seen
            others.set()
    assert sorted(seen) == list(range(20)) and seen[-1] == 0


def test_what_one_piece_raises_ends_the_rest():
    given_up = []
    with pytest.raises(ZeroDivisionError):
        list(map_as_completed(lambda item: 1 / item, range(9), workers=1, give_up=lambda: given_up.append(1)))
    assert given_up == [1]


def test_clips_are_encoded_with_the_same_neighbours_whatever_is_encoded_already():
    info = MediaInfo(14_400, 24.0, 640, 480, "h264", Fraction(1, 24))
    file = FileRecord(SourceFile(Path("a.mp4"), "a.mp4"), info=info)
    spans = [Clip("id", first, first + 100, first, first + 100, Fraction(1, 24)) for first in range(0, 14_400, 100)]
    clips = [ClipRecord(span, "a.mp4", (), 24.0, 640, 480, duration_us=1) for span in spans]

    def segments(absent):
        asked = []
        hands = SimpleNamespace(limits=None, work=lambda _title, _total, _steps, items: asked.extend(items) or ())
        media = SimpleNamespace(fact_of=lambda clip: None if clip in absent else {})
        encode_missing([file], Encode(Transcode(), {}, media), hands, lambda: None)
        return [[clip["id"] for clip in item.request["clips"]] for item in asked]

    file.clips = clips
    whole, half = segments(clips), [clip.clip.id for clip in clips[::2]]
    assert len(whole) == 20 and [one for segment in whole for one in segment] == [clip.clip.id for clip in clips]
    assert segments(clips[::2]) == [[one for one in segment if one in half] for segment in whole]
