"""Tests that weights of samples come into batches, losses and metrics, and make up for negatives that were dropped."""

import itertools
import json
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from nemo_vfm.core.duration import Duration
from nemo_vfm.core.precision import Precision
from nemo_vfm.core.types.job import Run
from nemo_vfm.models.recommenders.dlrm import DLRM
from nemo_vfm.recsys.click import Click
from nemo_vfm.recsys.export_batches import ExportBatches
from nemo_vfm.recsys.feature_table.table_reader import FeatureTable
from nemo_vfm.recsys.feature_table.table_splits import HeldOutTable
from nemo_vfm.recsys.feature_table_data import FeatureTableData
from nemo_vfm.recsys.import_log import ImportLog
from nemo_vfm.recsys.sessions.id_feature import IdFeature
from nemo_vfm.recsys.sessions.session_log import SessionLog
from nemo_vfm.recsys.sessions.teacher import Teacher
from nemo_vfm.recsys.sources.parquet_log import ParquetLog
from nemo_vfm.recsys.table_scoring import ScoreTable
from nemo_vfm.sparse.log_chunk import LogChunk
from nemo_vfm.sparse.tables.row_optimizer import RowWiseAdaGrad
from nemo_vfm.train.callbacks.checkpointing import SaveCheckpoints
from nemo_vfm.train.callbacks.predictions import WritePredictions
from nemo_vfm.train.callbacks.validation import Validate
from nemo_vfm.train.job import Train
from nemo_vfm.train.loop import Loop
from nemo_vfm.train.optim import WarmupCosine
from tests.support.small_recommenders import small
from tests.train.test_job import lines

TASK = Click(labels={"click": 1.0})
MODEL = partial(small, DLRM, dense=1, bottom=[8], num_labels=1, rows={"item": 40, "user": 9})
ROWS = 400


def columns() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    return {
        "item": draw.integers(0, 40, ROWS), "user": draw.integers(0, 9, ROWS), "click": draw.random(ROWS) < 0.3,
        "d": draw.random(ROWS), "w": draw.integers(1, 4, ROWS),
    }  # fmt: skip


def imported(folder: Path, found: dict[str, np.ndarray], **settings) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(found), folder / "log.parquet")
    options = {"session": None, "weight": "w"} | settings
    source = ParquetLog(paths=[folder / "log.parquet"], time=None, labels=["click"], features=["item", "user"],
                        dense=["d"], **options)  # fmt: skip
    ImportLog(source=source, ids=None, memory_bytes=1 << 20, rows_per_part=192, rows_per_group=64).run(Run(folder))
    return folder / "table"


def test_the_weight_of_each_sample_comes_with_it_into_the_table_and_all_batches(tmp_path):
    found, folder = columns(), imported(tmp_path, columns(), session="user")
    of_sample = dict(enumerate(found["w"].tolist()))
    chunk = LogChunk.cat([*FeatureTable(folder).log_chunks()])
    assert dict(zip(chunk.ids_B.tolist(), chunk.weight_B.tolist(), strict=True)) == of_sample
    for order, (rank, num_ranks) in itertools.product(("clustered", "shuffled", "time"), ((0, 1), (1, 2))):
        data = FeatureTableData(folder=folder, batch_size=32, order=order, val_fraction=0.2)
        data.start(seed=1, first_batch=3, rank=rank, num_ranks=num_ranks)
        batches = [*itertools.islice(data.train_dataloader(), 12), *data.val_dataloader()]
        for batch in batches:
            assert batch.weight_B.tolist() == [of_sample[number] for number in batch.ids_B.tolist()]
    for path in _predicted(tmp_path, folder):
        scores = pq.read_table(path)
        numbers = scores["id"].to_pylist()
        assert len(numbers) > 50 and scores["weight"].to_pylist() == [of_sample[number] for number in numbers]
    ExportBatches(data=FeatureTableData(folder=folder, batch_size=32), num_batches=2).run(Run(tmp_path, seed=1))
    file = load_file(tmp_path / "batches/000001.safetensors")
    assert file["samples/weight"].tolist() == [of_sample[number] for number in file["samples/ids"].tolist()]


def _predicted(tmp_path: Path, folder: Path) -> list[Path]:
    """What a training writes of the samples it holds out, and ScoreTable of all."""
    data = FeatureTableData(folder=folder, batch_size=32, val_fraction=0.3)
    Train(
        model=MODEL, data=data, task=TASK, optimizer=partial(torch.optim.SGD, lr=0.1),
        loop=Loop(duration=Duration.parse("1 steps"), checkpoint=SaveCheckpoints(every_steps=1)),
        callbacks={"predictions": WritePredictions()},
    ).run(Run(tmp_path / "fresh"))  # fmt: skip
    ScoreTable(model=MODEL, checkpoint=tmp_path / "fresh", task=TASK, data=data).run(Run(tmp_path / "scored"))
    return [tmp_path / name / "predictions.parquet" for name in ("fresh", "scored")]


