"""Tests that recordings that begin anywhere, or lie behind each other in one file, are read in their order."""

import numpy as np
import pytest

from nemo_vfm.data.batching.bucket import Bucket, Buckets
from nemo_vfm.data.sources.video_folder import VideoFolder
from nemo_vfm.data.video import pyav_reader
from nemo_vfm.data.video.decode import open_video
from nemo_vfm.data.video.pyav_reader import PyAVReader
from tests.support import broadcast
from tests.support.awkward import film
from tests.support.films import pan

_X265 = {"bf": "3", "x265-params": "log-level=none:pools=1:open-gop=1"}
CODECS = {"libx264": {"bf": "2"}, "libx265": _X265, "mpeg2video": {"bf": "2", "b": "2M"}, "mpeg4": {"b": "2M"}}


TICKS = 3600  # of a frame


def recording(codec, numbers, kind="mpegts"):
    return film(broadcast.barcoded(numbers), kind, codec=codec, fps=25, g="20", **CODECS[codec])


def seen(source):
    """The info, the numbers of all frames in order, and which of them are corrupt; any frame asked for is the same."""
    with PyAVReader(source) as reader:
        info = reader.info()
        pictures = list(reader.frames())
        corrupt = [index for index in range(info.num_frames) if reader.is_corrupt(index)]
    for index in (info.num_frames - 1, info.num_frames // 2, 0, info.num_frames // 3):
        with PyAVReader(source) as reader:
            assert (reader.read([index])[0] == pictures[index]).all()
    assert len(pictures) == info.num_frames and list(info.pts) == sorted(set(info.pts))
    return info, broadcast.numbers_of(pictures), corrupt


@pytest.mark.parametrize("codec", CODECS)
def test_a_recording_that_begins_between_keyframes_begins_with_the_first_frame_that_decodes(codec):
    whole = recording(codec, range(70))
    for lost in (1, 7, 19):
        info, numbers, corrupt = seen(broadcast.cut_before(whole, lost))
        assert numbers == list(range(numbers[0], 70)) and 15 <= numbers[0] <= 40 and not corrupt
        assert info.missing_frames == info.before_keyframe == 70 - lost - len(numbers)
        assert f"{info.missing_frames} frames without their keyframe" in info.why_incomplete()
        assert info.fps == 25 and info.duration_s == pytest.approx(len(numbers) / 25)


def test_frames_of_a_recording_that_begins_between_keyframes_are_read_after_those_of_the_next():
    """The decoder has the next one's parameters, and refuses what comes before the first keyframe."""
    first = broadcast.cut_before(film(broadcast.barcoded(range(40)), "mpegts", fps=25, g="12", bf="0"), 3)
    second = film(broadcast.barcoded(range(40, 70)), "mpegts", fps=25, g="5", bf="2")
    with open_video(first + second, "pyav") as reader:
        count = reader.info().num_frames
        assert broadcast.numbers_of(frame for at in (count - 1, 0) for frame in reader.read([at])) == [69, 70 - count]


@pytest.mark.parametrize("codec", CODECS)
def test_segments_put_together_are_whole_whatever_their_counters(codec):
    first, second = recording(codec, range(40)), recording(codec, range(40, 70))
    with open_video(first, "pyav") as reader:
        pictures = np.stack(list(reader.frames()))
    for moved_by, counter in ((0, 0), (0, 5), (40 * TICKS, 5)):  # a clock that begins anew, and one that goes on
        whole = first + broadcast.with_counters_from(broadcast.with_stamps_moved(second, moved_by), counter)
        info, numbers, corrupt = seen(whole)
        assert numbers == list(range(70)) and not corrupt and not info.missing_frames
        assert info.fps == 25 and info.duration_s == pytest.approx(2.8)
        with open_video(whole, "pyav") as reader:
            assert (reader.read(range(40)) == pictures).all()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("moved_by", [0, 40 * TICKS + 90_000 * 2])
def test_of_a_recording_that_begins_between_keyframes_behind_another_nothing_is_shown_before_one(codec, moved_by):
    first, second = (
        recording(codec, range(40)),
        broadcast.with_stamps_moved(recording(codec, range(100, 160)), moved_by),
    )
    info, numbers, corrupt = seen(first + broadcast.with_counters_from(broadcast.cut_before(second, 5), 5))
    began = numbers[40]
    assert numbers == [*range(40), *range(began, 160)] and 110 < began < 140 and not corrupt
    assert info.missing_frames == info.before_keyframe == 55 - (160 - began)
    steps = np.diff(info.pts)
    assert set(np.delete(steps, 39)) == {TICKS} and (steps[39] == TICKS) == (moved_by == 0)


@pytest.mark.parametrize("codec", CODECS)
def test_bytes_that_were_lost_are_told_with_all_that_refers_to_them(codec):
    whole = film(pan(1, 60), "mpegts", codec=codec, fps=25, g="20", **CODECS[codec] | {"crf": "8"})
    pictures, corrupt = {}, {}
    for kind, source in (("whole", whole), ("hurt", broadcast.without_packet(whole, 25))):
        with PyAVReader(source) as reader:
            pictures[kind] = dict(zip(reader.info().pts, reader.frames(), strict=True))
            corrupt[kind] = {pts for index, pts in enumerate(reader.info().pts) if reader.is_corrupt(index)}
    differ = {
        pts for pts, hurt in pictures["hurt"].items() if np.abs(hurt.astype(int) - pictures["whole"][pts]).max() > 8
    }
    assert differ and differ <= corrupt["hurt"] and len(corrupt["hurt"]) < 20 and not corrupt["whole"]


def test_stamps_that_wrap_are_sought_from_any_reader(tmp_path):
    whole = recording("libx264", range(100))
    path = tmp_path / "wrapped.ts"
    path.write_bytes(broadcast.with_stamps_moved(whole, (1 << 33) - 90_000 * 3))
    info, numbers, corrupt = seen(path)
    assert numbers == list(range(100)) and not corrupt and info.duration_s == pytest.approx(4)
    pyav_reader._LATEST.clear()
    with open_video(path) as reader:
        assert broadcast.numbers_of(reader.read([99, 3, 60])) == [99, 3, 60]


def test_a_folder_to_train_from_gives_frames_of_such_files_in_their_order(tmp_path):
    first, second = recording("libx264", range(40)), recording("libx264", range(40, 80))
    (tmp_path / "begun.ts").write_bytes(broadcast.cut_before(first, 7))
    (tmp_path / "joined.ts").write_bytes(first + broadcast.with_counters_from(second, 5))
    (tmp_path / "wrapped.ts").write_bytes(broadcast.with_stamps_moved(first, (1 << 33) - 90_000))
    buckets = Buckets(buckets={"film": Bucket(160, 96, 9, 25)})
    data = VideoFolder(path=tmp_path, buckets=buckets, batch_size=3, shuffle=False)
    data.start(seed=1, first_batch=0, rank=0, num_ranks=1)
    batch = next(iter(data.train_dataloader()))
    began = 40 - seen(tmp_path / "begun.ts")[0].num_frames
    middles = {"begun": (began + 40) // 2, "joined": 40, "wrapped": 20}
    for key, video_CTHW in zip(batch.keys, batch.video_BCTHW, strict=True):
        numbers = broadcast.numbers_of(video_CTHW.permute(1, 2, 3, 0).numpy())
        assert numbers == list(range(numbers[0], numbers[0] + 9))
        assert abs(numbers[4] - middles[key.partition("-")[0]]) <= 1
    assert len(batch.keys) == 3
