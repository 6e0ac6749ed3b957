"""Tests that batches of a feature table follow from the seed and their number, on any ranks, and lose no sample."""

import dataclasses
import itertools
import shutil
from functools import partial

import pytest
import torch

from nemo_vfm.core.duration import Duration
from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.job import Run
from nemo_vfm.core.types.training_data import HasBatchSizes, ResumableData
from nemo_vfm.models.recommenders.dlrm import DLRM
from nemo_vfm.recsys.click import Click
from nemo_vfm.recsys.feature_table.table_writer import FeatureTableWriter
from nemo_vfm.recsys.feature_table_data import FeatureTableData
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.train.callbacks.checkpointing import SaveCheckpoints
from nemo_vfm.train.job import Train
from nemo_vfm.train.loop import Loop
from tests.support.session_chunk import SCHEMA, equal_rows, session_chunk
from tests.support.small_recommenders import small

CHUNK = session_chunk(160, seed=1)
SESSION_OF = dict(zip(CHUNK.ids_B.tolist(), CHUNK.session_B.tolist(), strict=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "table"
    writer = FeatureTableWriter(path, SCHEMA, rows_per_part=256, rows_per_group=64)
    writer.add(CHUNK)
    writer.finish()
    return path


def started(folder, first_batch=0, rank=0, num_ranks=1, seed=5, **options):
    options = {"batch_size": 32, "window_groups": 3, "block_rows": 20, **options}
    data = FeatureTableData(folder=folder, **options)
    data.start(seed=seed, first_batch=first_batch, rank=rank, num_ranks=num_ranks)
    return data


def batches(data, count):
    return [*itertools.islice(data.train_dataloader(), count)]


def ids(found):
    return [number for batch in found for number in batch.ids_B.tolist()]


def equal_batches(a, b):
    columns = ("index", "ids_B", "weight_B", "dense_BF")
    same = all(torch.equal(torch.as_tensor(getattr(a, n)), torch.as_tensor(getattr(b, n))) for n in columns)
    same = same and all(torch.equal(label, b.labels[name]) for name, label in a.labels.items())
    same = same and a.features.keys() == b.features.keys() and a.labels.keys() == b.labels.keys()
    return same and all(equal_rows(rows, b.features[name]) for name, rows in a.features.items())


def test_a_table_that_is_damaged_is_refused_at_the_start_where_it_is_verified(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "table")
    part = next(path for path in sorted((tmp_path / "table").rglob("*")) if path.suffix == ".parquet")
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    started(tmp_path / "table", verify=False)
    started(folder, verify=True)
    with pytest.raises(DataError, match=part.name):
        started(tmp_path / "table", verify=True)


@pytest.mark.parametrize("order", ["clustered", "shuffled", "log"])
def test_every_sample_comes_once_an_epoch_and_no_session_is_on_both_sides(folder, order):
    data = started(folder, order=order, val_fraction=0.3)
    assert isinstance(data, ResumableData) and isinstance(data, HasBatchSizes)
    samples = data.num_train_samples()
    seen = ids(batches(data, round(2 * data.batches_per_epoch()) + 2))
    held = ids(data.val_dataloader())
    first, second = seen[:samples], seen[samples : 2 * samples]
    assert sorted(first) == sorted(second) and sorted([*first, *held]) == CHUNK.ids_B.tolist()
    assert not {SESSION_OF[n] for n in first} & {SESSION_OF[n] for n in held}
    assert 0.15 < len(held) / len(CHUNK) < 0.45 and (first != second) == (order != "log")


def test_held_out_batches_are_the_same_at_each_call(folder):
    data = started(folder, val_fraction=0.3)
    once, again = [*data.val_dataloader()], [*data.val_dataloader()]
    assert all(batch.session_B.tolist() == [SESSION_OF[n] for n in batch.ids_B.tolist()] for batch in once)
    assert all(batch.session_B.tolist() == [SESSION_OF[n] for n in batch.ids_B.tolist()] for batch in once)
    assert len(once) > 2 and all(map(equal_batches, *[[b.expand() for b in found] for found in (once, again)]))
    assert {len(batch) for batch in once[:-1]} == {32} and [b.index for b in once] == [*range(len(once))]
    assert not [*started(folder).val_dataloader()]


def test_a_batch_holds_what_the_log_has_of_its_samples(folder):
    for batch in batches(started(folder), 3):
        assert isinstance(batch, Batch)
        batch.require_valid()
        rows = batch.ids_B // 7
        whole, expected = batch.expand(), CHUNK.select(rows)
        assert torch.equal(batch.dense_BF[:, 0], expected.dense["age"])
        assert all(torch.equal(batch.labels[name], expected.labels[name]) for name in SCHEMA.labels)
        assert all(equal_rows(whole.features[name], rows) for name, rows in expected.features.items())


@pytest.mark.parametrize("order", ["clustered", "shuffled"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_ranks_have_slices_of_the_same_global_batches_and_resume_at_any(folder, order, num_workers):
    whole = [batch.expand() for batch in batches(started(folder, order=order), 60)]
    for num_ranks, first in ((1, 7), (2, 0), (4, 41)):
        ranks = [
            batches(started(folder, first, rank, num_ranks, order=order, num_workers=num_workers), 12)
            for rank in range(num_ranks)
        ]
        share = 32 // num_ranks
        for place, parts in enumerate(zip(*ranks, strict=True)):
            for rank, part in enumerate(parts):
                assert equal_batches(part.expand(), whole[first + place].rows(rank * share, (rank + 1) * share))


@pytest.mark.parametrize("groups", ["stored", "auto", {"mine": ["history", "item"], "user": ["country", "scores"]}])
@pytest.mark.parametrize("order", ["clustered", "shuffled"])
def test_groups_change_how_a_batch_is_held_and_not_what_is_in_it(folder, groups, order):
    plain = batches(started(folder, groups="none", order=order), 20)
    grouped = batches(started(folder, groups=groups, order=order), 20)
    assert all(not batch.groups for batch in plain) and all(len(batch.groups) >= 1 for batch in grouped)
    assert all(equal_batches(a, b.expand()) for a, b in zip(plain, grouped, strict=True))


def test_clustered_batches_have_few_unique_rows(folder):
    def unique(order):
        return sum(batch.groups["user"].num_unique for batch in batches(started(folder, order=order), 25))

    assert max(unique("log"), unique("clustered")) < 0.6 * unique("shuffled")


def test_another_batch_size_goes_on_at_the_sample_where_it_was_left(folder):
    data = started(folder)
    expected = ids(batches(data, 40))
    position = data.position(10)["rows"]
    assert position.place == 320 and position.of == len(CHUNK)
    other = data.with_batching({"batch_size": 8}).starting(10, {"rows": position.place})
    other.start(seed=5, first_batch=12)
    assert other.begins() == 10 and other.batching() == {"batch_size": 8}
    assert ids(batches(other, 8)) == expected[320 + 16 : 320 + 16 + 64]
    assert other.position(12)["rows"].place == 336 and other.position(12)["rows"].order == position.order


def test_whatever_moves_a_sample_makes_another_order_and_nothing_else_does(folder, tmp_path):
    """A resume goes on at the sample only where the order is that of the steps before."""

    def order(table=folder, **options):
        return started(table, **options).position(0)["rows"].order

    def first_ids(**options):
        return ids(batches(started(folder, **{"batch_size": 32, **options}), 2))

    moving = {"order": "log", "seed": 6, "val_fraction": 0.3, "window_groups": 2, "block_rows": 30}
    assert len({order(), *(order(**{name: value}) for name, value in moving.items())}) == 1 + len(moving)
    for name, value in moving.items():
        assert first_ids(**{name: value}) != first_ids(), name
    staying = {"batch_size": 16, "groups": "none", "dense": [], "features": ["item"], "num_workers": 2}
    assert {order(**{name: value}) for name, value in staying.items()} == {order()}
    writer = FeatureTableWriter(tmp_path / "other", SCHEMA, rows_per_part=256, rows_per_group=64)
    writer.add(session_chunk(160, seed=2))
    writer.finish()
    assert order(tmp_path / "other") != order()


def with_bad_ids(tmp_path):
    values = CHUNK.features["country"].values_N.clone()
    values[:40] += 100
    values[1] = 9  # the first that is none
    item = CHUNK.features["item"]
    features = {
        **CHUNK.features, "country": Jagged(values, CHUNK.features["country"].lengths_B),
        "item": Jagged(item.values_N.remainder(50).index_fill(0, torch.tensor([len(item.values_N) - 1]), -3),
                       item.lengths_B),
    }  # fmt: skip
    writer = FeatureTableWriter(tmp_path / "bad", SCHEMA, rows_per_part=256, rows_per_group=64)
    writer.add(dataclasses.replace(CHUNK, features=features))
    writer.finish()
    return tmp_path / "bad", {*range(40), int(torch.repeat_interleave(item.lengths_B)[-1])}


def test_ids_out_of_range_stop_or_take_the_weight_of_their_samples(tmp_path):
    folder, bad = with_bad_ids(tmp_path)
    limits = {"country": 9, "item": 50}
    with pytest.raises(DataError, match=r"country has the id 10\d, but its table has the rows 0 to 8.*40 of 192"):
        batches(started(folder, order="log", num_rows=limits), 1)
    data = started(folder, num_rows=limits, out_of_range="weight_0", batch_size=len(CHUNK), groups={"u": ["country"]})
    (batch,) = batches(data, 1)
    batch.require_valid(limits)
    assert {int(n) // 7 for n in batch.ids_B[batch.weight_B == 0]} == bad and len(batch) == len(CHUNK)
    assert data.faults.by_sample.keys() == {str(7 * n) for n in bad}
    with pytest.raises(DataError, match="9 bad samples in a row"):
        limited = {"num_rows": limits, "out_of_range": "weight_0", "max_bad_in_a_row": 9}
        batches(started(folder, order="log", **limited), 2)


def test_only_what_is_named_is_read(folder):
    data = started(folder, features=["history", "item"], labels=["like"], dense=[])
    (batch,) = batches(data, 1)
    assert [*batch.labels] == ["like"] and batch.dense_BF.shape == (32, 0)
    assert [*batch.features] == ["item"] and [*batch.groups] == ["recent"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": ["nothing"]}, "features names nothing"),
        ({"num_rows": {"nothing": 4}}, "num_rows names nothing"),
        ({"groups": {"a": ["nothing"]}}, "groups.a names nothing"),
        ({"num_ranks": 3}, "not divisible by 3 ranks"),
        ({"val_fraction": 0.999}, "all samples of .* are held out"),
        ({"batch_size": 0}, "batch_size .0.*at least 1"),
    ],
)
def test_what_cannot_be_is_refused_by_name(folder, options, message):
    with pytest.raises((UserError, ValueError), match=message):
        started(folder, **options)


LACKING = [
    ({"rows": {"items": 9}}, {}, {}, "no feature 'items', which the model reads: did you mean 'item'"),
    ({"dense": 2}, {}, {}, "the batch has 1 dense features, and the model reads 2"),
    ({}, {}, {"buy": 1.0}, "the data has no label 'buy'.*~task.labels.buy removes"),
    ({"deduplicated": {"users": "pool"}}, {}, {}, "the group 'users': did you mean 'user'"),
    ({}, {"features": ["country"]}, {}, "no feature 'item'"),
]


@pytest.mark.parametrize(("of_model", "of_data", "labels", "message"), LACKING)
def test_what_model_or_task_read_and_the_table_lacks_is_named_before_a_row_is_drawn(
    folder, tmp_path, of_model, of_data, labels, message
):
    made = []
    given = {"dense": 1, "bottom": [8], "num_labels": 1, "rows": {"item": 99}} | of_model

    def model():
        found = small(DLRM, **given)
        made.extend([] if next(found.parameters()).is_meta else [found])
        return found

    data = FeatureTableData(folder=folder, batch_size=32, **of_data)
    training = Train(
        model=model, data=data, task=Click(labels=labels or {"click": 1.0}), optimizer=partial(torch.optim.SGD, lr=0.1),
        loop=Loop(duration=Duration.parse("1 steps"), checkpoint=SaveCheckpoints(every_steps=1)),
    )  # fmt: skip
    with pytest.raises((DataError, UserError), match=message):
        training.run(Run(tmp_path))
    assert not made
