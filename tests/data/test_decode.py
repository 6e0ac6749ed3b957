"""Tests that two decoders agree on index, time stamp and pixels, and that damage gives an error message."""

import io
import multiprocessing
import struct
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from av.stream import Disposition
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_vfm.core.errors import DataError, MissingPackage, UserError
from nemo_vfm.core.optional import available
from nemo_vfm.core.types.media_types import VIDEO_SUFFIXES, Decoder
from nemo_vfm.data.video import library_reader, pyav_reader
from nemo_vfm.data.video.codecs import open_encoder
from nemo_vfm.data.video.decode import open_video
from nemo_vfm.data.video.deinterlace import deinterlace
from nemo_vfm.data.video.library_reader import LibraryReader
from nemo_vfm.data.video.pyav_reader import PyAVReader
from nemo_vfm.data.video.video_info import VideoInfo, holes_in
from tests.data.conftest import moving, mp4
from tests.support import mutations
from tests.support.awkward import film, index_in_front, interlaced, with_hole
from tests.support.broadcast import barcoded, numbers_of
from tests.support.films import pan, write_film
from tests.support.mutations import turned

needs_decord = pytest.mark.skipif(not available("decord"), reason="decord is not installed")
LIBRARIES = [
    pytest.param(name, marks=pytest.mark.skipif(not available(name), reason=f"{name} is not installed"))
    for name in ("decord", "torchcodec")
]


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


def check_agreement(source: Path | bytes, library: Decoder) -> VideoInfo:
    """Same info, and same pixels whichever reader gives them and in whichever order."""
    with open_video(source, "pyav") as base, open_video(source, library) as fast:
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


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    "name",
    ["crush_027.mp4", "dashcam_6.mp4", "flipping_a_pancake.mkv", "sintel_trailer_10s.mp4", "unordered.mov",
     "video_0.mov", "video_90.mov", "video_180.mov", "video_270.mov"],
)  # fmt: skip
@pytest.mark.slow
def test_decoders_agree_on_real_videos(name: str, library: Decoder, real_videos: Path) -> None:
    check_agreement(real_videos / name, library)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("codec", "container"), [("libx264", "mp4"), ("libx264", "mpegts"), ("libvpx-vp9", "webm"), ("mpeg4", "avi")]
)
def test_decoders_agree_on_other_codecs(codec: str, container: str, library: Decoder) -> None:
    assert check_agreement(encoded(codec, container), library).num_frames == 12


@pytest.mark.parametrize("library", LIBRARIES)
def test_decoders_agree_on_our_own_films(library: Decoder) -> None:
    info = check_agreement(mp4(31, 64, 80, 30000 / 1001), library)
    assert info.time_base * (info.pts[1] - info.pts[0]) == Fraction(1001, 30000)
    assert info.duration_s == pytest.approx(31 * 1001 / 30000)


@pytest.mark.parametrize("library", LIBRARIES)
def test_frames_are_found_across_many_keyframes(library: Decoder) -> None:
    film = encoded("libx264", "mp4", 60, g="7", bf="3")
    with open_video(film, "pyav") as base, open_video(film, library) as fast:
        whole = np.stack(list(base.frames()))
        order = np.random.default_rng(0).permutation(60).tolist()
        assert (base.read(order) == whole[order]).all()
        assert all((base.read([index])[0] == whole[index]).all() for index in order[:12])
        assert np.abs(fast.read(order).astype(int) - whole[order]).max() <= 2
        assert isinstance(fast, LibraryReader) and fast._reader is not None, "PyAV stood in"


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_film_on_its_head_is_turned_whatever_its_first_frame_shows(library: Decoder) -> None:
    for first in (0, 1):
        frames = moving(12, 64, 96)
        frames[0] *= np.uint8(first)
        source = turned(film(frames), over=True)
        with open_video(source, "pyav") as base, open_video(source, library) as other:
            assert base.info().rotation_deg == 180
            assert np.abs(base.read([6, 0]).astype(int) - other.read([6, 0])).max() <= 2


