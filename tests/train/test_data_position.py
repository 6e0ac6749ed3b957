"""Tests that a training whose batches change resumes at the sample where it was, with any data."""

import inspect
import itertools
import json
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from nemo_vfm.core import log
from nemo_vfm.core.duration import Duration
from nemo_vfm.core.errors import CorruptCheckpoint, UserError
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.job import Run
from nemo_vfm.core.types.task import ModelInputs
from nemo_vfm.core.types.training_data import ReadPosition, ResumableData
from nemo_vfm.data.shards.shard_files import ShardWriter
from nemo_vfm.data.sources.blend import Blend, BlendSource
from nemo_vfm.data.sources.packed import PackedLatents
from nemo_vfm.data.sources.shard_data import ShardData
from nemo_vfm.data.sources.streamed import StreamedTars
from nemo_vfm.data.tokens.token_data import TokenData, TokenSource
from nemo_vfm.data.tokens.token_writer import write_tokens
from nemo_vfm.train.callbacks.checkpointing import SaveCheckpoints
from nemo_vfm.train.job import Train
from nemo_vfm.train.loop import Loop
from nemo_vfm.train.state.data_position import DataProgress, DataSegment, carry_positions, resume
from tests.support.toy import ToyModel, ToyTask

SAMPLES = 40
Make = Callable[..., ResumableData]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of 40 small latents, of two shapes and of one, and two folders of tokens."""
    root = tmp_path_factory.mktemp("data")
    text = save({"text": torch.zeros(3, 4), "mask": torch.tensor([True, True, False])})
    for name, shapes in (("mixed", ([4, 1, 2, 2], [4, 3, 2, 2], [4, 1, 2, 2])), ("alike", ([4, 1, 1, 1],))):
        with ShardWriter(root / name, samples_per_shard=7) as writer:
            for number, shape in zip(range(SAMPLES), itertools.cycle(shapes)):
                facts = {"caption": "", "fps": 8.0, "bucket": "square", "latent_shape": shape}
                latents = save({"latents": torch.full(shape, number / SAMPLES)})
                members = {"latents.safetensors": latents, "text.safetensors": text, "json": json.dumps(facts).encode()}
                writer.write(f"{name}-{number:03d}", members, facts)
    for name in ("web", "code"):
        documents = [[number % 50] * (5 + number % 9) for number in range(60)]
        write_tokens(root / name, documents, vocab_size=64, end=63, tokenizer="t" * 64, per_shard=40)
    return root


def shards(folder: Path, size: int, name: str = "mixed", **changes: Any) -> ShardData:
    return ShardData(shards=folder / name, batch_size=size, **changes)


def blend(folder: Path, size: int, weight: float = 1.0) -> Blend:
    parts = {"films": BlendSource(shards(folder, 4), 2.0), "stills": BlendSource(shards(folder, size, "alike"), weight)}
    return Blend(sources=parts)


def packed(folder: Path, size: int, budget_tokens: int = 6) -> PackedLatents:
    return PackedLatents(data=shards(folder, 1), budget_tokens=budget_tokens, packs=size)


def tokens(
    folder: Path, size: int, weight: float = 1.0, packing: Any = "stream", sequence_length: int = 8, **changes: Any
) -> TokenData:
    sources = {"web": TokenSource(folder / "web", 3.0), "code": TokenSource(folder / "code", weight)}
    return TokenData(sources=sources, sequence_length=sequence_length, batch_size=size, packing=packing, **changes)


def streamed(folder: Path, size: int, shuffle_buffer: int = 5) -> StreamedTars:
    return StreamedTars(tars=folder / "alike", batch_size=size, shuffle_buffer=shuffle_buffer)


KINDS: list[Make] = [shards, blend, packed, tokens, partial(tokens, packing="documents"), streamed]


def taken(data: ResumableData, first: int, count: int, rank: int = 0, num_ranks: int = 1) -> list[Batch]:
    data.start(seed=3, first_batch=first, rank=rank, num_ranks=num_ranks)
    return list(itertools.islice(data.train_dataloader(), count))


def keys(batches: list[Batch]) -> dict[str, list[str]]:
    """The keys of each part, in the order in which they came: of a source, and of a shape within it."""
    found: dict[str, list[str]] = {}
    for batch in batches:
        latents = getattr(batch, "latents_BCTHW", None)
        shape = () if latents is None else tuple(latents.shape[1:])
        for key in batch.keys:
            found.setdefault(f"{key.rpartition('-')[0]} {shape}", []).append(key)
    return found


def go_on(data: ResumableData, at: int, then: ResumableData, seed: int = 3) -> tuple[ResumableData, DataProgress]:
    """What a resume of `then` makes of a checkpoint that `data` wrote at this step."""
    data.start(seed=3, first_batch=at)
    then.start(seed=seed, first_batch=at)
    kept = json.loads(json.dumps(DataProgress.begin(data, 3).json(data, at)))
    return resume(then, DataProgress.from_json(kept), at, seed)


def orders(data: ResumableData, seed: int = 3) -> dict[str, str]:
    """What tells the order of each part's samples."""
    data.start(seed=seed, first_batch=0)
    return {name: read.order for name, read in data.position(0).items()}