def test_a_weight_of_two_is_the_sample_twice_in_loss_gradients_and_metrics(tmp_path):
    found = columns()
    twice = {name: np.repeat(column, found["w"]) for name, column in found.items()}
    tables = {"weights": imported(tmp_path / "w", found), "copies": imported(tmp_path / "c", twice, weight=None)}
    for name, folder in tables.items():
        held_out = HeldOutTable(folder=folder)
        data = FeatureTableData(folder=folder, batch_size=FeatureTable(folder).num_rows, order="log", held_out=held_out)
        Train(
            model=MODEL, data=data, task=TASK, optimizer=partial(torch.optim.SGD, lr=0.3),
            loop=Loop(duration=Duration.parse("2 steps"), checkpoint=SaveCheckpoints(every_steps=2),
                      validation=Validate(every_steps=1, group="user", top_k=[1])),
            precision=Precision("fp32"),
        ).run(Run(tmp_path / name, seed=3))  # fmt: skip
    one, other = (load_file(tmp_path / name / "checkpoints/step-00000002/model.safetensors") for name in tables)
    assert all(torch.allclose(tensor, other[name], atol=1e-6) for name, tensor in one.items())
    (first, second) = ([line for line in lines(tmp_path / name) if "val_loss" in line] for name in tables)
    for a, b in zip(first, second, strict=True):
        for name in ("loss", "grad_norm", "val_loss", "val_auc", "val_normalised_entropy", "val_calibration",
                     "val_gauc", "val_weighted_gauc"):  # fmt: skip
            assert a[name] == pytest.approx(b[name], rel=1e-5), name
    details = [json.loads((tmp_path / name / "validation.json").read_text())["labels"]["click"] for name in tables]
    assert details[0]["weight"] == details[1]["weight"] == found["w"].sum()


@pytest.mark.slow
def test_a_ranker_of_a_tenth_of_the_negatives_predicts_the_rate_of_the_whole_log(tmp_path):
    features = {name: IdFeature(rows=rows) for name, rows in (("item", 200), ("user", 100))}
    teacher = Teacher(auc=0.75, rate=0.1, single=["item", "user"], pairs=[], dense=["d"], pairs_share=0.0)
    log = SessionLog(num_samples=600_000, samples_per_session=1, lengths="fixed", features=features, dense=["d"],
                     teacher=teacher)  # fmt: skip
    chunk = LogChunk.cat([*log.log_chunks()])
    found = {name: chunk.features[name].values_N.numpy() for name in features}
    found |= {"click": chunk.labels["click"].numpy(), "d": chunk.dense["d"].numpy()}
    pq.write_table(pa.table(found), tmp_path / "log.parquet")
    source = ParquetLog(paths=[tmp_path / "log.parquet"], session=None, time=None, labels=["click"],
                        features=[*features], dense=["d"])  # fmt: skip
    for name, share in (("whole", 1.0), ("tenth", 0.1)):
        ImportLog(source=source, ids=None, keep_negatives=share).run(Run(tmp_path / name, seed=1))
    model = partial(MODEL, rows={"item": 200, "user": 100}, table_optimizer=RowWiseAdaGrad(lr=0.05))
    data = FeatureTableData(folder=tmp_path / "tenth/table", batch_size=512, order="shuffled")
    Train(
        model=model, data=data, task=TASK, optimizer=partial(torch.optim.Adam, lr=1e-3),
        schedule=WarmupCosine(warmup_steps=20, final_fraction=0.0), precision=Precision("fp32"),
        loop=Loop(duration=Duration.parse("3 epochs"), checkpoint=SaveCheckpoints(every_steps=1000)),
    ).run(Run(tmp_path / "run", seed=3))  # fmt: skip
    whole = FeatureTableData(folder=tmp_path / "whole/table", batch_size=4096)
    ScoreTable(
        model=model, checkpoint=tmp_path / "run", task=TASK, data=whole, precision=Precision("fp32")
    ).run(Run(tmp_path / "scores"))  # fmt: skip
    scores = pq.read_table(tmp_path / "scores/predictions.parquet")
    mean, rate = (float(np.mean(scores[name].to_numpy())) for name in ("score", "label"))
    kept = LogChunk.cat([*FeatureTable(tmp_path / "tenth/table").log_chunks()])
    assert float(kept.labels["click"].mean()) > 4 * rate  # what a training would predict without weights
    assert mean == pytest.approx(rate, rel=0.01)
