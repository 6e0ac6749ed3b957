"""Tests that samples come by their times whatever is read at once, and that each window is measured before its use."""

import itertools
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from nemo_vfm.core.duration import Duration
from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.job import Run
from nemo_vfm.core.types.training_data import HasTimeWindows
from nemo_vfm.models.recommenders.dlrm import DLRM
from nemo_vfm.recsys.click import Click
from nemo_vfm.recsys.feature_table.table_splits import HeldOutFrom
from nemo_vfm.recsys.feature_table.table_writer import FeatureTableWriter
from nemo_vfm.recsys.feature_table_data import FeatureTableData
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.log_chunk import LogChunk
from nemo_vfm.train.callbacks.checkpointing import SaveCheckpoints
from nemo_vfm.train.callbacks.validation import Validate
from nemo_vfm.train.job import Train
from nemo_vfm.train.loop import Loop
from nemo_vfm.train.state.train_state import TrainState
from tests.support.jagged_rows import lists
from tests.support.session_chunk import SCHEMA, session_chunk
from tests.support.small_recommenders import small
from tests.train.test_job import lines

BATCH, WINDOW = 32, 500


def chunk() -> LogChunk:
    """Sessions overlap in time, and many samples have the same."""
    made = session_chunk(160, seed=1)
    start = torch.randint(0, 60, (2000,), generator=torch.Generator().manual_seed(0))[made.session_B - 1000] * 50
    begins = torch.diff(made.session_B, prepend=made.session_B[:1] - 1) != 0
    place = torch.arange(len(made))
    return replace(made, time_B=start + (place - torch.where(begins, place, 0).cummax(0).values) // 2 * 50)


CHUNK = chunk()
BY_TIME = CHUNK.select(CHUNK.time_B.argsort(stable=True))


def written(made: LogChunk, folder: Path, **schema: object) -> Path:
    writer = FeatureTableWriter(folder, replace(SCHEMA, **schema), rows_per_part=256, rows_per_group=64)
    writer.add(made)
    writer.finish()
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(CHUNK, tmp_path_factory.mktemp("log") / "table")


def by_time(folder: Path, *, first: int = 0, rank: int = 0, num_ranks: int = 1, **options) -> FeatureTableData:
    data = FeatureTableData(folder=folder, batch_size=BATCH, order="time", **options)
    data.start(seed=5, first_batch=first, rank=rank, num_ranks=num_ranks)
    return data


def taken(data: FeatureTableData, count: int) -> list:
    return [*itertools.islice(data.train_dataloader(), count)]


@pytest.mark.parametrize(("window_groups", "groups"), [(1, "stored"), (2, "none"), (99, "auto")])
def test_samples_come_by_time_and_equal_ones_as_they_lie_whatever_is_read_at_once(folder, window_groups, groups):
    data = by_time(folder, window_groups=window_groups, groups=groups, num_workers=window_groups % 2)
    batches = [batch.expand() for batch in taken(data, 2 * len(CHUNK) // BATCH + 1)]
    assert len(CHUNK) // 64 > 8 and len(set(CHUNK.time_B.tolist())) < len(CHUNK) / 4
    for column, expected in (("ids_B", BY_TIME.ids_B), ("dense_BF", BY_TIME.dense_BF)):
        found = torch.cat([getattr(batch, column) for batch in batches])
        assert torch.equal(found, torch.cat([expected] * 3)[: len(found)])
    for name, rows in BY_TIME.features.items():
        found = [row for batch in batches for row in lists(batch.features[name])]
        assert found == (lists(rows) * 3)[: len(found)]


def test_ranks_share_batches_of_any_number_and_only_what_is_trained_on_comes(folder):
    whole = taken(by_time(folder), 12)
    for first, rank in ((0, 1), (7, 0)):
        half = taken(by_time(folder, first=first, rank=rank, num_ranks=2, window_groups=1), 5)
        for one, batch in zip(half, whole[first:], strict=False):
            assert one.index == batch.index and torch.equal(one.ids_B, batch.ids_B[16 * rank : 16 * (rank + 1)])
    border = int(CHUNK.time_B.float().quantile(0.6))
    data = by_time(folder, held_out=HeldOutFrom(time=border), window_groups=1)
    seen = torch.cat([batch.ids_B for batch in taken(data, round(data.batches_per_epoch() + 1))])
    assert torch.equal(seen[: data.num_train_samples()], BY_TIME.ids_B[BY_TIME.time_B < border])


def test_each_window_is_measured_but_for_what_shares_a_batch_with_the_one_before(folder):
    data = by_time(folder, time_window=WINDOW, window_groups=2)
    assert isinstance(data, HasTimeWindows) and data.has_time_windows()
    window_N = (BY_TIME.time_B - BY_TIME.time_B[0]) // WINDOW
    place = 0
    for index in range(2 * len(CHUNK) // BATCH):
        before, place = place, place + BATCH
        ended = before < len(CHUNK) and (place >= len(CHUNK) or int(window_N[before]) < int(window_N[place]))
        assert data.ends_time_window(index) == ended
        if ended or index % 9 == 0:
            rest = [number for batch in data.rest_of_time_window(index) for number in batch.ids_B.tolist()]
            same = (window_N == window_N[place]).nonzero() if place < len(CHUNK) else torch.zeros(1)
            assert rest == BY_TIME.ids_B[place : int(same.max()) + 1].tolist()


def test_an_item_that_is_newer_than_its_sample_stops_the_run_by_name(tmp_path):
    lengths = CHUNK.features["item"].lengths_B
    items = CHUNK.time_B.repeat_interleave(lengths) - torch.arange(int(lengths.sum())) % 7
    grouped = CHUNK.time_B - CHUNK.time_B % 50  # a run of equal rows is of one time
    features = {**CHUNK.features, "item": Jagged(items, lengths), "country": Jagged(grouped, torch.ones_like(grouped))}
    honest = replace(CHUNK, features=features)
    options = {"window_groups": 99, "item_times": ["item", "country"], "groups": {"user": ["country"]}}
    assert len(taken(by_time(written(honest, tmp_path / "honest"), **options), 40)) == 40
    for name, sample in (("item", 400), ("country", 20)):
        planted = features[name].values_N.clone()
        value = int(features[name].offsets[sample + 1]) - 1 if lengths[sample] or name == "country" else -1
        planted[value] = CHUNK.time_B[sample] + 1
        foul = replace(honest, features={**features, name: Jagged(planted, features[name].lengths_B)})
        table = written(foul, tmp_path / name)
        said = rf"sample {int(CHUNK.ids_B[sample])} of .* has the time {int(CHUNK.time_B[sample])}, but its {name} has"
        with pytest.raises(DataError, match=said):
            taken(by_time(table, **options), 40)
        assert len(taken(by_time(table, window_groups=99), 40)) == 40


class StopAt:
    """An error in the middle of a window, once."""

    def __init__(self, step: int | None) -> None:
        self.step = step

    def on_step(self, fit: TrainState) -> None:
        if fit.step == self.step:
            raise RuntimeError("pulled")


def training(folder: Path, stop: int | None = None) -> Train:
    data = FeatureTableData(folder=folder, batch_size=BATCH, order="time", time_window=WINDOW, window_groups=3)
    model = partial(small, DLRM, dense=1, bottom=[8], num_labels=1, rows={"country": 9})
    return Train(
        model=model, data=data, task=Click(labels={"click": 1.0}, score_step=None),
        optimizer=partial(torch.optim.SGD, lr=0.1), callbacks={"stop": StopAt(stop)},
        loop=Loop(duration=Duration.parse("25 steps"), validation=Validate(window="next"),
                  checkpoint=SaveCheckpoints(every_steps=4, keep_last=None, asynchronous=False)),
    )  # fmt: skip


@pytest.mark.slow
def test_a_run_that_is_killed_inside_a_window_measures_and_learns_the_same_bits(folder, tmp_path):
    training(folder).run(Run(tmp_path / "whole", seed=1))
    with pytest.raises(RuntimeError, match="pulled"):
        training(folder, 10).run(Run(tmp_path / "killed", seed=1))
    training(folder).run(Run(tmp_path / "killed", seed=1))
    whole, killed = (lines(tmp_path / name) for name in ("whole", "killed"))
    measures = [name for name in whole[-1] if name == "loss" or name.startswith("val_")]
    kept = [[{name: line.get(name) for name in ("step", *measures)} for line in one] for one in (whole, killed)]
    assert kept[0] == kept[1]
    data = by_time(folder, time_window=WINDOW)
    due = [index + 1 for index in range(25) if data.ends_time_window(index)]
    assert [line["step"] for line in whole if "val_auc" in line] == [*due, 25] and 2 < len(due) < 20
    weights = [
        load_file(tmp_path / f"{name}/checkpoints/step-00000025/model.safetensors") for name in ("whole", "killed")
    ]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    rest = sum(len(batch) for batch in data.rest_of_time_window(24))
    assert json.loads((tmp_path / "whole/validation.json").read_text())["labels"]["click"]["weight"] == rest


def test_windows_are_asked_only_of_data_that_has_them(folder):
    with pytest.raises(ValueError, match=r"time_window .* needs order: time, not log"):
        FeatureTableData(folder=folder, batch_size=4, order="log", time_window=9)
    given = training(folder)
    given.data.time_window = None
    with pytest.raises(ValueError, match=r"FeatureTableData has none; a feature table has them with data.order=time"):
        Validate(window="next").require(given.data, given.task)
