# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Two decoders agree on index, time stamp and pixel; damage is a sentence, never a crash or a silent loss."""

import io
import multiprocessing
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from av.stream import Disposition
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.optional import available
from nemo_vfm.data.codecs import open_encoder
from nemo_vfm.data.decode import VideoInfo, open_video
from tests.data.conftest import moving, mp4

needs_decord = pytest.mark.skipif(not available("decord"), reason="decord is not installed")


def encoded(codec: str, container: str, num_frames: int = 12, **options: str) -> bytes:
    """A film in another codec than ours."""
    file = io.BytesIO()
    with av.open(file, "w", format=container) as out:
        stream = out.add_stream(codec, rate=12, options=options)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        open_encoder(stream)
        for picture in moving(num_frames, 64, 96):
            out.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        out.mux(stream.encode(None))
    return file.getvalue()


def check_agreement(source: Path | bytes) -> VideoInfo:
    """Same info, and same pixels whichever reader gives them and in whichever order."""
    with open_video(source, "pyav") as base, open_video(source, "decord") as fast:
        info = base.info()
        assert info == fast.info()
        assert len(info.pts) == info.num_frames and list(info.pts) == sorted(set(info.pts))
        last = info.num_frames - 1
        wanted = [last, 0, last // 2, min(1, last), last // 2]
        ours, theirs = base.read(wanted), fast.read(wanted)
        assert ours.shape == (len(wanted), info.height, info.width, 3)
        assert np.abs(ours.astype(int) - theirs).max() <= 2
        start = max(0, last // 2 - 2)
        in_order = list(base.frames(start, start + 4))
        assert (np.stack(in_order) == base.read(range(start, min(start + 4, info.num_frames)))).all()
    return info


@needs_decord
@pytest.mark.parametrize(
    "name",
    ["crush_027.mp4", "dashcam_6.mp4", "flipping_a_pancake.mkv", "sintel_trailer_10s.mp4", "unordered.mov",
     "video_0.mov", "video_90.mov", "video_180.mov", "video_270.mov"],
)  # fmt: skip
def test_decoders_agree_on_real_videos(name: str, real_videos: Path) -> None:
    check_agreement(real_videos / name)


@needs_decord
@pytest.mark.parametrize(
    ("codec", "container"), [("libx264", "mp4"), ("libx264", "mpegts"), ("libvpx-vp9", "webm"), ("mpeg4", "avi")]
)
def test_decoders_agree_on_other_codecs(codec: str, container: str) -> None:
    assert check_agreement(encoded(codec, container)).num_frames == 12


@needs_decord
def test_decoders_agree_on_our_own_films() -> None:
    info = check_agreement(mp4(31, 64, 80, 30000 / 1001))
    assert info.time_base * (info.pts[1] - info.pts[0]) == Fraction(1001, 30000)
    assert info.duration_s == pytest.approx(31 * 1001 / 30000)


@needs_decord
def test_frames_are_found_across_many_keyframes() -> None:
    film = encoded("libx264", "mp4", 60, g="7", bf="3")
    with open_video(film, "pyav") as base, open_video(film, "decord") as fast:
        whole = np.stack(list(base.frames()))
        order = np.random.default_rng(0).permutation(60).tolist()
        assert (base.read(order) == whole[order]).all()
        assert all((base.read([index])[0] == whole[index]).all() for index in order[:12])
        assert np.abs(fast.read(order).astype(int) - whole[order]).max() <= 2


def test_a_codec_decord_cannot_read_goes_to_pyav_and_is_said(caplog: pytest.LogCaptureFixture) -> None:
    film = encoded("libsvtav1", "mp4", preset="12")
    with open_video(film) as reader:
        assert type(reader).__name__ == "PyAVReader"
        assert (reader.info().num_frames, reader.info().codec) == (12, "av1")
        assert reader.read([11, 0]).shape == (2, 64, 96, 3)
    with pytest.raises(UserError, match="decord"):
        open_video(film, "decord")


@pytest.mark.parametrize(("name", "turned"), [("video_0.mov", 0), ("video_90.mov", 270), ("video_270.mov", 90)])
def test_rotation_is_applied_once(name: str, turned: int, real_videos: Path) -> None:
    with open_video(real_videos / name) as reader:
        info = reader.info()
        frame = reader.read([0])[0]
    assert info.rotation_deg == turned
    assert frame.shape == (info.height, info.width, 3) == ((568, 320, 3) if turned else (320, 568, 3))


def test_frames_are_counted_where_the_container_does_not_say(real_videos: Path) -> None:
    with open_video(real_videos / "flipping_a_pancake.mkv") as reader:
        assert reader.info().num_frames == 310 == sum(1 for _ in reader.frames())


def test_damage_inside_gives_the_frames_before_it_and_then_says_so(real_videos: Path) -> None:
    with open_video(real_videos / "corrupted.mp4", "pyav") as reader:
        given_frames = 0
        with pytest.raises(DataError, match="damaged"):
            for _ in reader.frames():
                given_frames += 1
        assert 0 < given_frames < reader.info().num_frames
        with pytest.raises(DataError, match="damaged"):
            reader.read([reader.info().num_frames - 1])


def test_a_film_cut_short_is_refused() -> None:
    film = encoded("libx264", "mp4", 40, movflags="faststart")
    with pytest.raises(DataError):
        open_video(film[: len(film) // 2])
    with pytest.raises(DataError, match="cut short"), open_video(faststart(film)[:-200], "pyav") as reader:
        reader.info()


def faststart(film: bytes) -> bytes:
    """The same packets with the index in front, so that a cut hits the pictures."""
    file = io.BytesIO()
    with av.open(io.BytesIO(film)) as source, av.open(file, "w", format="mp4") as out:
        out_stream = out.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = out_stream
                out.mux(packet)
    data = file.getvalue()
    at = data.index(b"mdat") - 4
    length = int.from_bytes(data[at : at + 4], "big")
    head, body, index = data[:at], data[at : at + length], bytearray(data[at + length :])
    table = index.index(b"stco")
    for entry in range(int.from_bytes(index[table + 8 : table + 12], "big")):
        place = table + 12 + 4 * entry
        index[place : place + 4] = (int.from_bytes(index[place : place + 4], "big") + len(index)).to_bytes(4, "big")
    return head + bytes(index) + body


def test_what_is_no_video_is_refused(tmp_path: Path) -> None:
    for data in (b"", b"hello", b"\x00" * 5000):
        with pytest.raises(DataError):
            open_video(data)
    with pytest.raises(UserError, match="no video file"):
        open_video(tmp_path / "missing.mp4")


def test_a_playlist_cannot_reach_other_files(tmp_path: Path) -> None:
    (tmp_path / "secret.mp4").write_bytes(mp4(2))
    concat = f"ffconcat version 1.0\nfile {tmp_path / 'secret.mp4'}\n"
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile://{tmp_path / 'secret.mp4'}\n#EXT-X-ENDLIST\n"
    beside = "ffconcat version 1.0\nfile secret.mp4\n"
    for text in (concat, beside, playlist):
        (tmp_path / "list.mp4").write_text(text)
        for source in (text.encode(), tmp_path / "list.mp4"):
            with pytest.raises(DataError):
                open_video(source)


def test_frames_that_are_not_there_are_refused() -> None:
    with open_video(mp4(3)) as reader:
        for index in (-1, 3):
            with pytest.raises(UserError, match="frames 0 to 2"):
                reader.read([index])


def _frame_in_child(reader, queue) -> None:
    queue.put(reader.read([5])[0].tobytes())


@needs_decord
@pytest.mark.parametrize("as_bytes", [True, False])
def test_a_reader_survives_a_fork(as_bytes: bool, tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(mp4())
    reader = open_video(mp4() if as_bytes else tmp_path / "a.mp4")
    expected = reader.read([5])[0].tobytes()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_frame_in_child, args=(reader, queue), daemon=True)
    child.start()
    try:
        assert queue.get(timeout=30) == expected
        child.join(30)
        assert child.exitcode == 0
    finally:
        child.kill()
    assert reader.read([5])[0].tobytes() == expected


def damaged(seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    film = bytearray(mp4(6, 32, 32))
    for _ in range(int(rng.integers(1, 20))):
        film[int(rng.integers(len(film)))] = int(rng.integers(256))
    return bytes(film[: int(rng.integers(len(film) // 2, len(film) + 1))])


def read_all(data: bytes) -> None:
    try:
        with open_video(data, "pyav") as reader:
            assert sum(1 for _ in reader.frames()) == reader.info().num_frames
    except (DataError, UserError):
        pass


@settings(max_examples=40)
@given(st.integers(0, 10**6))
def test_damaged_bytes_give_all_frames_or_a_data_error(seed: int) -> None:
    read_all(damaged(seed))


@pytest.mark.soak
def test_two_thousand_damaged_films_give_all_frames_or_a_data_error() -> None:
    for seed in range(2000):
        read_all(damaged(seed))


def stamped(milliseconds: list[int]) -> bytes:
    """A film in Matroska whose header says 24 frames a second, whatever its time stamps say."""
    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as out:
        stream = out.add_stream("libx264", rate=24)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 1000)
        for pts, picture in zip(milliseconds, moving(len(milliseconds), 64, 96), strict=True):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = pts, Fraction(1, 1000)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return file.getvalue()


def with_cover(*, film: bool) -> bytes:
    """An mp4 that begins with the picture of its cover."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as out:
        cover = out.add_stream("mjpeg", rate=1)
        cover.width, cover.height, cover.pix_fmt = 96, 64, "yuvj420p"
        cover.disposition = Disposition.attached_pic
        picture = av.VideoFrame.from_ndarray(np.full((64, 96, 3), 200, np.uint8), format="rgb24")
        stream = out.add_stream("libx264", rate=12) if film else None
        if stream is not None:
            stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for packet in (*cover.encode(picture.reformat(format="yuvj420p")), *cover.encode(None)):
            out.mux(packet)
        for frame in moving(24, 64, 96) if stream is not None else ():
            out.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        if stream is not None:
            out.mux(stream.encode(None))
    return file.getvalue()


def test_the_rate_is_what_the_time_stamps_say_where_the_container_tells_another() -> None:
    uneven = [40 * index for index in range(24)] + [960 + 120 * index for index in range(24)]
    with open_video(stamped(uneven), "pyav") as reader:
        info = reader.info()
    assert info.fps == pytest.approx(47 / 3.72) and info.duration_s == pytest.approx(3.72 * 48 / 47, abs=0.01)
    with open_video(stamped([round(index * 1000 / 24) for index in range(48)]), "pyav") as reader:
        assert reader.info().fps == 24.0, "stamps in milliseconds are rounded"


def test_a_cover_before_the_film_is_not_taken_for_it() -> None:
    with open_video(with_cover(film=True)) as reader:
        assert (reader.info().num_frames, reader.info().codec, reader.info().fps) == (24, "h264", 12.0)
        assert reader.read([0, 23]).shape == (2, 64, 96, 3)


def test_a_cover_without_a_film_is_refused() -> None:
    with pytest.raises(DataError, match="only cover art"):
        open_video(with_cover(film=False))