def test_unless_another_is_named_pyav_reads() -> None:
    with open_video(mp4()) as reader:
        assert type(reader).__name__ == "PyAVReader"


@needs_decord
def test_what_a_named_library_cannot_read_pyav_reads_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(library_reader, "warn_once", said.append)
    for source in (encoded("libsvtav1", "mp4", preset="12"), fields()):
        with open_video(source, "decord") as reader:
            count = reader.info().num_frames
            assert (reader.read([count - 1, 0]) == open_video(source).read([count - 1, 0])).all()
    assert [text.rpartition(": ")[2] for text in said] == ["codec av1", "interlaced frames"]


@pytest.mark.parametrize("library", ["decord", "torchcodec"])
def test_a_library_that_is_named_and_not_installed_is_an_error(
    library: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setitem(sys.modules, f"{library}.decoders", None)
    with open_video(mp4(), library) as reader, pytest.raises(MissingPackage, match=f"pip install .*{library}"):
        reader.read([0])


def test_torchcodec_without_ffmpeg_is_an_error_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torchcodec").mkdir()
    (tmp_path / "torchcodec" / "__init__.py").write_text("raise RuntimeError('Could not load libtorchcodec')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchcodec"]:
        monkeypatch.delitem(sys.modules, name)
    with open_video(mp4(), "torchcodec") as reader, pytest.raises(MissingPackage, match="apt install ffmpeg"):
        reader.read([0])


def test_any_frame_of_a_short_program_stream_is_read_alone() -> None:
    with open_video(mutations.film("mpeg", "mpeg2video", size=(128, 96))) as reader:
        whole = np.stack(list(reader.frames()))
        for index in range(24):
            assert (reader.read([index])[0] == whole[index]).all(), index


@pytest.mark.parametrize("step", [5, 9, 13, 30])
def test_far_frames_are_found_by_seeking_and_near_ones_by_decoding_on(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = []
    decode = PyAVReader._decode

    def counted(self: PyAVReader, info: VideoInfo, key: int) -> Iterator[tuple[int, av.VideoFrame]]:
        for one in decode(self, info, key):
            decoded.append(one[0])
            yield one

    with open_video(encoded("libx264", "mp4", 120, g="12", bf="2"), "pyav") as reader:
        whole = np.stack(list(reader.frames()))
        monkeypatch.setattr(PyAVReader, "_decode", counted)
        wanted = range(step, 120, step)
        assert (reader.read(wanted) == whole[step::step]).all()
    to_keys = sum(index % 12 + 1 for index in wanted)
    assert len(decoded) <= min(120, to_keys + 5 * len(wanted)), "more than keyframes and seeks explain"


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


def test_a_film_without_its_index_is_refused() -> None:
    film = encoded("libx264", "mp4", 40, movflags="faststart")
    with pytest.raises(DataError):
        open_video(film[: len(film) // 2])


@pytest.mark.parametrize("frames_between", ["0", "3"])
def test_of_a_film_that_is_cut_short_every_whole_frame_is_there(frames_between: str) -> None:
    film = index_in_front(encoded("libx264", "mp4", 114, g="12", bf=frames_between))
    with open_video(film, "pyav") as reader:
        whole = reader.read(range(114))
    begin = film.index(b"mdat") + 4
    for tenth in range(10):
        cut = begin + 2000 + (len(film) - begin - 2000) * tenth // 10 - 1
        packets = sum(packet.size > 0 for packet in demuxed(film[:cut]))
        for decoder in ("pyav", "auto", "decord"):
            with open_video(film[:cut], decoder) as reader:
                info = reader.info()
                assert info.num_frames + info.missing_frames == 114
                assert packets - 5 <= info.num_frames < packets, "but half a one, and those after a gap"
                assert info.stamp(114) - info.pts[0] == 114 * (info.pts[1] - info.pts[0])
                assert (np.stack(list(reader.frames())) == whole[: info.num_frames]).all()
                assert (reader.read([info.num_frames - 1])[0] == whole[info.num_frames - 1]).all()


def demuxed(film: bytes) -> list[av.Packet]:
    with av.open(io.BytesIO(film)) as container:
        return list(container.demux(video=0))


def test_a_film_of_which_no_frame_is_left_is_refused_and_says_that_it_is_cut_short() -> None:
    film = index_in_front(encoded("libx264", "mp4", 12))
    opened = open_video(film[: film.index(b"mdat") + 60], "pyav")
    with opened as reader, pytest.raises(DataError, match="declares 12, so it is truncated"):
        reader.info()


#: By suffix: FFmpeg's name of the container, and a codec that it takes, where they are not the suffix and MPEG-2.
MADE_AS = {
    ".wmv": ("asf", "wmv2"), ".m2ts": ("mpegts",), ".mts": ("mpegts",), ".ts": ("mpegts",), ".mkv": ("matroska",),
    ".y4m": ("yuv4mpegpipe", "wrapped_avframe"), ".ogv": ("ogg", "libvpx"), ".m4v": ("mp4",), ".mpg": ("mpeg",),
    ".webm": ("webm", "libvpx"), ".flv": ("flv", "flv"), ".3gp": ("3gp", "libx264"),
}  # fmt: skip


@pytest.mark.parametrize("suffix", sorted(VIDEO_SUFFIXES))
def test_what_is_taken_for_a_video_can_be_opened(suffix: str, tmp_path: Path) -> None:
    kind, codec, *_ = (*MADE_AS.get(suffix, (suffix[1:],)), "mpeg2video")
    path = tmp_path / f"film{suffix}"
    path.write_bytes(film(moving(12, 144, 176), kind, codec=codec, fps=25))
    with open_video(path) as reader:
        assert reader.info().num_frames == len(list(reader.frames())) == 12
        assert reader.read([11, 3]).shape == (2, 144, 176, 3)


def bars(num_frames: int) -> np.ndarray:
    """Grey bars that move three pixels a field."""
    still = np.tile(np.uint8(127 + 100 * np.sin(np.arange(96) * np.pi / 12))[None, :, None], (64, 1, 3))
    return np.stack([np.roll(still, 3 * t, 1) for t in range(num_frames)])


def fields(**options: str) -> bytes:
    """An interlaced film of 24 frames."""
    return film(interlaced(bars(48)), **options, **{"x264-params": "bff=1"})


@pytest.mark.parametrize(
    ("aspect", "size"), [((4, 3), (128, 64)), ((3, 4), (96, 86)), ((401, 400), (96, 64)), ((9, 1), (96, 64))]
)
def test_pixels_are_made_square(aspect: tuple[int, int], size: tuple[int, int]) -> None:
    with open_video(film(moving(12, 64, 96), aspect=Fraction(*aspect), crf="1")) as reader:
        info = reader.info()
        assert (info.width, info.height) == size
        picture = reader.read([5])[0]
        assert picture.shape == (size[1], size[0], 3)
        expected = cv2.resize(moving(12, 64, 96)[5], size, interpolation=cv2.INTER_CUBIC)
        assert np.abs(picture.astype(int) - expected).mean() < 6


@pytest.mark.parametrize("bf", ["0", "2"])
def test_interlaced_frames_come_out_progressive_and_equal_however_they_are_asked_for(bf: str) -> None:
    data = fields(g="6", bf=bf, crf="1")
    truth = bars(48)[::2].astype(int)
    with av.open(io.BytesIO(data)) as container:
        stored = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    with open_video(data) as reader:
        assert reader.info().is_interlaced and type(reader).__name__ == "PyAVReader"
        whole = np.stack(list(reader.frames()))
        assert len(whole) == 24
        assert np.abs(whole - truth).mean() < 0.6 * np.abs(stored - truth).mean()
        for index in (*range(24), 6, 12, 0, 23):
            assert (reader.read([index])[0] == whole[index]).all(), index
    for index in (0, 6, 7, 18):
        with open_video(data) as reader:
            assert (np.stack(list(reader.frames(index, index + 3))) == whole[index : index + 3]).all()


def test_progressive_frames_are_not_filtered() -> None:
    data = film(moving(12, 64, 96))
    with av.open(io.BytesIO(data)) as container:
        stored = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    with open_video(data, "pyav") as reader:
        assert not reader.info().is_interlaced
        assert (np.stack(list(reader.frames())) == stored).all()


def test_before_damage_the_last_interlaced_frame_is_given_too() -> None:
    def frames():
        with av.open(io.BytesIO(fields())) as container:
            yield from zip(range(5), container.decode(video=0), strict=False)
        raise DataError("here it ends")

    given_numbers = []
    with pytest.raises(DataError, match="here it ends"):
        for number, frame in deinterlace(frames()):
            assert not frame.interlaced_frame
            given_numbers.append(number)
    assert given_numbers == [0, 1, 2, 3, 4]


def test_a_damaged_frame_and_those_predicted_from_it_are_corrupt_up_to_the_next_keyframe() -> None:
    whole_film = encoded("libx264", "mpegts", 60, g="12", bf="2")
    with open_video(whole_film, "pyav") as reader:
        whole = np.stack(list(reader.frames())).astype(int)
        assert not any(reader.is_corrupt(index) for index in range(60))
    with open_video(with_hole(whole_film, 2), "pyav") as reader:
        seen = np.stack(list(reader.frames())).astype(int)
        corrupt = [index for index in range(60) if reader.is_corrupt(index)]
    differ = [index for index in range(60) if np.abs(seen[index] - whole[index]).mean() > 1]
    assert corrupt == list(range(24, 36)) and set(differ) <= set(corrupt) and len(differ) > 6


def test_frames_too_large_for_the_decoder_are_said_to_be_so() -> None:
    header = b"GIF89a" + struct.pack("<HH", 15000, 15000) + b"\x80\x00\x00" + bytes(6)
    picture = b"\x2c" + bytes(4) + struct.pack("<HH", 15000, 15000) + b"\x00\x02\x02\x44\x01\x00\x3b"
    with open_video(header + picture, "pyav") as reader, pytest.raises(DataError, match="more than 67,108,864 pixels"):
        reader.info()


@pytest.mark.parametrize(("kind", "codec"), [("mpegts", "libx264"), ("mpegts", "mpeg2video"), ("mpeg", "mpeg2video")])
def test_recordings_put_behind_each_other_are_read_through_and_a_new_size_is_said(kind: str, codec: str) -> None:
    one = film(moving(24, 64, 96), kind, codec=codec, fps=25, g="12")
    with open_video(one + one, "pyav") as reader:
        whole = list(reader.frames())
        assert len(whole) == reader.info().num_frames > 44
        assert (reader.read([30])[0] == whole[30]).all() and (reader.read([2])[0] == whole[2]).all()
    with open_video(one + film(moving(24, 96, 128), kind, codec=codec, fps=25, g="12"), "pyav") as reader:
        seen = []
        with pytest.raises(DataError, match="changes its frame size from 96x64 to 128x96"):
            for frame in reader.frames():
                seen.append(frame.shape)
        assert len(seen) > 20
        assert reader.read([len(seen), 47]).shape == (2, 96, 128, 3) and reader.read([0, 9]).shape == (2, 64, 96, 3)
        assert {frame.shape for frame in reader.frames(len(seen))} == {(96, 128, 3)}
        with pytest.raises(DataError, match="from 96x64 to 128x96 at frame 47"):
            reader.read([0, 47])


@needs_decord
@pytest.mark.parametrize("kind", ["mp4", "matroska"])
def test_decoders_agree_on_frames_behind_a_new_size(kind: str) -> None:
    file, ticks = io.BytesIO(), 0
    films = [film(moving(24, *size), "mpegts", fps=25, g="12", bf="0") for size in ((64, 96), (96, 128))]
    with av.open(file, "w", format=kind) as out, av.open(io.BytesIO(films[0])) as first:
        stream = out.add_stream_from_template(first.streams.video[0])
        for one in films:
            with av.open(io.BytesIO(one)) as source:
                for packet in source.demux(video=0):
                    if packet.size:
                        packet.pts, packet.dts, packet.stream = ticks, ticks, stream
                        ticks += 3600
                        out.mux(packet)
    with open_video(file.getvalue(), "pyav") as base, open_video(file.getvalue(), "decord") as fast:
        for reader in (base, fast):
            assert reader.info().num_frames == 48 and reader.read([30, 40]).shape == (2, 96, 128, 3)
            with pytest.raises(DataError, match="changes its frame size"):
                reader.read([3, 40])


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


@pytest.mark.parametrize("decoder", ["auto", *LIBRARIES])
@pytest.mark.parametrize("as_bytes", [True, False])
def test_a_reader_survives_a_fork(as_bytes: bool, decoder: Decoder, tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(mp4())
    reader = open_video(mp4() if as_bytes else tmp_path / "a.mp4", decoder)
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


@pytest.mark.parametrize("kind", ["avi", "asf", "mxf"])
def test_frames_come_in_their_order_where_only_the_order_of_decoding_is_stored(kind: str) -> None:
    with open_video(film(barcoded(range(40)), kind, fps=25, g="20", bf="2"), "pyav") as reader:
        info = reader.info()
        assert (info.num_frames, info.missing_frames, info.fps) == (40, 0, 25)
        assert numbers_of(reader.frames()) == list(range(40)) and numbers_of(reader.read([30, 3])) == [30, 3]


def test_the_rate_is_what_the_time_stamps_say_where_the_container_tells_another() -> None:
    uneven = [40 * index for index in range(24)] + [960 + 120 * index for index in range(24)]
    with open_video(stamped(uneven), "pyav") as reader:
        info = reader.info()
    assert info.fps == pytest.approx(47 / 3.72) and info.duration_s == pytest.approx(3.72 * 48 / 47, abs=0.01)
    with open_video(stamped([round(index * 1000 / 24) for index in range(48)]), "pyav") as reader:
        assert reader.info().fps == 24.0, "stamps in milliseconds are rounded"


def test_a_hole_is_longer_than_half_a_second_and_than_five_usual_steps() -> None:
    random = np.random.default_rng(0)
    phone = [33, *random.choice([33, 33, 34, 300], 200).tolist()]
    whole = {
        "a variable rate": phone, "slides of a second": [1000] * 9, "slides": [2000, 3000, 10_000, 4000, 3000],
        "a time-lapse": [20_000] * 9, "half a second": [40] * 9 + [500] + [40] * 9, "one pause alone": [9000],
        "one frame": [],
    }  # fmt: skip
    for name, steps in whole.items():
        assert holes_in([7000, *(7000 + np.cumsum(steps))], Fraction(1, 1000)) == (), name
    broken = {
        "a pause": ([40] * 9 + [501] + [40] * 9, (10,)), "slides that wait": ([1000] * 9 + [5001, 1000], (10,)),
        "a first frame that comes early": ([3000, *[40] * 9], (1,)), "a last one": ([*[40] * 9, 3000], (10,)),
        "several": ([40, 40, 40, 900, 40, 40, 700, 800, 40], (4, 7, 8)),
    }  # fmt: skip
    for name, (steps, holes) in broken.items():
        assert holes_in([0, *np.cumsum(steps)], Fraction(1, 1000)) == holes, name


@pytest.mark.parametrize("pause_ms", [3_000, 50_000])
def test_a_hole_in_the_time_stamps_changes_neither_the_rate_nor_how_long_a_frame_lasts(pause_ms: int) -> None:
    stamps = [40 * index + (pause_ms if index >= 30 else 0) for index in range(48)]
    with open_video(stamped(stamps), "pyav") as reader:
        info = reader.info()
    assert info.fps == pytest.approx(25) and info.holes == (30,) and info.parts() == [(0, 30), (30, 48)]
    assert info.longest_part() == (0, 30) and info.duration_s == pytest.approx((stamps[-1] + 40) / 1000)
    assert [info.end_pts(frame) for frame in (28, 29, 30, 47)] == [1160, 1200, stamps[31], stamps[47] + 40]


def test_a_cover_before_the_film_is_not_taken_for_it() -> None:
    with open_video(with_cover(film=True)) as reader:
        assert (reader.info().num_frames, reader.info().codec, reader.info().fps) == (24, "h264", 12.0)
        assert reader.read([0, 23]).shape == (2, 64, 96, 3)


@pytest.mark.parametrize("kind", ["matroska", "mp4", "mpegts"])
def test_of_several_streams_the_default_one_is_taken_or_else_the_largest_and_never_a_preview(kind: str) -> None:
    small, wide, large = (80, 48), (256, 160), (320, 192)
    cases = [
        ([small, large], None, large), ([large, small], None, large), ([small, large], 0, large),
        ([wide, large], 0, wide), ([large, wide], 1, wide), ([wide, large], None, large),
    ]  # fmt: skip
    for sizes, default, right in cases:
        if (default is None and kind == "mp4") or (default is not None and kind == "mpegts"):
            continue  # the first one becomes the default; there is no word for it
        film = of_streams(sizes, default, kind)
        for decoder in ("pyav", "auto"):
            with open_video(film, decoder) as reader:
                assert (reader.info().width, reader.info().height, reader.info().num_frames) == (*right, 12)
                assert reader.read([0, 11]).shape == (2, right[1], right[0], 3)


def of_streams(sizes: list[tuple[int, int]], default: int | None, kind: str) -> bytes:
    """A film of one second in several sizes."""
    file = io.BytesIO()
    with av.open(file, "w", format=kind) as out:
        streams = [out.add_stream("libx264", rate=12) for _ in sizes]
        for number, (stream, (width, height)) in enumerate(zip(streams, sizes, strict=True)):
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            stream.disposition = Disposition.default if number == default else Disposition(0)
            open_encoder(stream)
        for stream, (width, height) in zip(streams, sizes, strict=True):
            for picture in moving(12, height, width):
                out.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            out.mux(stream.encode(None))
    return file.getvalue()


def test_a_cover_without_a_film_is_refused() -> None:
    with pytest.raises(DataError, match="only cover art"):
        open_video(with_cover(film=False))


def test_a_file_is_walked_over_once_until_it_changes(tmp_path, monkeypatch):
    path = write_film(tmp_path / "a.mp4", pan(0))
    walks = []
    walk = PyAVReader._walk
    monkeypatch.setattr(PyAVReader, "_walk", lambda self: walks.append(self._name) or walk(self))
    pyav_reader._LATEST.clear()

    def seen() -> tuple[VideoInfo, list[bytes]]:
        with open_video(path, "pyav") as reader:
            return reader.info(), [frame.tobytes() for frame in reader.read([7, 0, 3])]

    first = seen()
    assert seen() == first and len(walks) == 1
    write_film(path, pan(1)[:20])
    assert seen()[0].num_frames == 20 and len(walks) == 2
    content = path.read_bytes()
    for _ in range(2):
        with open_video(content, "pyav") as reader:
            assert reader.info().num_frames == 20
    assert len(walks) == 4, "bytes have no name to be remembered by"


def test_damage_is_told_anew_of_a_file_that_is_remembered(tmp_path):
    path = tmp_path / "cut.mp4"
    whole = index_in_front(write_film(tmp_path / "whole.mp4", pan(0)).read_bytes())
    path.write_bytes(whole[: len(whole) * 19 // 20])
    found = []
    for _ in range(2):
        with PyAVReader(path) as reader:
            seen = [index for index, _ in reader.decode_at(range(reader.info().num_frames))]
            found.append((reader.info(), seen, bytes(reader._marks)))
    assert found[0] == found[1] and found[0][0].missing_frames > 0
