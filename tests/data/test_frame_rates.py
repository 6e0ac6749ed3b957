"""Tests that frame rates of 0, infinity or NaN are refused or dropped before they reach a model."""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from nemo_vfm.core.bounds import is_frame_rate
from nemo_vfm.data.batching.bucket import Bucket, Buckets
from nemo_vfm.data.shards.shard_files import ShardWriter
from nemo_vfm.data.sources.shard_data import ShardData
from nemo_vfm.models.blocks.video_tokens import Rope
from nemo_vfm.models.dit import DiT
from nemo_vfm.synth.make_shapes import MakeVideos
from nemo_vfm.synth.sample_videos import Sample
from nemo_vfm.train.callbacks.preview import Preview
from nemo_vfm.train.reconstruct.reconstruction_quality import CompareReconstructions
from tests.data.conftest import mp4

BAD = [0, 0.0, -8.0, math.inf, -math.inf, math.nan, 1e-40, 1e39, None, "8", True]
NUMBERS = [value for value in BAD if type(value) in (int, float)]
SHAPE = [4, 1, 2, 2]


def latents(folder: Path, fps: object, *, in_index: bool) -> ShardData:
    """Four samples, of which the last has this frame rate: in the index, or in the json alone."""
    with ShardWriter(folder) as writer:
        for number in range(4):
            rate = {"fps": fps if number == 3 else 8.0}
            index = {"latent_shape": SHAPE, "caption": "", **(rate if in_index else {})}
            text = save({"text": torch.ones(1, 4), "mask": torch.tensor([True])})
            members = {"latents.safetensors": save({"latents": torch.ones(SHAPE)}), "text.safetensors": text}
            writer.write(f"{number:032x}", members | {"json": json.dumps(rate).encode()}, index)
    return ShardData(shards=folder, batch_size=1)


@pytest.mark.parametrize("fps", BAD)
def test_a_sample_whose_rate_cannot_be_never_reaches_a_model(fps: object, tmp_path: Path) -> None:
    """Known beforehand it is dropped with a reason; found while reading it keeps its place with weight 0."""
    for in_index in (True, False):
        if in_index and isinstance(fps, float) and not math.isfinite(fps):
            continue  # the writer of shards refuses these in an index
        data = latents(tmp_path / str(in_index), fps, in_index=in_index)
        data.start(seed=0, first_batch=0)
        stream = iter(data.train_dataloader())
        batches = [next(stream) for _ in range(8)]
        assert all(batch.fps_B.isfinite().all() and (batch.fps_B > 0).all() for batch in batches)
        seen = {int(key, 16): float(batch.weight_B) for batch in batches for key in batch.keys}
        assert seen == {0: 1.0, 1: 1.0, 2: 1.0} | ({} if in_index else {3: 0.0})


def test_a_dropped_sample_is_said_with_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    latents(tmp_path, 0, in_index=True).num_train_samples()
    captured = capsys.readouterr()
    assert "impossible frame rate" in captured.out + captured.err


@pytest.mark.parametrize("fps", NUMBERS)
def test_a_clip_whose_rate_cannot_be_fits_no_bucket(fps: float) -> None:
    for bucket in (Bucket(width=64, height=64, num_frames=9), Bucket(width=64, height=64, num_frames=9, fps=8)):
        assigned = Buckets(buckets={"only": bucket}).assign(64, 64, 99, fps)
        assert assigned == (None, "impossible frame rate")


def test_a_film_with_a_wrong_rate_in_its_index_is_left_out(tmp_path: Path) -> None:
    with ShardWriter(tmp_path) as writer:
        for number, fps in enumerate([8.0, 0]):
            facts = {"width": 80, "height": 64, "num_frames": 12, "fps": fps, "caption": ""}
            writer.write(f"{number:032x}", {"mp4": mp4()}, facts)
    buckets = Buckets(buckets={"only": Bucket(width=32, height=32, num_frames=5)})
    assert ShardData(shards=tmp_path, batch_size=1, buckets=buckets).num_train_samples() == 1


SIZES = {"num_frames": 9, "height_px": 32, "width_px": 32}
DOORS = {
    "rope": lambda fps: Rope(12, base_fps=fps),
    "dit": lambda fps: DiT(in_channels=4, text_dim=8, width=24, depth=1, heads=2, base_fps=fps),
    "preview": lambda fps: Preview(pipeline=None, prompts=["x"], every_steps=1, fps=fps, **SIZES),
    "sample": lambda fps: Sample(model=None, checkpoint=None, pipeline=None, prompts=["x"], fps=fps, **SIZES),
    "shapes": lambda fps: MakeVideos(fps=fps),
    "reconstructions": lambda fps: CompareReconstructions(every_steps=1, fps=fps),
}  # fmt: skip


@pytest.mark.parametrize("door", DOORS)
def test_a_rate_in_a_recipe_that_cannot_be_is_refused_by_the_constructor(door: str) -> None:
    for fps in NUMBERS:
        with pytest.raises(ValueError, match=r"at (least|most)"):
            DOORS[door](fps)
    DOORS[door](24)


@pytest.mark.parametrize("fps", [1e-6, 0.01, 1, 23.976, 1000, 1e6])
def test_rates_that_are_accepted_give_finite_positions(fps: float) -> None:
    cos, sin = Rope(12).table((3, 2, 2), torch.tensor([fps]))
    assert is_frame_rate(fps) and cos.isfinite().all() and sin.isfinite().all()
