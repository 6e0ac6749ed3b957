"""Tests that a blend keeps its weights at every g, is a function of (seed, g), and gives each source exact epochs."""

import inspect
from collections import Counter
from fractions import Fraction
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import cv2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.training_data import HasBatchSizes, TrainingData
from nemo_vfm.data.batching.bucket import Bucket, Buckets
from nemo_vfm.data.batching.faults import Fault
from nemo_vfm.data.batching.weighted_turns import WeightedTurns
from nemo_vfm.data.loader.batch_loader import Batches
from nemo_vfm.data.loader.shared_fetch import UniqueBatches
from nemo_vfm.data.shards.shard_cache import ShardCache
from nemo_vfm.data.shards.shard_files import ShardWriter
from nemo_vfm.data.sources.blend import Blend, BlendSource
from nemo_vfm.data.sources.packed import PackedLatents
from nemo_vfm.data.sources.piped import PipedTars
from nemo_vfm.data.sources.shard_data import ShardData
from nemo_vfm.data.sources.streamed import StreamedTars
from nemo_vfm.data.sources.video_folder import VideoFolder
from nemo_vfm.data.sources.video_table import VideoTable
from tests.data.conftest import LatentShards, moving, mp4
from tests.data.test_shard_data import LONG, SMALL, contents


@settings(max_examples=60)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(0, 99))
def test_no_source_is_ever_a_whole_batch_from_its_weight(weights: list[int], seed: int) -> None:
    turns = WeightedTurns([Fraction(weight) for weight in weights], seed=seed)
    counts = [0] * len(weights)
    limit = 1 - Fraction(1, max(2 * len(weights) - 2, 1)) if len(weights) > 1 else Fraction(0)
    for g in range(2 * turns.cycle):
        which, number = turns.turn(g)
        assert number == counts[which] == turns.count(which, g)
        counts[which] += 1
        assert max(abs(n - share * (g + 1)) for n, share in zip(counts, turns.shares, strict=True)) <= limit


def test_the_seed_decides_among_equals() -> None:
    assert len({WeightedTurns([Fraction(1)] * 3, seed=seed).turn(0)[0] for seed in range(20)}) == 3


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf"), 0.123456789])
def test_weights_that_cannot_be_honoured_are_refused(weight: float, tmp_path: Path) -> None:
    data = ShardData(shards=tmp_path, batch_size=1)
    with pytest.raises(ValueError, match="weight"):
        Blend(sources={"a": BlendSource(data, weight), "b": BlendSource(data, 1.0)})


def blend(folder: dict[str, Path], **changes: int) -> Blend:
    weights, sizes = {"films": 0.7, "stills": 0.3}, {"films": 2, "stills": 4}
    return Blend(
        sources={
            name: BlendSource(ShardData(shards=folder[name], batch_size=sizes[name], val_fraction=0.2), weights[name])
            for name in folder
        },
        **changes,  # type: ignore[arg-type]
    )


@pytest.fixture
def folders(latent_shards: LatentShards) -> dict[str, Path]:
    return {"films": latent_shards([LONG] * 9, name="films"), "stills": latent_shards([SMALL] * 21, name="stills")}


def take(data: Blend, count: int, *, first: int = 0, rank: int = 0, num_ranks: int = 1) -> list[Batch]:
    data.start(seed=3, first_batch=first, rank=rank, num_ranks=num_ranks)
    return list(islice(data.train_dataloader(), count))


def test_a_blend_is_training_data_with_batch_sizes(folders: dict[str, Path]) -> None:
    data = blend(folders)
    assert isinstance(data, TrainingData) and isinstance(data, HasBatchSizes)
    assert data.batch_sizes() == {"sources.films.data.batch_size": 2, "sources.stills.data.batch_size": 4}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_any_resume_gives_the_tail_of_the_whole(folders: dict[str, Path], num_workers: int) -> None:
    whole = contents(take(blend(folders), 24))
    assert [row[0] for row in whole] == list(range(24))
    for first in (0, 1, 7, 19):
        assert contents(take(blend(folders, num_workers=num_workers), 24 - first, first=first)) == whole[first:]


