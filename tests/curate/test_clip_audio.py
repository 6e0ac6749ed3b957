"""Tests that each clip keeps the sound of its own time, or says why it has none."""

import io
import json
from fractions import Fraction

import av
import numpy as np
import pytest
from av.stream import Disposition

from nemo_vfm.core.types.job import Run
from nemo_vfm.curate.execute.inline_executor import Inline
from nemo_vfm.curate.output.transcode import EncodedMedia, Transcode
from nemo_vfm.data.shards.shard_files import ShardSet
from nemo_vfm.data.video.audio import clip_audio, read_audio
from nemo_vfm.data.video.decode import open_video
from nemo_vfm.data.video.encode import encode_mp4
from tests.support.cuts import At
from tests.support.films import job
from tests.support.sounding import RATE, TONES, pitch, sounding_film, tone


def with_sounds(path, sounds, *, codec="aac", default=None):
    """Four seconds of pictures, and sounds, each with a number of channels; one of them may be the default."""
    sounding_film(path.with_suffix(".silent.mp4"), silent=True)
    with av.open(str(path.with_suffix(".silent.mp4"))) as source, av.open(str(path), "w") as out:
        picture = out.add_stream_from_template(source.streams.video[0])
        streams = [out.add_stream(codec, rate=RATE, layout="mono" if one == 1 else "stereo") for _, one in sounds]
        for number, stream in enumerate(streams):
            stream.disposition = Disposition.default if number == default else Disposition(0)
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = picture
                out.mux(packet)
        for stream, (samples, channels) in zip(streams, sounds, strict=True):
            values = np.repeat((samples * 32767).astype(np.int16), channels)[None]
            frame = av.AudioFrame.from_ndarray(values, format="s16", layout="mono" if channels == 1 else "stereo")
            frame.sample_rate, frame.pts, frame.time_base = RATE, 0, Fraction(1, RATE)
            out.mux(stream.encode(frame))
            out.mux(stream.encode(None))
    path.with_suffix(".silent.mp4").unlink()
    return path


def curated(videos, run, **how):
    arguments = {"split": At(12, 30), "stages": {}, "rules": {}, "captions": {}, "executor": Inline(isolated=False)}
    job(videos, transcode=Transcode(preset="veryfast", **how), **arguments).run(Run(run))
    shards = ShardSet(run / "shards")
    samples = [{name: shards.read(entry, name) for name in entry.members} for entry in shards.entries]
    return [(json.loads(one["json"]), one) for one in samples], json.loads((run / "ledger.json").read_text())["audio"]


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.ts"])
def test_sound_is_copied_with_the_tones_of_the_clips_own_time(tmp_path, name):
    (tmp_path / "videos").mkdir()
    sounding_film(tmp_path / "videos" / name)
    samples, account = curated(tmp_path / "videos", tmp_path / "run")
    assert account == {"in": 3, "kept": 3, "dropped": {}, "failed": {}, "kept_as": {"copied": 3}}
    for facts, members in samples:
        assert facts["audio"] == "copied" and "flac" not in members
        (tmp_path / "clip.mp4").write_bytes(members["mp4"])
        with open_video(members["mp4"]) as reader:
            assert reader.info().num_frames == facts["num_frames"]
        with av.open(str(tmp_path / "clip.mp4")) as clip:
            ends = [float((one.pts + one.duration) * one.time_base) for one in clip.demux(audio=0) if one.size]
        assert 0.7 * facts["num_frames"] / 12 < max(ends) < facts["num_frames"] / 12 + 0.002
        first_s, last_s = facts["first_frame"] / 12, facts["last_frame"] / 12
        for second in (at for at in range(4) if first_s <= at + 0.1 and at + 0.4 <= last_s):
            heard = read_audio(tmp_path / "clip.mp4", second + 0.1 - first_s, second + 0.4 - first_s)
            assert pitch(heard, 16_000) == pytest.approx(TONES[second], rel=0.03)
    again, _ = curated(tmp_path / "videos", tmp_path / "again")
    assert again == samples


