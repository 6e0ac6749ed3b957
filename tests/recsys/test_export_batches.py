"""Tests that exported files hold the batches of training, and that an interrupted export goes on to the same bytes."""

import itertools

import pytest
import torch
from safetensors.torch import load_file

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.job import Run
from nemo_vfm.recsys.export_batches import ExportBatches
from nemo_vfm.recsys.feature_table.table_writer import FeatureTableWriter
from nemo_vfm.recsys.feature_table_data import FeatureTableData
from nemo_vfm.sparse.feature_files import read_features
from tests.support.session_chunk import SCHEMA, equal_rows, session_chunk


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "table"
    writer = FeatureTableWriter(folder, SCHEMA)
    writer.add(session_chunk(40))
    writer.finish()
    return folder


def data_of(table, batch_size=16):
    return FeatureTableData(folder=table, batch_size=batch_size, block_rows=4)


def export(table, folder, num_batches=4, batch_size=16, seed=3):
    folder.mkdir(exist_ok=True)
    settings = {"data": {"batch_size": batch_size}, "num_batches": num_batches}
    return ExportBatches(data=data_of(table, batch_size), num_batches=num_batches).run(Run(folder, settings, seed))


def contents(folder):
    return {path.name: path.read_bytes() for path in (folder / "batches").iterdir()}


def test_files_hold_the_batches_of_training(table, tmp_path):
    assert export(table, tmp_path).figures["batches"] == 4
    data = data_of(table)
    data.start(seed=3, first_batch=0)
    files = sorted((tmp_path / "batches").iterdir())
    assert [file.name for file in files] == [f"{number:06d}.safetensors" for number in range(4)]
    for file, batch in zip(files, itertools.islice(data.train_dataloader(), 4), strict=True):
        features, groups = read_features(file)
        assert features.keys() == {"item"} and groups.keys() == {"user", "recent"}
        assert equal_rows(features["item"], batch.features["item"])
        for name, group in groups.items():
            assert group.inverse_B.equal(batch.groups[name].inverse_B)
            assert all(equal_rows(rows, batch.groups[name].features[one]) for one, rows in group.features.items())
        samples = {name: one for name, one in load_file(file).items() if name.startswith("samples/")}
        assert samples.keys() == {f"samples/{name}" for name in ("ids", "weight", "dense", "label/click", "label/like")}
        for name, expected in (("ids", batch.ids_B), ("weight", batch.weight_B), ("dense", batch.dense_BF),
                               ("label/click", batch.labels["click"])):  # fmt: skip
            assert torch.equal(samples[f"samples/{name}"], expected)


def test_an_interrupted_export_goes_on_to_the_same_bytes(table, tmp_path):
    export(table, tmp_path / "whole")
    export(table, tmp_path / "cut")
    (tmp_path / "cut/batches/000002.safetensors").unlink()
    before = {n: (tmp_path / f"cut/batches/00000{n}.safetensors").stat().st_mtime_ns for n in (0, 1)}
    assert not export(table, tmp_path / "cut").did_nothing and export(table, tmp_path / "cut").did_nothing
    assert before == {n: (tmp_path / f"cut/batches/00000{n}.safetensors").stat().st_mtime_ns for n in (0, 1)}
    for file in (tmp_path / "whole/batches").iterdir():
        assert file.read_bytes() == (tmp_path / "cut/batches" / file.name).read_bytes()


def test_other_settings_begin_anew_and_more_batches_go_on(table, tmp_path):
    export(table, tmp_path / "first", num_batches=2)
    before = contents(tmp_path / "first")
    export(table, tmp_path / "first", num_batches=4)
    assert before.items() <= contents(tmp_path / "first").items()
    for change in ({"seed": 4}, {"batch_size": 8}):
        export(table, tmp_path / "first", **change)
        export(table, tmp_path / f"new {change}", **change)
        found = contents(tmp_path / "first")
        assert found == contents(tmp_path / f"new {change}") and found["000000.safetensors"] not in before.values()


class Nothing:
    def start(self, *, seed, first_batch, rank=0, num_ranks=1):
        pass

    def train_dataloader(self):
        return itertools.repeat("a batch")


def test_batches_without_features_are_refused(tmp_path):
    with pytest.raises(UserError, match="the data yields str, which has no features"):
        ExportBatches(data=Nothing(), num_batches=1).run(Run(tmp_path))
    with pytest.raises(ValueError, match="num_batches must be at least 1"):
        ExportBatches(data=Nothing(), num_batches=0)