def test_the_ranks_slices_make_up_the_global_batch(folders: dict[str, Path]) -> None:
    whole, parts = take(blend(folders), 12), [take(blend(folders), 12, rank=rank, num_ranks=2) for rank in (0, 1)]
    for batch, one, two in zip(whole, *parts, strict=True):
        assert one.keys + two.keys == batch.keys


def test_every_source_keeps_its_own_epochs(folders: dict[str, Path]) -> None:
    data = blend(folders)
    batches = take(data, 80)
    for frames, name in ((3, "films"), (1, "stills")):
        keys = [key for batch in batches if batch.latents_BCTHW.shape[2] == frames for key in batch.keys]
        count = data.sources[name].data.num_train_samples()
        assert count and all(len(set(keys[at : at + count])) == count for at in range(0, len(keys) - count, count))


def test_an_epoch_lasts_until_the_slowest_source_was_seen_once(folders: dict[str, Path]) -> None:
    data = blend(folders)
    batches = take(data, 200)
    needed = {name: source.data.num_train_samples() for name, source in data.sources.items()}
    assert data.batches_per_epoch() == pytest.approx(max(needed["films"] / 2 / 0.7, needed["stills"] / 4 / 0.3))
    epoch = batches[: int(data.batches_per_epoch() + 1 + 1 / 0.3)]  # a source may be one batch behind its weight
    seen: Counter[str] = Counter()
    for frames, name in ((3, "films"), (1, "stills")):
        seen[name] = len({key for b in epoch if b.latents_BCTHW.shape[2] == frames for key in b.keys})
    assert seen == needed
    samples = sum(len(batch.keys) for batch in batches)
    assert data.num_train_samples() / data.batches_per_epoch() == pytest.approx(samples / 200, rel=0.02)


def test_validation_covers_every_source_and_never_what_is_trained_on(folders: dict[str, Path]) -> None:
    data = blend(folders)
    trained = {(b.latents_BCTHW.shape[2], key) for b in take(data, 60) for key in b.keys}
    held_out = [(b.latents_BCTHW.shape[2], key) for b in data.val_dataloader() for key in b.keys]
    assert {frames for frames, _ in held_out} == {1, 3}
    assert not trained & set(held_out) and len(trained) + len(held_out) == 30
    assert [b.index for b in data.val_dataloader()] == list(range(len(list(data.val_dataloader()))))


def test_a_source_with_workers_of_its_own_is_refused(folders: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match="sets num_workers; set it on the blend"):
        Blend(sources={"films": BlendSource(ShardData(shards=folders["films"], batch_size=2, num_workers=1))})


