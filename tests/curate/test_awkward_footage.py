"""Tests curation of awkward videos: uneven time stamps, oblong pixels, interlaced, damaged or truncated."""

import io
import json
from fractions import Fraction

import av
import cv2
import numpy as np
import pyarrow.parquet as pq
import pytest

from nemo_vfm.core.errors import NothingKept
from nemo_vfm.core.types.job import Run
from nemo_vfm.curate.decide.rule import Rule
from nemo_vfm.curate.execute.inline_executor import Inline
from nemo_vfm.curate.output.transcode import Encode, EncodedMedia, Transcode
from nemo_vfm.curate.redecide import Redecide
from nemo_vfm.curate.restore.crop_letterbox import Letterbox
from nemo_vfm.curate.score.decoder_flags import DecoderFlags
from nemo_vfm.curate.score.logo import Logo
from nemo_vfm.data.shards.shard_files import ShardSet
from nemo_vfm.data.video.decode import open_video
from tests.support import hdr_films
from tests.support.awkward import film, index_in_front, interlaced, with_hole
from tests.support.broadcast import barcoded, cut_before, numbers_of, without_packet
from tests.support.cuts import At
from tests.support.films import HEIGHT, WIDTH, job, pan


def levels(count):
    """Grey pictures, each three steps brighter than the one before."""
    return [np.full((HEIGHT, WIDTH, 3), 16 + 3 * number, np.uint8) for number in range(count)]


def curated(tmp_path, name, data, *cuts, **changes):
    """Rows of the table by first frame, samples of the shards in order, and the ledger."""
    (tmp_path / "videos").mkdir(exist_ok=True)
    (tmp_path / "videos" / name).write_bytes(data)
    usual = {
        "split": At(*cuts), "stages": {"decoder": DecoderFlags()}, "rules": {}, "captions": {},
        "executor": Inline(isolated=False),
    }  # fmt: skip
    job(tmp_path / "videos", **usual | changes).run(Run(tmp_path / "run"))
    shards = ShardSet(tmp_path / "run/shards")
    rows = pq.read_table(tmp_path / "run/scores.parquet").to_pylist()
    samples = [(json.loads(shards.read(e, "json")), shards.read(e, "mp4")) for e in shards.entries]
    return rows, samples, json.loads((tmp_path / "run/ledger.json").read_text())


def ledger_adds_up(ledger):
    return all(
        part["in"] == pytest.approx(part["kept"] + sum(part["dropped"].values()) + sum(part["failed"].values()))
        for part in ledger.values()
    )


def test_a_film_that_changes_its_rate_gives_clips_of_their_own_rates_that_last_as_long(tmp_path):
    stamps = [40 * number for number in range(24)] + [960 + 120 * number for number in range(24)]
    rows, samples, ledger = curated(
        tmp_path, "a.mkv", film(levels(48), "matroska", stamps_ms=stamps, fps=24), 24, transcode=Transcode(crf=4)
    )
    assert [row["fps"] for row in rows] == pytest.approx(
        [25, 25 / 3], rel=0.02
    )  # how long the last frame lasts nobody says
    assert [row["duration_s"] for row in rows] == pytest.approx([0.96, 2.88], abs=0.05)
    for row, (facts, mp4) in zip(rows, samples, strict=True):
        with open_video(mp4) as reader:
            info = reader.info()
        assert facts["num_frames"] == info.num_frames == 24 and facts["fps"] == row["fps"]
        assert info.duration_s == pytest.approx(row["duration_s"], abs=0.01) == facts["duration_s"]
        assert row["repeated_ratio"] == facts["scores"]["repeated_ratio"] == 0
    assert ledger_adds_up(ledger) and ledger["seconds"]["kept"] == pytest.approx(3.84, abs=0.05)


