"""Tests hostile media: files that refer to others, names that look like commands, damage of every kind."""

import resource
import struct
import urllib.request

import pytest

from nemo_vfm.core.errors import DataError
from nemo_vfm.data.video.decode import open_video, read_all
from nemo_vfm.data.video.video_info import MAX_FRAME_PX
from tests.support.canary import Opened, called
from tests.support.mutations import crafted, film, late_stream, odd, reaching, sound

FAST = (("preset", "ultrafast"),)


@pytest.fixture
def secret(tmp_path):
    """A film that no other film may open, and who did."""
    path = tmp_path / "secret.ts"
    path.write_bytes(film("mpegts", num_frames=7, seed=99, options=FAST))
    watch = Opened(path)
    yield path, watch
    watch.close()


def every_way(path):
    """Open a file as it is named and as bytes, with each decoder, and look at it all; None where it is refused.

    The number is that of the frames that are there, and of those that are known to be missing.
    """
    for source in (path, path.read_bytes()):
        for decoder in ("pyav", "auto"):
            try:
                with open_video(source, decoder) as reader:
                    count = reader.info().num_frames
                    reader.read([0, count - 1])
                    sum(1 for _ in reader.frames())
                    yield count + reader.info().missing_frames
            except DataError:
                yield None


def test_the_canaries_sing(secret):
    path, watch = secret
    read_all(path)
    assert watch.count() > 0
    with called() as (address, heard):
        with pytest.raises(OSError, match="404"):
            urllib.request.urlopen(address)
        assert heard


@pytest.mark.slow
@pytest.mark.parametrize("behind", ["nothing", "a stream"])
@pytest.mark.parametrize("ending", [".mp4", ".ts", ".m3u8"])
def test_nothing_inside_a_file_opens_another_or_an_address(ending, behind, secret, tmp_path):
    path, watch = secret
    stream = {"nothing": b"", "a stream": b"\n" + sound()["ts"][1]}[behind]
    with called() as (address, heard):
        for target in (str(path), f"file:{path}", path.name, address):
            for kind, content in reaching(target).items():
                evil = tmp_path / f"evil{ending}"
                evil.write_bytes(content + stream)
                watch.count()
                found = list(every_way(evil))
                assert 7 not in found, (kind, target)
                assert watch.count() == 0, (kind, target)
        assert not heard


def test_a_playlist_before_a_stream_is_not_given_to_decord(secret, tmp_path):
    """decord's FFmpeg took such a file for a playlist, and read the film that it names."""
    path, watch = secret
    evil = tmp_path / "evil.mp4"
    evil.write_bytes(reaching(str(path))["hls"] + b"\n" + sound()["ts"][1])
    assert set(every_way(evil)) == {24}
    assert watch.count() == 0


@pytest.mark.parametrize(
    "mutant", list(odd()), ids=lambda mutant: mutant.name.encode("ascii", "backslashreplace").decode()
)
def test_odd_films_and_odd_names_are_read(mutant, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / mutant.name
    path.write_bytes(mutant.content)
    assert set(every_way(path)) == {1 if mutant.kind == "one frame" else 24}
    assert [inside.name for inside in tmp_path.iterdir()] == [mutant.name]


@pytest.mark.parametrize("mutant", list(crafted()), ids=lambda mutant: mutant.kind)
def test_what_is_damaged_on_purpose_gives_all_frames_or_a_data_error(mutant, tmp_path):
    path = tmp_path / mutant.name
    path.write_bytes(mutant.content)
    assert set(every_way(path)) <= {None, 24}


def test_a_stream_that_begins_on_the_way_is_left_out_or_said_and_is_no_index_error():
    # Which of the two is chance: PyAV 18 looks a new stream up in a byte beyond its table of wanted streams.
    with open_video(late_stream(), "pyav") as reader:
        try:
            assert reader.info().num_frames == 24
        except DataError as error:
            assert "another stream midway" in str(error)


def growing(side_px):
    """VP8 whose later pictures say that they are larger than its header says."""
    content = bytearray(film("ivf", "libvpx", num_frames=6, options=(("deadline", "realtime"), ("g", "1"))))
    place = 32
    for number in range(6):
        (size,) = struct.unpack_from("<I", content, place)
        if number >= 2:
            assert content[place + 15 : place + 18] == b"\x9d\x01\x2a", "not a key picture"
            struct.pack_into("<HH", content, place + 18, side_px, side_px)
        place += 12 + size
    return bytes(content)


def test_a_picture_larger_than_the_header_says_takes_no_memory():
    side_px = 16_000
    assert side_px**2 > MAX_FRAME_PX
    content = growing(side_px)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with open_video(content, "pyav") as reader, pytest.raises(DataError):
        list(reader.frames())
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < 64e6, "1.5 bytes a pixel would be 384 MB"