@pytest.mark.parametrize("kind", ["shards", "packed", "blend", "together"])
def test_what_is_said_of_reading_ahead_reaches_the_reader(
    kind: str, latent_shards: LatentShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: dict[str, Any] = {"num_workers": 3, "max_bad_in_a_row": 5, "max_ahead_gb": 2e-6, "max_memory_share": 0.25}
    given: dict[str, Any] = {}
    for reader in (Batches, UniqueBatches):
        monkeypatch.setattr(reader, "__init__", lambda self, *parts, **settings: given.update(settings))
    shards = partial(ShardData, shards=latent_shards([SMALL] * 6), batch_size=2)
    data: TrainingData = (
        Blend(sources={"all": BlendSource(shards())}, **said) if kind == "blend" else
        PackedLatents(data=shards(**said), budget_tokens=8) if kind == "packed" else shards(**said)
    )  # fmt: skip
    if kind == "together":
        assert isinstance(data, ShardData)
        data.share_with(object())  # type: ignore[arg-type]  # nothing is exchanged
    data.start(seed=0, first_batch=7)
    data.train_dataloader()
    given["faults"].count([Fault("key", "shard", "cut")] * 4)
    with pytest.raises(DataError, match="5 bad samples in a row"):
        given.pop("faults").count([Fault("key", "shard", "cut")])
    of_processes = {} if kind == "together" else {"max_memory_share": 0.25, "timeout_s": 600.0}
    assert given == {"first": 7, "num_workers": 3, "max_ahead_bytes": 2000} | of_processes


def test_every_way_to_read_keeps_each_setting_that_it_is_given() -> None:
    """Arguments that are handed on to a base are lost where a name is left out."""
    given = {
        "batch_size": 6, "num_workers": 2, "val_fraction": 0.25, "shuffle": False, "max_bad_in_a_row": 5, "packs": 3,
        "max_ahead_gb": 1.5, "max_memory_share": 0.25, "verify": True, "shuffle_buffer": 7, "max_member_mb": 2.0,
        "counts": Path("counts.json"), "index": Path("index.json"), "bucket": Bucket(8, 8, 1), "budget_tokens": 9,
        "buckets": Buckets(buckets={"b": Bucket(8, 8, 1)}), "root": Path("films"), "video": "v", "caption": None,
        "cache": ShardCache(folder=Path("cache"), max_gb=1), "patch": (1, 1, 1), "lookahead": 8, "packed": False,
    }  # fmt: skip
    own: dict[type, dict[str, Any]] = {
        ShardData: {"shards": Path("x")}, VideoFolder: {"path": Path("x")}, VideoTable: {"path": Path("x.csv")},
        StreamedTars: {"tars": Path("x")}, PipedTars: {"commands": ["true"]},
        PackedLatents: {"data": ShardData(shards=Path("x"), batch_size=1)},
    }  # fmt: skip
    for kind, needed in own.items():
        said = {name: given[name] for name in inspect.signature(kind).parameters if name in given}
        data = kind(**needed, **said)
        kept = {name: getattr(data, name) for name in said if hasattr(data, name)}
        assert kept == {name: said[name] for name in kept} and said.keys() - kept.keys() <= {"max_bad_in_a_row"}
        with pytest.raises(DataError, match="5 bad" if "max_bad_in_a_row" in said else "16 bad"):
            data.faults.count([Fault("key", "shard", "cut")] * 16)


def test_a_blend_may_be_a_source(folders: dict[str, Path]) -> None:
    inner = blend(folders)
    outer = Blend(
        sources={"both": BlendSource(inner, 1), "more": BlendSource(ShardData(shards=folders["films"], batch_size=2))}
    )
    frames = [batch.latents_BCTHW.shape[2] for batch in take(outer, 200)]
    assert frames.count(1) == pytest.approx(200 * 0.5 * 0.3, abs=2)


def test_images_and_videos_take_turns_in_a_training_step_of_the_tiny_model(tmp_path: Path) -> None:
    import torch

    from nemo_vfm.diffusion.denoising_task import Denoise
    from nemo_vfm.diffusion.objective import FlowMatching
    from nemo_vfm.models.codec import WaveletCodec
    from nemo_vfm.models.dit import DiT
    from nemo_vfm.models.text_encoder import HashedNgrams

    with ShardWriter(tmp_path / "films") as writer:
        for n in range(4):
            facts = {"caption": "film", "fps": 8.0, "width": 80, "height": 64, "num_frames": 12}
            writer.write(f"film{n}", {"mp4": mp4(seed=n)}, facts)
    with ShardWriter(tmp_path / "stills") as writer:
        for n in range(4):
            png = cv2.imencode(".png", moving(1, 50, 40, n)[0])[1].tobytes()
            facts = {"caption": "still", "fps": 1.0, "width": 40, "height": 50, "num_frames": 1}
            writer.write(f"still{n}", {"png": png}, facts)
    shapes = {"films": Bucket(32, 32, 9, 8.0), "stills": Bucket(32, 32, 1)}
    data = Blend(
        sources={
            name: BlendSource(ShardData(shards=tmp_path / name, batch_size=2, buckets=Buckets(buckets={"only": shape})))
            for name, shape in shapes.items()
        }
    )
    codec = WaveletCodec(levels_space=2, levels_time=2)
    task = Denoise(objective=FlowMatching(), codec=codec, text_encoder=HashedNgrams(dim=16, max_tokens=8))
    model = DiT(in_channels=codec.latent_shape(9, 32, 32)[0], text_dim=16, width=48, depth=1, heads=2)
    seen = set()
    for batch in take(data, 4):
        prepared = task.prepare(batch, seed=0, training=True)
        loss = task.losses(model(**prepared.inputs), prepared).mean()
        loss.backward()
        assert torch.isfinite(loss) and all(p.grad is not None for p in model.parameters() if p.requires_grad)
        seen.add((batch.video_BCTHW.shape[2], batch.captions[0]))
    assert seen == {(9, "film"), (1, "still")}
