"""Tests that batches are a function of (shards, seed, g), for any workers, ranks, resumes and bad samples."""

import io
import pickle
import time
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from safetensors.torch import save

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.training_data import TrainingData
from nemo_vfm.data.batching.bucket import Bucket, Buckets
from nemo_vfm.data.loader.batch_loader import Batches, within
from nemo_vfm.data.shards.shard_files import ShardWriter
from nemo_vfm.data.sources.shard_data import ShardData
from nemo_vfm.data.sources.streamed import StreamedTars
from nemo_vfm.data.video.encode import encode_mp4
from tests.data.conftest import LatentShards, actions, moving, mp4

SMALL, LONG = [2, 1, 2, 2], [2, 3, 2, 2]
MIXED = [SMALL, LONG, SMALL, SMALL, LONG, SMALL, SMALL, LONG, SMALL, SMALL, SMALL]


def take(
    data: ShardData, count: int, *, first: int = 0, seed: int = 0, rank: int = 0, num_ranks: int = 1
) -> list[Batch]:
    data.start(seed=seed, first_batch=first, rank=rank, num_ranks=num_ranks)
    return list(islice(data.train_dataloader(), count))


def contents(batches: Iterable[Batch]) -> list[tuple[object, ...]]:
    names = ("weight_B", "fps_B", "latents_BCTHW", "video_BCTHW", "text_BLD", "text_mask_BL")
    tensors = lambda batch: tuple(t if (t := getattr(batch, n)) is None else t.tolist() for n in names)  # noqa: E731
    members = lambda batch: {name: tensor.tolist() for name, tensor in batch.members.items()}  # noqa: E731
    return [(batch.index, batch.keys, batch.captions, *tensors(batch), members(batch)) for batch in batches]


def test_shard_data_is_training_data() -> None:
    assert isinstance(ShardData(shards=Path("nowhere"), batch_size=1), TrainingData)


def test_a_batch_holds_what_was_written(latent_shards: LatentShards) -> None:
    data = ShardData(shards=latent_shards([SMALL] * 8), batch_size=4)
    for batch in take(data, 2):
        for row, key in enumerate(batch.keys):
            number = int(key)
            assert batch.latents_BCTHW[row].tolist() == torch.full(SMALL, float(number)).tolist()
            assert batch.text_BLD[row].tolist() == torch.full((3, 4), float(number)).tolist()
            assert batch.captions[row] == f"caption {number}"
        assert batch.text_mask_BL.tolist() == [[True, True, False]] * 4
        assert (
            batch.fps_B.tolist() == [8.0 + int(key, 16) for key in batch.keys] and batch.weight_B.tolist() == [1.0] * 4
        )
        assert batch.video_BCTHW is None


@pytest.mark.parametrize(("share", "num_warnings"), [(0.0, 0), (0.001, 1), (0.5, 0)])
def test_a_share_that_holds_nothing_out_is_a_warning(latent_shards: LatentShards, monkeypatch, share, num_warnings):
    said: list[str] = []
    monkeypatch.setattr("nemo_vfm.data.shards.shard_folder.warn_once", said.append)
    take(ShardData(shards=latent_shards([SMALL] * 10), batch_size=2, val_fraction=share), 1)
    assert len(said) == num_warnings
    assert all(text.startswith("no sample is held out") and "raise data.val_fraction" in text for text in said)


def test_the_order_does_not_depend_on_workers(latent_shards: LatentShards) -> None:
    folder = latent_shards(MIXED)
    runs = [contents(take(ShardData(shards=folder, batch_size=3, num_workers=n), 12)) for n in (0, 1, 2)]
    assert runs[0] == runs[1] == runs[2]


