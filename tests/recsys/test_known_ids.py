# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Tests that one vocabulary serves many logs, and that a model goes on with tables that have grown with it."""

from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from nemo_vfm.core.duration import Duration
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.precision import Precision
from nemo_vfm.core.types.job import Run
from nemo_vfm.metrics.ranking import auc
from nemo_vfm.models.recommenders.dlrm import DLRM
from nemo_vfm.parallel.checkpoint import checkpoint
from nemo_vfm.parallel.engine.engine import build_model
from nemo_vfm.recsys.click import Click
from nemo_vfm.recsys.feature_table.table_reader import FeatureTable
from nemo_vfm.recsys.feature_table.table_splits import HeldOutTable
from nemo_vfm.recsys.feature_table_data import FeatureTableData
from nemo_vfm.recsys.import_log import ImportLog
from nemo_vfm.recsys.log_import.frequent_ids import FrequentIds, read_vocabulary
from nemo_vfm.recsys.log_import.hashed_ids import HashedIds
from nemo_vfm.recsys.log_import.known_ids import KnownIds
from nemo_vfm.recsys.sources.parquet_log import ParquetLog
from nemo_vfm.recsys.table_scoring import ScoreTable
from nemo_vfm.sparse.tables.row_optimizer import RowAdaGrad
from nemo_vfm.train.callbacks.checkpointing import SaveCheckpoints
from nemo_vfm.train.job import Train
from nemo_vfm.train.warm_start import WarmStart
from tests.support.small_recommenders import small

TASK = Click(labels={"click": 1.0})


def log_of(day: int, folder: Path, rows: int = 1500) -> ParquetLog:
    """Ids of items are large; each day some are new, and an item's own rate of clicks stays."""
    draw = np.random.default_rng(day)
    item = draw.zipf(1.4, rows) % 40 + draw.integers(0, day + 1, rows) * 40
    click = draw.random(rows) < np.random.default_rng(0).random(400)[item] ** 2
    columns = {
        "item": item * 10**12 - 7,
        "user": draw.integers(0, 9, rows) + 10**9,
        "click": click,
        "d": draw.random(rows),
    }
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), folder / "log.parquet")
    return ParquetLog(paths=[folder / "log.parquet"], session="user", time=None, labels=["click"],
                      features=["item", "user"], dense=["d"])  # fmt: skip


def imported(day: int, folder: Path, ids) -> Path:
    ImportLog(source=log_of(day, folder), ids=ids, rows_per_group=256).run(Run(folder))
    return folder


