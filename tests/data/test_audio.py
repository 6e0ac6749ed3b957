"""Tests that the tones of a video come out at their own times."""

import os
from pathlib import Path

import numpy as np
import pytest

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.data.video.audio import clip_audio, read_audio
from nemo_vfm.data.video.decode import open_video
from tests.support.broadcast import with_counters_from, with_stamps_moved
from tests.support.mutations import late_stream
from tests.support.sounding import RATE, TONES, pitch, sounding_film


@pytest.fixture(scope="module", params=["a.mp4", "a.mkv", "a.mov"])
def film(request, tmp_path_factory):
    return sounding_film(tmp_path_factory.mktemp("films") / request.param)


@pytest.mark.parametrize("rate", [16_000, 8_000, 22_050])
@pytest.mark.parametrize("second", range(4))
def test_each_second_sounds_as_it_was_written(film, second, rate):
    samples = read_audio(film, second + 0.1, second + 0.9, rate=rate)
    assert samples.shape == (round(0.8 * rate),) and samples.dtype == np.float32
    assert pitch(samples, rate) == pytest.approx(TONES[second], rel=0.01)


def test_a_span_is_the_same_piece_of_sound_as_inside_a_longer_one(film):
    whole = read_audio(film, 0.0, 4.0)
    part = read_audio(film, 2.3, 3.1)
    inside = whole[round(2.3 * 16_000) : round(3.1 * 16_000)]
    assert np.abs(part - inside).max() < 0.02 and np.abs(inside).max() > 0.1


def test_the_change_of_tone_is_where_the_second_changes(film):
    samples = read_audio(film, 0.5, 1.5)
    middle = len(samples) // 2
    assert pitch(samples[: middle - 500], 16_000) == pytest.approx(220, rel=0.02)
    assert pitch(samples[middle + 500 :], 16_000) == pytest.approx(440, rel=0.02)


def test_sound_that_begins_late_is_silence_before(tmp_path):
    film = sounding_film(tmp_path / "late.mkv", late_s=1.0)
    samples = read_audio(film, 0.0, 2.0)
    assert np.abs(samples[:15_000]).max() < 0.01 and np.abs(samples[17_000:]).max() > 0.2


def test_beyond_the_end_is_silence(film):
    samples = read_audio(film, 3.5, 6.0)
    assert len(samples) == 40_000 and np.abs(samples[12_000:]).max() == 0.0 and np.abs(samples[:6_000]).max() > 0.2


def test_a_film_without_sound_has_none(tmp_path):
    assert read_audio(sounding_film(tmp_path / "a.mp4", silent=True), 0.0, 1.0) is None


@pytest.mark.parametrize("span", [(1.0, 1.0), (2.0, 1.0), (0.0, 1e9), (0.0, float("nan"))])
def test_a_span_that_cannot_be_is_refused(film, span):
    with pytest.raises(UserError, match="cannot be read from the audio"):
        read_audio(film, *span)


def test_a_damaged_file_and_an_absent_one_are_said(tmp_path):
    (tmp_path / "a.mp4").write_bytes(b"no video")
    with pytest.raises(DataError, match=r"a\.mp4 cannot be decoded"):
        read_audio(tmp_path / "a.mp4", 0.0, 1.0)
    with pytest.raises(UserError, match="there is no file"):
        read_audio(tmp_path / "b.mp4", 0.0, 1.0)


def test_recordings_put_together_sound_with_their_pictures_also_on_a_clock_that_goes_round(tmp_path):
    first = sounding_film(tmp_path / "first.ts", TONES).read_bytes()
    second = sounding_film(tmp_path / "second.ts", TONES[::-1]).read_bytes()
    films = {
        "joined.ts": first + with_counters_from(second, 5) + second,
        "wrapped.ts": with_stamps_moved(first, (1 << 33) - 90_000),
    }
    for name, film in films.items():
        (tmp_path / name).write_bytes(film)
        with open_video(tmp_path / name, "pyav") as reader:
            info = reader.info()
        tones = TONES if name == "wrapped.ts" else [*TONES, *TONES[::-1], *TONES[::-1]]
        assert info.num_frames == 12 * len(tones) and (info.pts[0] < 0) == (name == "wrapped.ts")
        for second_s, hertz in enumerate(tones):
            start_s = float(info.pts[12 * second_s] * info.time_base)
            samples = read_audio(tmp_path / name, start_s + 0.1, start_s + 0.9)
            assert pitch(samples, 16_000) == pytest.approx(hertz, rel=0.01)
            with clip_audio(tmp_path / name, start_s, start_s + 1, keep=True) as audio:
                assert audio.kind == "copied" and sum(packet.size for packet in audio.packets) > 1000
                assert len(audio.packets) == pytest.approx(RATE / 1024, abs=2.1)


def test_a_stream_that_begins_on_the_way_is_left_out_or_said(tmp_path):
    film = sounding_film(tmp_path / "a.ts")
    film.write_bytes(film.read_bytes() + late_stream())
    try:  # which of the two is chance, see tests/security/test_media.py
        samples = read_audio(film, 0.0, 60.0)
    except DataError as error:
        assert "a.ts starts another stream" in str(error)
    else:
        assert samples is not None and samples[:16_000].any()


def test_a_playlist_that_calls_itself_a_video_opens_nothing(tmp_path):
    canary = sounding_film(tmp_path / "canary.mp4")
    for text in (f"#EXTM3U\n#EXTINF:4,\n{canary}\n", f"ffconcat version 1.0\nfile {canary.name}\n"):
        (tmp_path / "a.mp4").write_text(text)
        with pytest.raises(DataError):
            read_audio(tmp_path / "a.mp4", 0.0, 1.0)


@pytest.mark.skipif("NEMO_VFM_TEST_DATA" not in os.environ, reason="real videos: set NEMO_VFM_TEST_DATA")
def test_real_films_sound_at_any_time():
    heard = 0
    for path in sorted(Path(os.environ["NEMO_VFM_TEST_DATA"]).rglob("*.mp4")):
        samples = read_audio(path, 1.0, 3.0)
        heard += samples is not None and len(samples) == 32_000 and bool(np.abs(samples).max() > 1e-3)
    assert heard >= 1
