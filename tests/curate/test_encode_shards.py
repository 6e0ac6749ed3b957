"""Tests latent shards made from clip shards: shapes, windows, reasons, and what is never written."""

import inspect
import json
import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load

from nemo_vfm.core.errors import NothingKept, UserError
from nemo_vfm.core.types.job import Run
from nemo_vfm.curate.encode_shards import EncodeShards
from nemo_vfm.data.batching.bucket import Bucket, Buckets
from nemo_vfm.data.shards.shard_files import ShardSet
from nemo_vfm.data.video.decode import open_video
from nemo_vfm.data.video.fit_to_bucket import frame_indices, video_to_bucket, window_indices
from tests.support.films import job, pan, write_film


class _Mean:
    """A codec that keeps one number of each 8x8 block and frame; `poison` makes it ill."""

    def __init__(self, poison=None):
        self.poison, self.calls = poison, 0

    def encode(self, video_BCTHW):
        self.calls += 1
        latents = torch.nn.functional.avg_pool3d(video_BCTHW, (1, 8, 8))
        return latents if self.poison is None else latents.fill_(self.poison)

    def decode(self, latents_BCTHW):
        raise AssertionError("encoding never decodes latents")

    def latent_shape(self, num_frames, height, width):
        if height % 8 or width % 8:
            raise ValueError(f"{width}x{height} is not divisible by 8")
        return 3, num_frames, height // 8, width // 8

    def fingerprint(self):
        return f"mean {self.poison}"


class _Letters:
    """A text encoder whose embedding says which caption it was."""

    def encode(self, captions):
        rows = [[float(ord(letter)) for letter in caption.ljust(8)[:8]] for caption in captions]
        return torch.tensor(rows)[..., None], torch.ones(len(captions), 8, dtype=torch.bool)

    def text_shape(self):
        return 8, 1

    def fingerprint(self):
        return "letters"


BUCKETS = {"wide": Bucket(64, 48, 9, 6.0)}


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    folder = tmp_path_factory.mktemp("films")
    for seed, name in enumerate(("red", "green", "blue")):
        write_film(folder / f"{name}.mp4", pan(seed + 1, (20, 40, 13)[seed]))
        (folder / f"{name}.txt").write_text(name)
    job(folder).run(Run(folder / "run"))
    return folder / "run/shards"


def encode(clips, folder, **changes):
    arguments = {"codec": _Mean(), "text_encoder": _Letters(), "buckets": Buckets(buckets=BUCKETS)} | changes
    job = EncodeShards(shards=clips, **arguments)
    return job, job.run(Run(folder))


def samples(folder):
    shards = ShardSet(folder / "shards")
    return {entry.key: (entry, lambda ext, entry=entry: shards.read(entry, ext)) for entry in shards.entries}


def test_latents_are_the_codecs_of_the_clips_pixels_and_captions_are_not_swapped(clips, tmp_path):
    encode(clips, tmp_path)
    sources = ShardSet(clips)
    found = samples(tmp_path)
    assert len(found) == 2
    for source in sources.entries:
        if source.index["num_frames"] < BUCKETS["wide"].frames_needed(12.0):
            continue
        entry, read = found[f"{source.key}-w0"]
        pixels, fps = video_to_bucket(sources.read(source, "mp4"), BUCKETS["wide"], "pyav")
        expected = _Mean().encode(torch.from_numpy(pixels).permute(3, 0, 1, 2)[None].float() / 127.5 - 1)[0]
        latents, text = load(read("latents.safetensors"))["latents"], load(read("text.safetensors"))
        assert torch.allclose(latents, expected, atol=0.02)
        assert bytes(text["text"][:, 0].byte().tolist()).decode().strip() == source.index["caption"]
        assert (entry.index["latent_shape"], entry.index["bucket"]) == ([3, 9, 6, 8], "wide")
        assert (entry.index["fps"], entry.index["num_frames"], fps) == (6.0, 9, 6.0)
        assert json.loads(read("json"))["codec"] == "mean None"
        assert text["mask"].dtype == torch.bool


def test_a_clip_that_fits_no_bucket_is_counted_with_the_reason(clips, tmp_path):
    _, outcome = encode(clips, tmp_path)
    report = json.loads((tmp_path / "encode.json").read_text())
    assert (report["clips"], report["samples"], report["by_bucket"]) == (3, 2, {"wide": 2})
    assert report["unbinned"] == {"too short for every bucket": 1}
    assert outcome.summary.endswith("of 3 clips; 1 gave none: 1 too short for every bucket")