MOVING: list[tuple[Make, dict[str, Any]]] = [
    (shards, {"shuffle": False}), (shards, {"val_fraction": 0.3}), (packed, {"budget_tokens": 9}),
    (tokens, {"packing": "documents"}), (tokens, {"sequence_length": 4}), (tokens, {"shuffle": False}),
    (tokens, {"val_fraction": 0.3}), (streamed, {"shuffle_buffer": 6}),
]  # fmt: skip


@pytest.mark.parametrize(("make", "change"), MOVING, ids=lambda one: getattr(one, "__name__", str(one)))
def test_a_setting_that_moves_samples_makes_another_order(make: Make, change: dict[str, Any], folder: Path) -> None:
    """Else a resume would go on at a sample of an order that is no more."""
    before, after = orders(make(folder, 4)), orders(make(folder, 4, **change))
    assert before.keys() == after.keys() and not {*before.values()} & {*after.values()}


@pytest.mark.parametrize("make", KINDS)
def test_another_seed_makes_another_order_and_another_batch_size_does_not(make: Make, folder: Path) -> None:
    before = orders(make(folder, 4))
    assert orders(make(folder, 8)) == before and len({*before.values()}) == len(before)
    assert not {*before.values()} & {*orders(make(folder, 4), seed=4).values()}


@pytest.mark.parametrize(("before", "after"), [(8, 4), (4, 8), (8, 6)])
@pytest.mark.parametrize("make", KINDS)
def test_other_batches_go_on_at_the_sample_where_the_old_ones_stopped(
    make: Make, before: int, after: int, folder: Path
) -> None:
    """Each part's samples are those of a training that never changed, over the border of an epoch, too."""
    old, at = make(folder, before), 3
    data, _ = go_on(old, at, make(folder, after))
    head, tail = taken(old, 0, at), taken(data, at, 14)
    assert [batch.index for batch in tail] == [*range(at, at + 14)]
    both, whole = keys(head + tail), keys(taken(make(folder, before), 0, 40))
    assert all(whole[part][: len(found)] == found for part, found in both.items())
    halves = [taken(data, at, 2, rank, 2) for rank in (0, 1)]
    assert [a.keys + b.keys for a, b in zip(*halves, strict=True)] == [batch.keys for batch in tail[:2]]


@pytest.mark.parametrize("make", [blend, tokens])
def test_sources_with_other_weights_go_on_where_each_was(make: Make, folder: Path) -> None:
    old = make(folder, 4)
    data, _ = go_on(old, 5, make(folder, 4, weight=9.0))
    both, whole = keys(taken(old, 0, 5) + taken(data, 5, 15)), keys(taken(old, 0, 80))
    assert all(whole[part][: len(found)] == found for part, found in both.items())