def test_frames_of_a_variable_rate_are_seen_when_their_time_stamps_say(tmp_path):
    random = np.random.default_rng(0)
    stamps = [0, *np.cumsum(random.choice([33, 33, 67, 200], 39)).tolist()]
    rows, ((facts, mp4),), _ = curated(
        tmp_path, "a.mkv", film(levels(40), "matroska", stamps_ms=stamps, fps=30), transcode=Transcode(crf=4)
    )
    with open_video(mp4, "pyav") as reader:
        info, seen = reader.info(), [round((frame.mean() - 16) / 3) for frame in reader.frames()]
    assert info.num_frames == facts["num_frames"] == 40
    assert info.duration_s == pytest.approx(facts["duration_s"], abs=0.02) == rows[0]["duration_s"]
    for tick, number in enumerate(seen):
        late = stamps[number] / 1000 - tick / info.fps
        assert late <= 0.5 / info.fps + 0.002, "a frame is seen before its time"
        assert number == 39 or stamps[number + 1] / 1000 - tick / info.fps >= 0.5 / info.fps - 0.002
    assert rows[0]["repeated_ratio"] == pytest.approx(1 - len(set(seen)) / 40)


@pytest.mark.parametrize("pause_s", [3, 50])
def test_a_pause_ends_a_clip_and_slows_none(tmp_path, pause_s):
    stamps = [40 * number + (1000 * pause_s if number >= 50 else 0) for number in range(75)]
    pictures = levels(75)
    rows, samples, ledger = curated(
        tmp_path, "a.mp4", film(pictures, stamps_ms=stamps, fps=25, bf="2"), transcode=Transcode(crf=4)
    )
    assert [(row["first_frame"], row["last_frame"], row["fps"]) for row in rows] == [(0, 50, 25.0), (50, 75, 25.0)]
    assert [row["duration_s"] for row in rows] == [2.0, 1.0] and {row["repeated_ratio"] for row in rows} == {0.0}
    for row, (facts, mp4) in zip(rows, samples, strict=True):
        with open_video(mp4, "pyav") as reader:
            info, seen = reader.info(), [round((frame.mean() - 16) / 3) for frame in reader.frames()]
        assert seen == list(range(row["first_frame"], row["last_frame"])) and info.fps == facts["fps"] == 25.0
    assert ledger["seconds"]["dropped"] == {"no_frames": pause_s} and ledger_adds_up(ledger)
    assert ledger["seconds"]["kept"] == 3.0 and ledger["clips"]["in"] == 2
    Redecide(curated=tmp_path / "run", rules={}, with_shards=False).run(Run(tmp_path / "again"))
    assert json.loads((tmp_path / "again/ledger.json").read_text())["seconds"] == ledger["seconds"]


def test_jitter_of_the_time_stamps_repeats_nothing(tmp_path):
    stamps = [round(number * 1000 / 24) + (number % 3) for number in range(48)]
    rows, _, _ = curated(tmp_path, "a.mkv", film(pan(1, 48), "matroska", stamps_ms=stamps, fps=24), 20)
    assert [(row["fps"], row["repeated_ratio"]) for row in rows] == [(24.0, 0.0)] * 2


def test_oblong_pixels_are_written_square_and_fields_as_frames(tmp_path):
    made = film(interlaced(pan(1, 96)), aspect=Fraction(4, 3), crf="4", **{"x264-params": "bff=1"})
    rows, ((facts, mp4),), _ = curated(tmp_path, "a.mp4", made, transcode=Transcode(crf=4))
    assert (rows[0]["width"], rows[0]["height"]) == (facts["width"], facts["height"]) == (170, HEIGHT)
    assert rows[0]["interlaced_ratio"] == 1.0
    with av.open(io.BytesIO(mp4)) as container:
        stream = container.streams.video[0]
        frames = list(container.decode(video=0))
        assert (stream.width, stream.height) == (facts["width"], facts["height"])
        assert stream.sample_aspect_ratio in (None, 0, 1) and not any(frame.interlaced_frame for frame in frames)
    combed = [float(np.abs(np.diff(f.to_ndarray(format="gray").astype(int), axis=0)).mean()) for f in frames]
    with av.open(io.BytesIO(made)) as container:
        stored = [np.abs(np.diff(f.to_ndarray(format="gray").astype(int), axis=0)).mean() for f in container.decode()]
    assert np.mean(combed) < 0.8 * np.mean(stored)