def test_a_long_clip_gives_several_windows(clips, tmp_path):
    encode(clips, tmp_path, windows_per_clip=3)
    windows = [key.rpartition("-w")[2] for key in samples(tmp_path)]
    assert sorted(windows) == ["0", "0", "1", "1", "2", "2"]


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_latents_that_are_not_numbers_are_never_written(clips, tmp_path, poison):
    with pytest.raises(NothingKept, match="hold NaN or infinity"):
        encode(clips, tmp_path, codec=_Mean(poison))
    assert not (tmp_path / "shards").exists()


def test_numbers_too_large_for_half_precision_are_refused(clips, tmp_path):
    encode(clips, tmp_path / "a", codec=_Mean(1e6))
    with pytest.raises(NothingKept, match="try dtype=fp32"):
        encode(clips, tmp_path / "b", codec=_Mean(1e6), dtype="fp16")


def test_every_setting_that_changes_an_output_is_part_of_what_it_is_made_of(clips, tmp_path):
    class Others(_Letters):
        def fingerprint(self):
            return "others"

    shutil.copytree(clips, tmp_path / "shards")
    marker = tmp_path / "shards/shards.json"
    marker.write_text(marker.read_text() + " ")
    changes = {
        "codec": _Mean(1.0), "text_encoder": Others(), "dtype": "bf16", "windows_per_clip": 2, "samples_per_shard": 7,
        "buckets": Buckets(buckets={"wide": Bucket(64, 48, 9, 12.0)}), "shards": tmp_path / "shards",
    }  # fmt: skip
    assert changes.keys() == inspect.signature(EncodeShards).parameters.keys() - {"copy_to"}
    base = {"shards": clips, "codec": _Mean(), "text_encoder": _Letters(), "buckets": Buckets(buckets=BUCKETS)}
    states = [EncodeShards(**base)._state(), *(EncodeShards(**base | {n: c})._state() for n, c in changes.items())]
    assert len(set(states)) == len(states) and EncodeShards(**base)._state() == states[0]


def test_a_second_run_does_nothing_and_another_setting_starts_again(clips, tmp_path):
    encode(clips, tmp_path)
    before = (tmp_path / "shards/shards.json").read_bytes()
    job, outcome = encode(clips, tmp_path)
    assert outcome.did_nothing
    assert job.codec.calls == 0
    _, outcome = encode(clips, tmp_path, dtype="bf16")
    assert not outcome.did_nothing
    assert (tmp_path / "shards/shards.json").read_bytes() != before


def test_what_was_encoded_before_a_stop_is_used_and_gives_the_same_bytes(clips, tmp_path, monkeypatch):
    encode(clips, tmp_path / "whole")

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("nemo_vfm.curate.encode_shards.replaced_folder", stop)
        with pytest.raises(KeyboardInterrupt):
            encode(clips, tmp_path / "stopped")
    job, _ = encode(clips, tmp_path / "stopped")
    assert job.codec.calls == 0
    whole, stopped = ((tmp_path / name / "shards/shards.json").read_bytes() for name in ("whole", "stopped"))
    assert whole == stopped


def test_a_bucket_that_does_not_fit_the_codec_is_refused_before_any_work(clips):
    with pytest.raises(ValueError, match=r"bucket 'odd' does not fit the codec: 60x48"):
        EncodeShards(
            shards=clips, codec=_Mean(), text_encoder=_Letters(), buckets=Buckets(buckets={"odd": Bucket(60, 48, 9)})
        )


def test_clips_that_are_not_there_are_the_users_to_fix(tmp_path):
    with pytest.raises(UserError):
        encode(tmp_path / "absent", tmp_path)


@given(st.integers(1, 200), st.sampled_from([12.0, 24.0, 29.97]), st.integers(1, 6))
def test_windows_lie_inside_the_clip_and_differ(num_frames, fps, max_windows):
    bucket = Bucket(64, 48, 9, 8.0)
    if num_frames < bucket.frames_needed(fps):
        return
    found = window_indices(num_frames, fps, bucket, max_windows)
    assert 1 <= len(found) <= max_windows
    assert len({tuple(window) for window in found}) == len(found)
    assert all(len(window) == 9 and window[0] >= 0 and window[-1] < num_frames for window in found)
    middle = frame_indices(num_frames, fps, bucket)
    assert abs(middle[0] - (num_frames - 1 - middle[-1])) <= 1


def test_a_clip_is_decoded_exactly(clips):
    shards = ShardSet(clips)
    with open_video(shards.read(shards.entries[0], "mp4")) as reader:
        assert reader.info().num_frames == shards.entries[0].index["num_frames"]