@pytest.mark.parametrize("make", KINDS)
def test_batches_of_before_a_change_can_be_read_again_after_it(make: Make, folder: Path) -> None:
    old, weighed = make(folder, 8), {"weight": 9.0} if "weight" in inspect.signature(make).parameters else {}
    data, whole = make(folder, 4, **weighed), [batch.keys for batch in taken(old, 0, 6)]
    data.start(seed=3, first_batch=0)
    again = data.with_batching(json.loads(json.dumps(old.batching())))
    assert [batch.keys for batch in taken(again, 0, 6)] == whole != [batch.keys for batch in taken(data, 0, 6)]


@pytest.mark.parametrize("make", KINDS)
def test_what_has_not_changed_gives_the_batches_of_an_unbroken_run(make: Make, folder: Path) -> None:
    """Also where the batches changed before: the checkpoint says from where on they are counted."""
    data, reading = go_on(make(folder, 8), 3, make(folder, 4))
    whole = [batch.keys for batch in taken(data, 3, 12)]
    again = make(folder, 4)
    again.start(seed=3, first_batch=8)
    found, same = resume(again, DataProgress.from_json(reading.json(data, 8)), 8, 3)
    assert [batch.keys for batch in taken(found, 8, 7)] == whole[5:]
    assert same.stretches == reading.stretches


@pytest.mark.parametrize("make", KINDS)
def test_where_data_is_after_a_change_is_where_it_was_and_what_was_read_since(make: Make, folder: Path) -> None:
    """The next change would go on from there."""
    old = make(folder, 8)
    data, reading = go_on(old, 3, make(folder, 4))
    tail = taken(data, 3, 5)
    begun, now = ({name: read.place for name, read in data.position(step).items()} for step in (3, 8))
    assert begun == {name: read.place for name, read in reading.stretches[-1].read.items()} and sum(begun.values()) > 0
    assert sum(now.values()) - sum(begun.values()) == sum(len(batch.keys) for batch in tail)
    assert all(now[name] >= place for name, place in begun.items())


def test_a_source_that_is_new_begins_at_its_beginning_and_one_that_comes_back_where_it_was() -> None:
    before = DataProgress((), {"a": ReadPosition(30, 40, "x")}, {"b": ReadPosition(7, 10, "y")})
    now = {"a": ReadPosition(0, 40, "x"), "b": ReadPosition(0, 10, "y"), "c": ReadPosition(0, 10, "z")}
    assert {name: read.place for name, read in carry_positions(before, now).items()} == {"a": 30, "b": 7, "c": 0}


def test_samples_in_other_buckets_go_on_as_far_into_the_epoch() -> None:
    before = DataProgress((), {"small": ReadPosition(20, 40, "x"), "large": ReadPosition(10, 20, "y")})
    now = {"small": ReadPosition(0, 30, "other"), "huge": ReadPosition(0, 30, "z")}
    assert {name: read.place for name, read in carry_positions(before, now).items()} == {"small": 15, "huge": 15}


def test_another_order_says_how_many_samples_come_again_and_so_many_do(folder: Path) -> None:
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    log.logger().addHandler(handler)
    counts = []
    try:
        for seed in range(10, 40):
            old = shards(folder, 4, "alike")
            data, _ = go_on(old, 5, shards(folder, 4, "alike"), seed=seed)
            seen = {key for batch in taken(old, 0, 5) for key in batch.keys}
            data.start(seed=seed, first_batch=5)
            rest = [key for batch in itertools.islice(data.train_dataloader(), 5) for key in batch.keys]
            counts.append(sum(key in seen for key in rest))
    finally:
        log.logger().removeHandler(handler)
    assert "resumes at sample 20, after step 5" in said[-1] and "about 10 of the 20" in said[-1]
    assert sum(counts) / len(counts) == pytest.approx(10, abs=1)


def test_damage_in_what_a_checkpoint_says_of_the_data_is_an_error_with_a_sentence() -> None:
    for told in ({"stretches": [{}], "read": {}, "left": {}}, {"stretches": [], "read": {"a": [1]}, "left": {}}, [1]):
        with pytest.raises(CorruptCheckpoint, match="has no usable data position"):
            DataProgress.from_json(told)
    assert DataProgress.from_json(DataProgress((DataSegment(0, {}, {}, 1),)).json(_Nothing(), 0)).stretches[0].seed == 1  # type: ignore[arg-type]