def rows(folder: Path) -> dict[str, np.ndarray]:
    return dict(read_vocabulary(folder / "vocabulary.safetensors").ids)


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Day 1 counts its ids, day 2 adds its own behind them, day 3 takes those of day 2."""
    folder = tmp_path_factory.mktemp("days")
    first = imported(1, folder / "1", FrequentIds(num_rows=10**6, min_count=3))
    second = imported(2, folder / "2", KnownIds(vocabulary=first, grow=True, min_count=3))
    return [first, second, imported(3, folder / "3", KnownIds(vocabulary=second / "vocabulary.safetensors"))]


def test_new_frequent_ids_come_behind_the_old_ones_and_all_others_share_row_0(days):
    old, grown, last = map(rows, days)
    raw = pq.read_table(days[1] / "log.parquet")["item"].to_pylist()
    counts = Counter(raw)
    new = sorted((one for one in counts if counts[one] >= 3 and one not in old["item"]), key=lambda n: (-counts[n], n))
    assert grown["item"].tolist() == [*old["item"].tolist(), *new] and len(new) > 5
    assert all(np.array_equal(last[name], grown[name]) for name in grown)
    row_of = {one: row for row, one in enumerate(grown["item"].tolist(), 1)}
    for day in days[1:]:
        raw = pq.read_table(day / "log.parquet")["item"].to_pylist()
        chunk = FeatureTable(day / "table").read(0, len(raw))
        expected = [row_of.get(raw[number], 0) for number in chunk.ids_B.tolist()]
        assert chunk.features["item"].values_N.tolist() == expected and 0 in expected
    ids = [FeatureTable(day / "table").manifest.ids for day in days]
    assert ids[1] == ids[2] != ids[0]


def test_a_limit_of_rows_counts_the_old_ones(days, tmp_path):
    old, grown = rows(days[0])["item"], rows(days[1])["item"]
    for most in (3, len(old) + 1, len(old) + 4):
        ids = KnownIds(vocabulary=days[0], grow=True, num_rows_of={"item": most}, min_count=3)
        found = rows(imported(2, tmp_path / str(most), ids))["item"]
        assert found.tolist() == grown[: max(len(old), most - 1)].tolist()
    with pytest.raises(UserError, match=r"there is no .*vocabulary.safetensors; give the run folder of an ImportLog"):
        imported(2, tmp_path / "none", KnownIds(vocabulary=tmp_path))
    other = ParquetLog(paths=[days[0] / "log.parquet"], session=None, time=None, labels=["click"], features=["d"])
    with pytest.raises(UserError, match="column d of"):
        ImportLog(source=other, ids=KnownIds(vocabulary=days[0])).run(Run(tmp_path / "d"))


def data(table: Path, held_out: Path | None = None) -> FeatureTableData:
    other = None if held_out is None else HeldOutTable(folder=held_out / "table")
    return FeatureTableData(folder=table / "table", batch_size=64, held_out=other)


def test_a_held_out_table_of_another_vocabulary_or_hash_is_refused(days, tmp_path):
    with pytest.raises(UserError, match=r"have other rows than those of .*Import it by KnownIds"):
        data(days[0], held_out=days[2]).start(seed=0, first_batch=0)
    data(days[1], held_out=days[2]).start(seed=0, first_batch=0)
    hashed = [imported(1, tmp_path / str(n), HashedIds(num_rows=n)) for n in (7, 8)]
    with pytest.raises(UserError, match="have other rows"):
        data(hashed[0], held_out=hashed[1]).start(seed=0, first_batch=0)


def model(day: Path):
    sizes = {name: len(ids) + 1 for name, ids in rows(day).items()}
    return partial(small, DLRM, dense=1, bottom=[8], num_labels=1, rows=sizes, table_optimizer=RowAdaGrad(lr=0.3))


def training(day: Path, **options) -> Train:
    return Train(
        model=model(day), data=data(day), task=TASK, optimizer=partial(torch.optim.SGD, lr=0.1),
        duration=Duration.parse("30 steps"), checkpoint=SaveCheckpoints(every_steps=30), precision=Precision("fp32"),
        **options,
    )  # fmt: skip


@pytest.mark.slow
def test_day_two_goes_on_with_the_rows_and_state_of_day_one_and_day_three_is_scored(days, tmp_path):
    training(days[0]).run(Run(tmp_path / "1", seed=1))
    saved = checkpoint.found(tmp_path / "1")
    fresh, grown = (build_model(model(days[1]), 1) for _ in range(2))
    WarmStart(path=tmp_path / "1").load_into(grown)
    for name, old in saved.groups["model"].items():
        now = grown.state_dict()[name]
        assert torch.equal(now[: len(old)] if name.startswith("tables.") else now, old), name
        assert torch.equal(now[len(old) :], fresh.state_dict()[name][len(old) :]), name
    state = {f"tables.{name}": tensor for name, tensor in grown.tables.optimizer_state().items()}
    for name, old in saved.groups["tables"].items():
        assert torch.equal(state[name][: len(old)] if old.dim() else state[name], old), name
        assert not old.dim() or (float(old.sum()) > 0 and not state[name][len(old) :].any())
    assert grown.tables.step == 30 and len(state["tables.item.sum"]) > len(saved.groups["tables"]["tables.item.sum"])
    training(days[1], start_from=WarmStart(path=tmp_path / "1")).run(Run(tmp_path / "2", seed=1))
    ScoreTable(model=model(days[1]), checkpoint=tmp_path / "2", task=TASK, data=data(days[2]),
               precision=Precision("fp32")).run(Run(tmp_path / "3", seed=1))  # fmt: skip
    scored = pq.read_table(tmp_path / "3/predictions.parquet")
    score, label = (torch.tensor(scored[name].to_pylist()) for name in ("score", "label"))
    assert len(scored) == 1500 and auc(score, label) > 0.6
    smaller = build_model(model(days[0]), 1)
    with pytest.raises(UserError, match="do not fit this model"):
        WarmStart(path=tmp_path / "2").load_into(smaller)