def test_the_ranks_slices_make_up_the_global_batch(latent_shards: LatentShards) -> None:
    folder = latent_shards(MIXED)
    whole = take(ShardData(shards=folder, batch_size=4), 9)
    parts = [take(ShardData(shards=folder, batch_size=4), 9, rank=rank, num_ranks=2) for rank in (0, 1)]
    for batch, one, two in zip(whole, *parts, strict=True):
        assert one.index == two.index == batch.index
        assert one.keys + two.keys == batch.keys
        assert torch.equal(torch.cat([one.latents_BCTHW, two.latents_BCTHW]), batch.latents_BCTHW)
    with pytest.raises(UserError, match="not divisible by 3 ranks"):
        take(ShardData(shards=folder, batch_size=4), 1, num_ranks=3)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_resume_anywhere_gives_the_tail_of_the_whole(num_workers: int, latent_shards: LatentShards) -> None:
    folder = latent_shards(MIXED)
    whole = contents(take(ShardData(shards=folder, batch_size=3), 14, seed=5))
    for first in range(12):
        data = ShardData(shards=folder, batch_size=3, num_workers=num_workers)
        assert contents(take(data, 14 - first, first=first, seed=5)) == whole[first:]


def test_every_sample_comes_once_an_epoch_and_no_batch_mixes_shapes(latent_shards: LatentShards) -> None:
    data = ShardData(shards=latent_shards(MIXED), batch_size=4)
    batches = take(data, 40)
    assert data.batches_per_epoch() == 11 / 4 and data.num_train_samples() == 11
    for shape in (SMALL, LONG):
        keys = [key for batch in batches if list(batch.latents_BCTHW.shape[1:]) == shape for key in batch.keys]
        count = MIXED.count(shape)
        assert all(len(set(keys[start : start + count])) == count for start in range(0, len(keys) - count, count))


def test_a_sample_comes_as_often_in_an_epoch_as_its_weight_says_and_is_held_out_once(tmp_path: Path) -> None:
    with ShardWriter(tmp_path) as writer:
        for number in range(30):
            latents = save({"latents": torch.zeros(SMALL)})
            text = save({"text": torch.zeros(1, 4), "mask": torch.tensor([True])})
            facts = {"bucket": "square", "latent_shape": SMALL, "fps": 8.0, "caption": "", "weight": 1 + number % 3}
            writer.write(f"{number:032x}", {"latents.safetensors": latents, "text.safetensors": text}, facts)
    data = ShardData(shards=tmp_path, batch_size=1, val_fraction=0.2)
    epoch = Counter(key for batch in take(data, data.num_train_samples()) for key in batch.keys)
    assert all(count == 1 + int(key, 16) % 3 for key, count in epoch.items())
    held_out = [key for batch in data.val_dataloader() for key in batch.keys]
    assert len(held_out) == len(set(held_out)) == 30 - len(epoch) > 0


def test_held_out_samples_are_never_trained_on_and_stay_the_same(latent_shards: LatentShards) -> None:
    data = ShardData(shards=latent_shards([SMALL] * 60), batch_size=4, val_fraction=0.2)
    trained = {key for batch in take(data, 60) for key in batch.keys}
    held_out = [key for batch in data.val_dataloader() for key in batch.keys]
    assert 4 <= len(held_out) <= 20 and len(set(held_out)) == len(held_out)
    assert not trained & set(held_out) and len(trained) + len(held_out) == 60
    take(data, 1, seed=9)
    assert [key for batch in data.val_dataloader() for key in batch.keys] == held_out