class _Nothing:
    def position(self, index: int) -> dict[str, ReadPosition]:
        return {}


class Noted(ToyTask):
    """Remembers which samples of which batch it was trained on."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[str, ...]] = {}

    def prepare(self, batch: Batch, *, seed: int, training: bool) -> ModelInputs:
        self.seen[batch.index] = batch.keys
        return super().prepare(batch, seed=seed, training=training)


def train(folder: Path, size: int, duration: str, **changes: Any) -> Train:
    settings: dict[str, Any] = {"data": shards(folder, size, "alike"), "task": Noted()} | changes
    loop = Loop(duration=Duration.parse(duration), checkpoint=SaveCheckpoints(every_steps=2, keep_last=None))
    return Train(model=ToyModel, optimizer=partial(torch.optim.SGD, lr=0.01), loop=loop, **settings)


def ran(job: Train, folder: Path, seed: int = 3) -> dict[int, tuple[str, ...]]:
    job.run(Run(folder, seed=seed, resume=True))
    assert isinstance(job.task, Noted)
    return job.task.seen


def test_a_training_that_goes_on_with_other_batches_sees_each_sample_once_an_epoch_and_says_so(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Changed twice, and the second stretch cut in two: the steps are those of one that was not."""
    log.logger().addHandler(caplog.handler)
    try:
        seen = ran(train(folder, 8, "4 steps"), tmp_path / "run")
        seen |= ran(train(folder, 4, "6 steps"), tmp_path / "run")
        assert "the data resumes at sample 32, after step 4; no sample of the epoch is repeated" in caplog.text
        caplog.clear()
        seen |= ran(train(folder, 4, "10 steps"), tmp_path / "run")
        assert "resumes at sample" not in caplog.text
        seen |= ran(train(folder, 12, "15 steps"), tmp_path / "run")
    finally:
        log.logger().removeHandler(caplog.handler)
    order = [key for _, batch in sorted(seen.items()) for key in batch]
    alone = shards(folder, 4, "alike")
    assert order == [key for batch in taken(alone, 0, 29) for key in batch.keys]
    assert [len(set(order[first : first + SAMPLES])) for first in (0, SAMPLES)] == [SAMPLES, SAMPLES]
    job = train(folder, 12, "15 steps")
    told = [next(iter(job.data_at(tmp_path / "run", index, 3)[0].train_dataloader())) for index in range(16)]
    assert [batch.keys for batch in told[:15]] == [seen[index] for index in range(15)]
    assert told[15].keys == taken(alone, 29, 1)[0].keys + taken(alone, 30, 2)[0].keys + taken(alone, 31, 1)[0].keys


@pytest.mark.parametrize(("duration", "steps"), [("2 epochs", 14), ("80 samples", 14), ("1 epochs", 6)])
def test_a_length_counts_what_was_read_before_the_batches_changed(
    duration: str, steps: int, folder: Path, tmp_path: Path
) -> None:
    """Four steps of 8 have read 32 samples: of two epochs of 40 there are 48 left, ten batches of 5."""
    ran(train(folder, 8, "4 steps"), tmp_path / "run")
    outcome = train(folder, 5, duration).run(Run(tmp_path / "run", seed=3, resume=True))
    assert outcome.figures["steps"] == steps


def test_steps_of_another_seed_are_told_with_theirs_and_of_other_samples_refused(folder: Path, tmp_path: Path) -> None:
    seen = ran(train(folder, 8, "2 steps"), tmp_path / "run")
    seen |= ran(train(folder, 8, "4 steps"), tmp_path / "run", seed=5)
    job = train(folder, 8, "4 steps")
    found = [job.data_at(tmp_path / "run", index, 5) for index in range(4)]
    assert [next(iter(data.train_dataloader())).keys for data, _ in found] == [seen[index] for index in range(4)]
    assert [seed for _, seed in found] == [3, 3, 5, 5]
    other = train(folder, 8, "4 steps", data=shards(folder, 8, "alike", val_fraction=0.3))
    with pytest.raises(UserError, match="step 2 was trained on different samples than this folder's recipe has now"):
        other.data_at(tmp_path / "run", 1, 5)