def test_sound_that_goes_on_while_no_picture_comes_is_in_no_clip(tmp_path):
    """A screen that stood still for the second and third second."""
    (tmp_path / "videos").mkdir()
    sounding_film(tmp_path / "videos/a.mp4", without=range(12, 36))
    arguments = {"split": At(), "stages": {}, "rules": {}, "captions": {}, "executor": Inline(isolated=False)}
    job(tmp_path / "videos", transcode=Transcode(preset="veryfast"), **arguments).run(Run(tmp_path / "run"))
    shards = ShardSet(tmp_path / "run/shards")
    assert len(shards.entries) == 2
    for number, entry in enumerate(shards.entries):
        (tmp_path / "clip.mp4").write_bytes(shards.read(entry, "mp4"))
        with av.open(str(tmp_path / "clip.mp4")) as clip:
            ends = [float((one.pts + one.duration) * one.time_base) for one in clip.demux(audio=0) if one.size]
        assert 0.9 < max(ends) < 1.002
        assert pitch(read_audio(tmp_path / "clip.mp4", 0.1, 0.9), 16_000) == pytest.approx(TONES[3 * number], rel=0.03)


def test_sound_that_no_mp4_takes_is_a_member_of_its_own_and_exactly_as_long(tmp_path):
    (tmp_path / "videos").mkdir()
    sound = np.concatenate([tone(hertz) for hertz in TONES])
    with_sounds(tmp_path / "videos/a.mkv", [(sound, 1)], codec="pcm_s16le")
    samples, account = curated(tmp_path / "videos", tmp_path / "run")
    assert account["kept_as"] == {"flac": 3} and account["kept"] == 3
    heard = []
    for facts, members in samples:
        assert facts["audio"] == "flac"
        with av.open(io.BytesIO(members["flac"])) as container:
            heard.append(np.concatenate([frame.to_ndarray().reshape(-1) for frame in container.decode(audio=0)]))
        assert abs(len(heard[-1]) / RATE - facts["duration_s"]) < 0.003, "Matroska's stamps are milliseconds"
        with av.open(io.BytesIO(members["mp4"])) as container:
            assert not container.streams.audio
    assert pitch(heard[1][: RATE // 2].astype(float), RATE) == pytest.approx(TONES[1], rel=0.03)
    for path in (tmp_path / "run/work").rglob("*.flac"):
        path.unlink()
    (tmp_path / "run/made_of.json").unlink()
    assert curated(tmp_path / "videos", tmp_path / "run")[0] == samples, "what was lost is encoded again"


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
def test_no_silence_is_kept_that_nobody_recorded(tmp_path, name):
    """The pictures last four seconds, the sound one and a half."""
    path = with_sounds(tmp_path / name, [(tone(440.0, 1.5), 1)], codec="aac" if name == "a.mp4" else "pcm_s16le")
    kinds, lengths_s = [], []
    for start_s in range(4):
        with clip_audio(path, start_s, start_s + 1.0, keep=True) as audio:
            kinds.append(audio.kind)
            if audio.kind == "flac":
                with av.open(io.BytesIO(audio.flac)) as flac:
                    lengths_s.append(sum(frame.samples for frame in flac.decode(audio=0)) / RATE)
    kind = "copied" if name == "a.mp4" else "flac"
    assert kinds == [kind, kind, "none", "none"]
    assert lengths_s == ([] if kind == "copied" else pytest.approx([1.0, 0.5], abs=0.003))


def test_the_default_sound_is_taken_before_the_first_and_before_more_channels(tmp_path):
    low, high = tone(220.0, 4.0), tone(880.0, 4.0)
    for default, right in ((None, 880.0), (0, 220.0), (1, 880.0)):
        path = with_sounds(tmp_path / f"{default}.mkv", [(low, 1), (high, 2)], default=default)
        assert pitch(read_audio(path, 1.0, 2.0), 16_000) == pytest.approx(right, rel=0.01)
        with clip_audio(path, 1.0, 2.0, keep=True) as audio:
            assert audio.stream.codec_context.channels == (2 if right == 880.0 else 1)


def test_of_a_broadcast_of_two_programmes_pictures_and_sound_are_of_one(tmp_path):
    for programmes in ([(64, 220.0), (256, 880.0)], [(256, 880.0), (64, 220.0)]):
        films = [sounding_film(tmp_path / f"{width}.ts", [hertz] * 2, width=width) for width, hertz in programmes]
        path = tmp_path / "both.ts"
        with av.open(str(path), "w") as out:
            copies = []
            for film in films:
                with av.open(str(film)) as source:
                    copies += [(film, out.add_stream_from_template(stream)) for stream in source.streams]
            for film in films:
                with av.open(str(film)) as source:
                    mine = [copy for name, copy in copies if name == film]
                    for packet in source.demux():
                        if packet.dts is not None:
                            packet.stream = mine[packet.stream.index]
                            out.mux(packet)
        with open_video(path, "pyav") as reader:
            assert reader.info().width == 256
        assert pitch(read_audio(path, 0.7, 1.7), 16_000) == pytest.approx(880.0, rel=0.01)


def test_what_has_no_sound_or_was_not_to_keep_it_says_so(tmp_path):
    for folder, silent in (("silent", True), ("sounding", False)):
        (tmp_path / folder).mkdir()
        sounding_film(tmp_path / folder / "a.mp4", silent=silent)
    samples, account = curated(tmp_path / "silent", tmp_path / "run1")
    assert {facts["audio"] for facts, _ in samples} == {"none"} and account["dropped"] == {"no_audio": 3}
    samples, account = curated(tmp_path / "sounding", tmp_path / "run2", audio="drop")
    assert {facts["audio"] for facts, _ in samples} == {"dropped"} and account["dropped"] == {"audio_drop": 3}
    with av.open(io.BytesIO(samples[0][1]["mp4"])) as container:
        assert not container.streams.audio
    with pytest.raises(ValueError, match="keep and drop"):
        Transcode(audio="copy")


def test_sound_that_is_damaged_costs_the_sound_and_not_the_clip(tmp_path, monkeypatch):
    (tmp_path / "videos").mkdir()
    sounding_film(tmp_path / "videos/a.mp4")

    def broken(*_):
        raise av.error.InvalidDataError(1, "Invalid data found")

    monkeypatch.setattr("nemo_vfm.data.video.audio._copy_sound", broken)
    samples, account = curated(tmp_path / "videos", tmp_path / "run")
    assert {facts["audio"] for facts, _ in samples} == {"failed"} and account["kept"] == 0
    assert sum(account["failed"].values()) == account["in"] == 3
    assert "Invalid data" in samples[0][0]["audio_failure"]


@pytest.mark.parametrize("seed", range(4))
def test_bytes_that_are_damaged_cost_at_max_the_sound(tmp_path, seed):
    random, (first, *_), path = np.random.default_rng(seed), TONES, tmp_path / "a.ts"
    sounding_film(path, [first] * 2)
    with av.open(str(path)) as container:
        at = [packet.pos for packet in container.demux(audio=0) if packet.size]
    data = bytearray(path.read_bytes())
    for place in random.choice(at, 12):
        data[place + 20 : place + 180] = random.bytes(160)
    path.write_bytes(data)
    with clip_audio(path, 1.5, 2.5, keep=True) as audio:
        file = io.BytesIO()
        assert encode_mp4(file, np.zeros((12, 48, 64, 3), np.uint8), 12, audio=audio) == 12
    assert (audio.kind == "failed") == bool(audio.why) and (audio.kind == "flac") == bool(audio.flac)


def test_packets_that_the_muxer_refuses_are_decoded_instead(tmp_path, monkeypatch):
    monkeypatch.setattr("nemo_vfm.data.video.audio._go_into_mp4", lambda *_: False)
    with clip_audio(sounding_film(tmp_path / "a.mp4"), 1.0, 2.0, keep=True) as audio:
        assert audio.kind == "flac" and audio.flac


def test_films_with_and_without_their_sound_have_places_of_their_own(tmp_path):
    assert EncodedMedia.of(tmp_path, tmp_path, Transcode(), {}) != EncodedMedia.of(
        tmp_path, tmp_path, Transcode(audio="drop"), {}
    )


def test_a_file_that_cannot_be_opened_gives_a_failure(tmp_path):
    (tmp_path / "a.mp4").write_bytes(b"no video")
    with clip_audio(tmp_path / "a.mp4", 0.0, 1.0, keep=True) as audio:
        assert audio.kind == "failed" and audio.why