def test_windows_of_one_clip_are_held_out_together(tmp_path: Path) -> None:
    with ShardWriter(tmp_path) as writer:
        for number in range(60):
            latents = save({"latents": torch.zeros(SMALL)})
            facts = {"clip": f"clip {number // 3}", "bucket": "square", "latent_shape": SMALL, "fps": 8.0}
            text = save({"text": torch.zeros(1, 4), "mask": torch.tensor([True])})
            writer.write(f"{number:032x}", {"latents.safetensors": latents, "text.safetensors": text}, facts)
    data = ShardData(shards=tmp_path, batch_size=2, val_fraction=0.3)
    trained = {int(key, 16) // 3 for batch in take(data, 40) for key in batch.keys}
    held_out = {int(key, 16) // 3 for batch in data.val_dataloader() for key in batch.keys}
    assert held_out and trained and not trained & held_out


NAN = save({"latents": torch.full(SMALL, float("nan"))})
OTHER_SHAPE = save({"latents": torch.zeros(LONG)})
OTHER_DTYPE = save({"latents": torch.zeros(SMALL, dtype=torch.float16)})


@pytest.mark.parametrize("bad", [b"", b"junk" * 30, NAN, OTHER_SHAPE, OTHER_DTYPE, save({"other": torch.zeros(1)})])
def test_a_bad_sample_keeps_its_place_with_weight_zero(bad: bytes, latent_shards: LatentShards) -> None:
    good = take(ShardData(shards=latent_shards([SMALL] * 9, name="good"), batch_size=3), 6)
    data = ShardData(shards=latent_shards([SMALL] * 9, bad={4: bad}, name="bad"), batch_size=3)
    batches = take(data, 6)
    assert [batch.keys for batch in batches] == [batch.keys for batch in good]
    for batch in batches:
        is_bad = torch.tensor([int(key) == 4 for key in batch.keys])
        assert batch.weight_B.tolist() == (~is_bad).float().tolist()
        assert torch.isfinite(batch.latents_BCTHW).all() and batch.text_mask_BL.any(1).all()
    assert data.faults.by_sample == {f"{4:032x}": 2}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_many_bad_samples_in_a_row_stop_the_run_and_name_shard_and_key(
    num_workers: int, latent_shards: LatentShards
) -> None:
    folder = latent_shards([SMALL] * 12, bad=dict.fromkeys(range(5, 9), b"junk"))
    patient = ShardData(shards=folder, batch_size=4, shuffle=False, max_bad_in_a_row=5, num_workers=num_workers)
    assert sum(4 - int(batch.weight_B.sum()) for batch in take(patient, 3)) == 4
    strict = ShardData(shards=folder, batch_size=4, shuffle=False, max_bad_in_a_row=4, num_workers=num_workers)
    with pytest.raises(DataError, match=f"4 bad samples in a row.*{8:032x} in shard-000001.tar"):
        take(strict, 3)


def test_shards_without_a_single_good_sample_are_refused_at_the_start(latent_shards: LatentShards) -> None:
    folder = latent_shards([SMALL] * 3, bad=dict.fromkeys(range(3), b"junk"))
    with pytest.raises(DataError, match="no latents can be read"):
        take(ShardData(shards=folder, batch_size=1), 1)


def test_a_worker_that_is_silent_stops_the_run(latent_shards: LatentShards) -> None:
    data = ShardData(shards=latent_shards([SMALL] * 4), batch_size=2, num_workers=1)
    data.start(seed=0, first_batch=0)
    batches = data.train_dataloader()
    assert isinstance(batches, Batches)
    batches._timeout_s = 0.2
    batches._dataset.__class__ = type("Slow", (type(batches._dataset),), {"__getitem__": lambda *_: time.sleep(1)})
    with pytest.raises(DataError, match=r"within 0\.2 s"):
        next(iter(batches))


def test_latents_that_anyone_wrote_are_read_without_our_index(latent_shards: LatentShards) -> None:
    folder = latent_shards(MIXED)
    ours = contents(take(ShardData(shards=folder, batch_size=3), 8))
    (folder / "shards.json").unlink()
    theirs = contents(take(ShardData(shards=folder, batch_size=3), 8))
    assert sorted(row[1:3] for row in theirs) != [] and {len(row[1]) for row in theirs} == {3}
    assert {key for row in theirs for key in row[1]} == {key for row in ours for key in row[1]}


BUCKETS = Buckets(
    buckets={"square": Bucket(32, 32, 5, 8), "wide": Bucket(48, 32, 5, 8, batch_size=2), "image": Bucket(32, 32, 1)}
)


@pytest.fixture
def clip_shards(tmp_path: Path) -> Path:
    """Six square clips, four wide ones, three pictures, one too short, one damaged."""
    with ShardWriter(tmp_path / "clips", samples_per_shard=4) as writer:
        for number, (size, count) in enumerate([((40, 40), 12)] * 6 + [((36, 60), 9)] * 4 + [((40, 40), 3)]):
            file, facts = io.BytesIO(), {"height": size[0], "width": size[1], "num_frames": count, "fps": 16.0}
            encode_mp4(file, moving(count, *size, seed=number), 16, preset="ultrafast")
            data = file.getvalue() if number != 2 else file.getvalue()[:300]
            writer.write(f"clip{number}", {"mp4": data}, facts | {"caption": f"clip {number}"})
        for number in range(3):
            picture = cv2.imencode(".png", moving(1, 50, 40, number)[0])[1].tobytes()
            facts = {"height": 50, "width": 40, "num_frames": 1, "fps": 1.0, "caption": "picture"}
            writer.write(f"picture{number}", {"png": picture}, facts)
    return tmp_path / "clips"


def test_videos_and_pictures_come_in_their_buckets(clip_shards: Path) -> None:
    data = ShardData(shards=clip_shards, batch_size=3, buckets=BUCKETS)
    batches = take(data, 12)
    assert {tuple(b.video_BCTHW.shape) for b in batches} == {(3, 3, 5, 32, 32), (2, 3, 5, 32, 48), (3, 3, 1, 32, 32)}
    assert all(batch.video_BCTHW.dtype == torch.uint8 and batch.latents_BCTHW is None for batch in batches)
    videos = [batch for batch in batches if batch.video_BCTHW.shape[2] > 1]
    assert {float(f) for b in videos for f, w in zip(b.fps_B, b.weight_B, strict=True) if w > 0} == {8.0}
    assert data.faults.by_sample.keys() == {"clip2"}
    assert data.num_train_samples() == 13


def test_videos_come_with_the_text_embeddings_and_actions_that_lie_beside_them(tmp_path: Path) -> None:
    with ShardWriter(tmp_path) as writer:
        for number in range(4):
            text = save({"text": torch.full((3, 4), float(number)), "mask": torch.tensor([True, True, False])})
            facts = {"width": 80, "height": 64, "num_frames": 12, "fps": 8.0, "caption": "", "duration_s": 1.5}
            writer.write(f"{number:032x}", actions(number) | {"mp4": mp4(seed=number), "text.safetensors": text}, facts)
    buckets = Buckets(buckets={"one": Bucket(width=32, height=32, num_frames=5)})
    (batch,) = take(ShardData(shards=tmp_path, batch_size=4, buckets=buckets, num_workers=1, members=["actions"]), 1)
    assert batch.video_BCTHW.shape == (4, 3, 5, 32, 32)
    assert [float(text[0, 0]) for text in batch.text_BLD] == [float(int(key, 16)) for key in batch.keys]
    assert [float(one[0, 0]) for one in batch.members["actions"]] == [int(key, 16) + 0.5 for key in batch.keys]
    assert batch.text_mask_BL.tolist() == [[True, True, False]] * 4


def test_video_workers_give_the_same_batches(clip_shards: Path) -> None:
    alone = take(ShardData(shards=clip_shards, batch_size=3, buckets=BUCKETS), 8)
    helped = take(ShardData(shards=clip_shards, batch_size=3, buckets=BUCKETS, num_workers=2), 8)
    assert contents(alone) == contents(helped)
    assert max(int(np.ptp(batch.video_BCTHW.numpy())) for batch in helped) > 50


def test_videos_without_buckets_are_refused_with_what_to_give(clip_shards: Path) -> None:
    with pytest.raises(UserError, match="buckets"):
        take(ShardData(shards=clip_shards, batch_size=3), 1)


def test_the_lightning_module_gives_the_same_batches(latent_shards: LatentShards) -> None:
    from lightning.pytorch import LightningDataModule

    from nemo_vfm.data.loader.lightning_data import BatchModule

    folder = latent_shards([SMALL] * 8)
    data = ShardData(shards=folder, batch_size=2)
    data.start(seed=3, first_batch=5)
    module = BatchModule(data)
    assert isinstance(module, LightningDataModule)
    given_batches = list(islice(module.train_dataloader(), 3))
    assert contents(given_batches) == contents(take(ShardData(shards=folder, batch_size=2), 3, first=5, seed=3))


@pytest.mark.parametrize(
    ("allowed", "batch", "wanted", "expected"),
    [(100, 1, 2, (2, 4)), (100, 10, 2, (2, 4)), (100, 20, 2, (2, 2)), (100, 40, 2, (2, 1)), (100, 60, 4, (1, 1)),
     (100, 1000, 4, (1, 1)), (100, 0, 1, (1, 4))],
)  # fmt: skip
def test_what_is_read_ahead_fits(allowed: int, batch: int, wanted: int, expected: tuple[int, int]) -> None:
    workers, ahead = within(allowed, batch, wanted)
    assert (workers, ahead) == expected
    assert workers * ahead * batch <= allowed or (workers, ahead) == (1, 1)


@pytest.mark.parametrize("light", [True, False])
def test_no_more_batches_are_read_ahead_than_fit(
    light: bool, latent_shards: LatentShards, clip_shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards, buckets = (latent_shards([SMALL] * 8), None) if light else (clip_shards, BUCKETS)
    largest = 2 * 2 * 2 * 2 * 4 + 2 * (3 * 4 * 4 + 3) if light else 3 * 3 * 5 * 32 * 32
    data = ShardData(shards=shards, batch_size=2 if light else 3, buckets=buckets, num_workers=3)
    data.max_ahead_gb = 2.5 * largest / 1e9
    data.start(seed=0, first_batch=0)
    batches = data.train_dataloader()
    assert isinstance(batches, Batches)
    assert batches._dataset.max_bytes() == largest and (batches._num_workers, batches._ahead) == (2, 1)
    asked: list[int] = []
    original = type(batches._dataset).__getitem__
    monkeypatch.setattr(type(batches._dataset), "__getitem__", lambda s, g: asked.append(g) or original(s, g))
    whole = contents(islice(iter(batches), 4))
    assert not light or max(asked) <= 3 + 2
    monkeypatch.undo()
    assert whole == contents(take(ShardData(shards=shards, batch_size=2 if light else 3, buckets=buckets), 4))


@pytest.mark.parametrize(("name", "value"), [
    ("batch_size", 0), ("max_ahead_gb", 0.0), ("max_ahead_gb", float("nan")), ("num_workers", -1),
    ("val_fraction", 1.0), ("val_fraction", -0.1), ("max_bad_in_a_row", 0),
])  # fmt: skip
def test_impossible_values_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        ShardData(**({"shards": Path("x"), "batch_size": 1} | {name: value}))  # type: ignore[arg-type]


def test_what_is_built_can_be_sent_to_another_process(latent_shards: LatentShards) -> None:
    data = ShardData(shards=latent_shards(MIXED), batch_size=3)
    data.start(seed=0, first_batch=0)
    batches = data.by_number()
    sent, samples = pickle.loads(pickle.dumps(batches)), pickle.dumps(batches.schedule.samples(4, 0, 1))
    elsewhere = sent.reader.read(4, pickle.loads(samples))[0]
    assert contents([sent[4][0]]) == contents([elsewhere]) == contents([batches[4][0]]) and len(samples) < 200


def test_a_folder_that_is_given_as_a_text_is_one_folder():
    assert ShardData(shards="films", batch_size=1).shards == (Path("films"),)
    assert ShardData(shards=["films", Path("more")], batch_size=1).shards == (Path("films"), Path("more"))
    assert StreamedTars(tars="films", batch_size=1).tars == (Path("films"),)