def test_a_clip_of_an_interlaced_film_has_the_same_bytes_whichever_clips_are_encoded_beside_it(tmp_path):
    path = tmp_path / "a.mp4"
    path.write_bytes(film(interlaced(pan(1, 96)), g="12", **{"x264-params": "bff=1"}))
    clips = [{"id": str(first), "span": [first, first + 12], "fps": 12.0} for first in (0, 12, 24)]
    films = []
    for wanted in (clips, clips[1:2]):
        media = EncodedMedia(tmp_path / str(len(wanted)), "x", tmp_path / "shards")
        request = {"path": str(path), "name": "a.mp4", "source_id": "", "state": None, "clips": wanted}
        assert not any(reply.fact["message"] for reply in Encode(Transcode(), {}, media)(request, lambda count: None))
        films.append(media.path("12").read_bytes())
    assert films[0] == films[1]


def test_a_film_cut_short_is_used_up_to_there_and_the_rest_is_said(tmp_path):
    whole = index_in_front(film(pan(1, 114), bf="2", g="24", crf="18"))
    rows, samples, ledger = curated(tmp_path, "a.mp4", whole[: len(whole) * 4 // 5], 24, 48)
    *kept, rest = rows
    assert [row["decision"] for row in rows] == ["kept"] * len(samples) + ["failed"]
    assert kept[-1]["last_frame"] == rest["first_frame"] > 70 and rest["last_frame"] == 114
    assert "is truncated: the container declares 114 frames" in rest["message"]
    assert ledger_adds_up(ledger) and ledger["seconds"]["in"] == pytest.approx(114 / 12)


def test_a_recording_that_begins_between_keyframes_is_used_from_the_first_on_and_the_rest_is_counted(tmp_path):
    whole = film(barcoded(range(70)), "mpegts", fps=25, g="20", bf="2")
    rows, samples, ledger = curated(tmp_path, "a.ts", cut_before(whole, 7))
    kept, rest = rows
    assert (kept["decision"], rest["decision"]) == ("kept", "failed") and len(samples) == 1
    with open_video(samples[0][1]) as reader:
        numbers = numbers_of(reader.frames())
    assert numbers == list(range(numbers[0], 70)) and len(numbers) == kept["last_frame"] > 30
    assert f"has {63 - len(numbers)} frames without their keyframe" in rest["message"]
    assert ledger_adds_up(ledger) and ledger["seconds"]["in"] == pytest.approx(63 / 25)


@pytest.mark.parametrize(("name", "drops"), [("a.mp4", False), ("a.y4m", True)])
def test_advice_speaks_of_thresholds_only_where_a_rule_dropped_something(tmp_path, name, drops):
    data = film(pan(1, 24), "yuv4mpegpipe", codec="wrapped_avframe", fps=25) if drops else b"no video"
    with pytest.raises(NothingKept) as said:
        curated(tmp_path, name, data, rules={"long": Rule(score="duration_s", below=60.0)})
    assert ("change a threshold" in str(said.value)) == drops
    assert ("the files that failed" in str(said.value)) != drops


@pytest.mark.parametrize("later", [(96, 2), (160, 1)])
def test_a_new_size_begins_a_shot_whose_clip_has_that_size(tmp_path, later):
    height, scale = later
    made = [barcoded(range(30)), barcoded(range(30, 60), height, scale), barcoded(range(60, 90))]
    data = b"".join(film(pictures, "mpegts", fps=25, g="12", bf="2", crf="4") for pictures in made)
    stages = {"decoder": DecoderFlags(), "logo": Logo()}
    rows, samples, ledger = curated(tmp_path, "a.ts", data, stages=stages, restore={"bars": Letterbox()})
    assert [(row["first_frame"], row["last_frame"]) for row in rows] == [(0, 30), (30, 60), (60, 90)]
    sizes = [(160, 96), (160 * scale, height * scale), (160, 96)]
    assert [(row["width"], row["height"]) for row in rows] == sizes and ledger_adds_up(ledger)
    assert [(facts["width"], facts["height"]) for facts, _ in samples] == sizes
    for number, (_, mp4) in enumerate(samples):
        with open_video(mp4) as reader:
            assert numbers_of(reader.frames()) == list(range(30 * number, 30 * number + 30))


def test_clips_with_corrupt_frames_are_dropped_by_a_rule(tmp_path):
    made = with_hole(film(pan(1, 60), "mpegts", g="12", bf="2"), 2)
    rule = {"corrupt": Rule(score="corrupt_ratio", above=0.0)}
    rows, samples, ledger = curated(tmp_path, "a.ts", made, 20, 40, rules=rule)
    assert [row["corrupt_ratio"] for row in rows] == [0.0, 0.6, 0.0]
    assert [row["rule"] for row in rows] == [None, "corrupt", None] and len(samples) == 2
    assert ledger["clips"]["dropped"] == {"corrupt": 1} and ledger_adds_up(ledger)


@pytest.mark.parametrize("codec", ["libx265", "libx264", "mpeg2video"])
def test_a_packet_lost_on_the_way_costs_the_clip_that_it_belongs_to_and_no_other(tmp_path, codec):
    quiet = {"x265-params": "log-level=none:pools=1:scenecut=0"} if codec == "libx265" else {}
    made = without_packet(film(pan(1, 72), "mpegts", codec=codec, g="24", bf="2", **quiet), 31)
    rule = {"corrupt": Rule(score="corrupt_ratio", above=0.0)}
    rows, samples, ledger = curated(tmp_path, "a.ts", made, 22, 48, rules=rule)
    assert [row["rule"] for row in rows] == [None, "corrupt", None] and len(samples) == 2
    assert rows[2]["last_frame"] >= 71 and ledger_adds_up(ledger)


class Brighter:
    """A restorer that finds something to do in every clip."""

    def columns(self):
        return ()

    def facts(self):
        return {}

    def look(self, frames_THWC):
        return self

    def apply(self, frames_THWC):
        return np.minimum(frames_THWC, 245) + np.uint8(10)


def test_a_clip_with_a_frame_lost_on_the_way_is_restored_like_any_other(tmp_path):
    quiet = {"x265-params": "log-level=none:pools=1:scenecut=0"}
    made = without_packet(film(pan(1, 72), "mpegts", codec="libx265", g="24", bf="2", **quiet), 31)
    rows, samples, _ = curated(tmp_path, "a.ts", made, 22, 48, restore={"brighter": Brighter()})
    assert [row["decision"] for row in rows] == ["kept"] * 3 and len(samples) == 3
    assert rows[1]["corrupt_ratio"] > 0


@pytest.mark.parametrize("made_as", [("a.mxf", "mxf", "mpeg2video"), ("a.y4m", "yuv4mpegpipe", "wrapped_avframe")])
def test_broadcast_and_raw_films_go_through(tmp_path, made_as):
    name, kind, codec = made_as
    rows, samples, _ = curated(tmp_path, name, film(pan(1, 24), kind, codec=codec, fps=25))
    assert len(samples) == 1 and rows[0]["last_frame"] == 24


def test_the_column_transfer_says_what_was_hdr_and_rules_can_drop_it(tmp_path):
    (tmp_path / "videos").mkdir()
    for transfer in ("pq", "sdr"):
        data = hdr_films.film([hdr_films.flat([203, 10], "pq")] * 24, transfer)
        (tmp_path / "videos" / f"{transfer}.mp4").write_bytes(data)
    rule = {"hdr": Rule(keep='transfer != "hlg"')}
    data = hdr_films.film([hdr_films.flat([203, 10], "hlg")] * 24, "hlg")
    rows, samples, ledger = curated(tmp_path, "hlg.mp4", data, rules=rule)
    assert {(row["transfer"], row["rule"]) for row in rows} == {("hlg", "hdr"), ("pq", None), ("sdr", None)}
    assert ledger["clips"]["dropped"] == {"hdr": 1} and ledger_adds_up(ledger)
    assert {facts["scores"]["transfer"] for facts, _ in samples} == {"pq", "sdr"}
    (hlg,) = (row["clip_id"] for row in rows if row["transfer"] == "hlg")
    assert cv2.imread(str(tmp_path / f"run/thumbnails/{hlg}.jpg"))[48, 48].min() >= 235  # diffuse white
