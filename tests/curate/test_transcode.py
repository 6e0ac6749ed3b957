"""Tests which clips are encoded again, and what is said of a restorer that fails."""

from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

from nemo_vfm.curate.examine.sandbox import ChildLimits, keep_last
from nemo_vfm.curate.execute.work_units import WorkItem
from nemo_vfm.curate.media_pipeline import encode_kept
from nemo_vfm.curate.output import transcode
from nemo_vfm.curate.output.transcode import Encode, EncodedMedia, Transcode
from nemo_vfm.curate.record.ledger import ClipRecord, FileRecord, SourceFile
from nemo_vfm.curate.restore.crop_letterbox import Letterbox
from nemo_vfm.curate.restore.destripe import Destripe
from nemo_vfm.data.shards.clip_id import Clip
from nemo_vfm.data.video.pyav_reader import PyAVReader
from tests.curate.test_sandbox import Misbehave
from tests.support.films import pan, write_film
from tests.support.hdr_films import film, flat, sdr


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
        ("facts", "restorer mine: broken.level is nan, which no table can hold"),
        ("nothing", None),
    ],
)
def test_a_restorer_that_fails_is_named_and_leaves_nothing(tmp_path, how, said):
    film = write_film(tmp_path / "a.mp4", pan(1))
    encode = Encode(
        Transcode(preset="veryfast"), {"mine": Broken(how)}, EncodedMedia(tmp_path / "clips", "x", tmp_path / "shards")
    )
    clips = [{"id": "one", "span": [0, 24], "fps": 12.0}]
    request = {"path": str(film), "name": "a.mp4", "source_id": "", "state": None, "clips": clips}
    (reply,) = encode(request, lambda count: None)
    assert reply.fact["message"] == said
    assert (tmp_path / "clips" / "one-x.mp4").exists() == (said is None)


def test_restorers_in_another_order_make_other_clips(tmp_path):
    stripes, bars = Destripe(), Letterbox()
    one = EncodedMedia.of(tmp_path, tmp_path, Transcode(), {"stripes": stripes, "bars": bars})
    other = EncodedMedia.of(tmp_path, tmp_path, Transcode(), {"bars": bars, "stripes": stripes})
    assert one.stamp != other.stamp


@pytest.mark.parametrize("restore", [{}, {"mine": Broken("nothing")}])
def test_each_frame_is_told_when_it_is_encoded(tmp_path, restore, monkeypatch):
    film = write_film(tmp_path / "a.mp4", pan(1))
    encode = Encode(Transcode(preset="veryfast"), restore, EncodedMedia(tmp_path / "clips", "x", tmp_path / "shards"))
    clips = [{"id": "one", "span": [0, 10], "fps": 12.0}, {"id": "two", "span": [10, 24], "fps": 12.0}]
    request = {"path": str(film), "name": "a.mp4", "source_id": "", "state": None, "clips": clips}
    told, before_files = [], []

    def encode_mp4(*words, **more):  # its encoder may hold frames back until it is closed
        before_files.append(sum(told))
        written = encode_as_ever(*words, **more)
        before_files.append(sum(told))
        return written

    encode_as_ever = transcode.encode_mp4
    monkeypatch.setattr(transcode, "encode_mp4", encode_mp4)
    for reply in encode(request, told.append):
        assert reply.fact["message"] is None
        assert sum(told) == {"one": 10, "two": 24}[reply.fact["id"]]
    assert before_files == [0, 0, 10, 10] and told.count(0) >= 24, "a clip is done with its file, and alive until then"


def test_a_long_clip_is_told_while_it_is_encoded_up_to_what_an_encoder_holds_back():
    told = []
    frames = transcode._CountedFrames([np.zeros((2, 2, 3), np.uint8)] * 300, [1] * 300, told.append)
    assert len(list(frames)) == 300 and sum(told) == 300 - transcode._HELD_BACK
    frames.close()
    assert sum(told) == 300


def test_a_child_that_dies_over_encoding_is_said_to_have_encoded(tmp_path):
    record = ClipRecord(Clip("0" * 64, 0, 24, 0, 24, Fraction(1, 12)), "a.mp4", (), 12.0, 64, 48, 2_000_000)
    file = FileRecord(
        SourceFile(tmp_path / "a.mp4", "a.mp4"), source_id="0" * 64, duration_us=2_000_000, clips=[record]
    )

    def work(title, total, steps, items):
        worker = replace(steps[0].work, operation=Misbehave()).start()
        yield from ((number, keep_last(list(worker.do(WorkItem({"do": "exit"}))))) for number, _ in enumerate(items))
        worker.stop()

    hands = SimpleNamespace(limits=ChildLimits(), work=work)
    encode = Encode(Transcode(), {}, EncodedMedia(tmp_path, "x", tmp_path / "shards"))
    encode_kept([file], [record], encode, hands, decide=lambda records: None, ready=lambda: None)
    assert record.message == "a.mp4: its encoding ended with status 3"


@pytest.mark.parametrize("transfer", ["pq", "hlg"])
def test_clips_of_hdr_are_sdr_and_say_so_turned_oblong_odd_or_restored(tmp_path, transfer):
    picture = flat([203, 1, 600, 50], transfer)
    for case, (turned, aspect, width, restored) in enumerate(
        [
            (False, 1, 128, False),
            (True, 1, 128, False),
            (False, 2, 128, False),
            (False, 1, 127, False),
            (False, 1, 128, True),
        ]
    ):
        made = film([picture[:, :width]] * 3, transfer, turned=turned, aspect=aspect, pix_fmt="yuv444p10le")
        (path := tmp_path / f"{case}.mp4").write_bytes(made)
        media = EncodedMedia(tmp_path / "clips", "x", tmp_path / "shards")
        clips = [{"id": str(case), "span": [0, 3], "fps": 12.0, "picture": None}]
        request = {"path": str(path), "name": path.name, "source_id": "", "state": None, "clips": clips}
        encode = Encode(Transcode(crf=1), {"mine": Broken("nothing")} if restored else {}, media)
        assert [reply.fact["message"] for reply in encode(request, lambda count: None)] == [None]
        with PyAVReader(media.path(str(case))) as reader:
            _, frame = next(reader.decode_at([1]))
            shown = np.rot90(reader.picture(frame), int(turned))
        assert (frame.colorspace, frame.color_range, frame.color_primaries, frame.color_trc) == (1, 1, 1, 1)
        seen, expected = shown[16, 16 * aspect :: 32 * aspect], sdr(picture, transfer)[16, 16::32]
        assert seen.shape == expected.shape and np.abs(seen - expected).max() <= 3  # 8 bits of limited range
