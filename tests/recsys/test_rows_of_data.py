"""Tests that a model's tables are as large as its feature table says, and what is said before that is there."""

import json
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from nemo_vfm.cli.main import main
from nemo_vfm.core.duration import Duration
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.job import Run
from nemo_vfm.models.recommenders.din import DIN
from nemo_vfm.models.recommenders.dlrm import DLRM
from nemo_vfm.models.recommenders.table_choice import SizedModel
from nemo_vfm.recsys.click import Click
from nemo_vfm.recsys.feature_table.table_reader import FeatureTable
from nemo_vfm.recsys.feature_table_data import FeatureTableData
from nemo_vfm.recsys.import_log import ImportLog
from nemo_vfm.recsys.log_import.frequent_ids import FrequentIds
from nemo_vfm.recsys.log_import.hashed_ids import HashedIds
from nemo_vfm.recsys.log_import.known_ids import KnownIds
from nemo_vfm.recsys.make_sessions import MakeSessions
from nemo_vfm.recsys.sessions.id_feature import IdFeature
from nemo_vfm.recsys.sessions.session_log import SessionLog
from nemo_vfm.recsys.sources.kuairand_csv import KuaiRandCsv
from nemo_vfm.recsys.sources.parquet_log import ParquetLog
from nemo_vfm.recsys.table_scoring import ScoreTable
from nemo_vfm.train.callbacks.checkpointing import SaveCheckpoints
from nemo_vfm.train.job import Train
from nemo_vfm.train.loop import Loop
from tests.recipes.conftest import write_clicks
from tests.support.kuairand_files import kuairand_rows, write_kuairand
from tests.support.repository import ROOT
from tests.support.small_recommenders import small


def imported(folder: Path, ids, first: int = 0) -> FeatureTableData:
    """Items that come twice, with the times of clicks as they are."""
    folder.mkdir()
    rows = range(60)
    columns = {"item": [first + n % 30 for n in rows], "user": [n % 7 for n in rows], "times": [[n] for n in rows],
               "y": [n % 2 for n in rows]}  # fmt: skip
    pq.write_table(pa.table(columns), folder / "log.parquet")
    source = ParquetLog(paths=[folder / "log.parquet"], session=None, time=None, labels=["y"],
                        features=["item", "user", "times"])  # fmt: skip
    ImportLog(source=source, ids=ids, raw_features=["times"]).run(Run(folder))
    return FeatureTableData(folder=folder / "table", batch_size=8)


def sizes(model, data: FeatureTableData) -> dict[str, int]:
    return {name: spec.rows for name, spec in SizedModel(model, data)().tables.tables.items()}


AUTO = partial(small, DLRM, dense=0, bottom=[], self_interaction=True, rows="auto")


def test_tables_have_the_rows_that_the_import_gave_to_ids_and_grow_with_the_vocabulary(tmp_path):
    first = imported(tmp_path / "frequent", FrequentIds(num_rows=99, num_rows_of={"user": 5}))
    assert sizes(AUTO, first) == {"item": 31, "user": 5}
    grown = imported(tmp_path / "grown", KnownIds(vocabulary=tmp_path / "frequent", grow=True), first=10)
    assert sizes(AUTO, grown) == {"item": 41, "user": 8}
    hashed = imported(tmp_path / "hashed", HashedIds(num_rows=99, num_rows_of={"user": 5}))
    assert sizes(AUTO, hashed) == {"item": 99, "user": 5}
    only = FeatureTableData(folder=hashed.folder, batch_size=8, features=["user"])
    assert sizes(AUTO, only) == {"user": 5} and sizes(partial(AUTO, rows={"item": 3}), hashed) == {"item": 3}
    with pytest.raises(UserError, match=r"rows is auto.* does not record the number of rows: import the log with ids"):
        sizes(AUTO, imported(tmp_path / "raw", None))
    with pytest.raises(UserError, match=r"rows is auto.*no data is beside the model"):
        AUTO()


def test_a_training_and_the_scores_of_a_table_take_the_rows_alike(tmp_path):
    data, model = imported(tmp_path / "log", HashedIds(num_rows=9)), partial(AUTO, num_labels=1)
    task = Click(labels={"y": 1.0})
    Train(
        model=model, data=data, task=task, optimizer=partial(torch.optim.SGD, lr=0.1),
        loop=Loop(duration=Duration.parse("1 steps"), checkpoint=SaveCheckpoints(every_steps=1)),
    ).run(Run(tmp_path / "run"))  # fmt: skip
    outcome = ScoreTable(model=model, checkpoint=tmp_path / "run", task=task, data=data).run(Run(tmp_path / "scores"))
    assert outcome.figures == {"samples": 60}


def test_a_history_has_the_rows_of_its_items_and_a_made_log_has_its_own(tmp_path):
    write_kuairand(tmp_path / "log.csv", kuairand_rows(300))
    source, ids = KuaiRandCsv(paths=[tmp_path / "log.csv"]), HashedIds(num_rows=50, num_rows_of={"video_id": 70})
    ImportLog(source=source, ids=ids).run(Run(tmp_path))
    data = FeatureTableData(folder=tmp_path / "table", batch_size=8)
    assert data.table_rows() == {"user_id": 50, "video_id": 70, "tab": 50, "history": 70}
    model = partial(small, DIN, dense=1, history={"history": "video_id"}, rows="auto")
    assert sizes(model, data) == {"user_id": 50, "video_id": 70, "tab": 50}
    log = SessionLog(num_samples=64, features={"a": IdFeature(rows=11), "b": IdFeature(rows=12)})
    MakeSessions(log=log).run(Run(tmp_path / "made"))
    assert FeatureTableData(folder=tmp_path / "made/table", batch_size=8).table_rows() == {"a": 11, "b": 12}


def test_check_and_plan_know_the_tables_once_they_are_written_and_say_so_before(tmp_path, capsys):
    log, recipe = write_clicks(tmp_path / "clicks.csv", 400), str(ROOT / "recipes/recommendation/dlrm_log.yaml")
    words = [recipe, f"steps.import.source.paths=[{log}]", f"run_dir={tmp_path / 'run'}", "steps.train.model.width=8",
             "steps.train.model.bottom=[8]"]  # fmt: skip
    waits = "rows is auto, so the data gives them, and there is no feature table in"
    assert main(["check", *words, "--gpus", "1"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"step train: it cannot be checked yet: {waits}" in said
    assert f"steps.train.model is not checked: {waits}" in said and said.endswith(": ok")
    assert main(["plan", *words, "--gpus", "1"]) == 2 and waits in " ".join(capsys.readouterr().err.split())
    source = ParquetLog(paths=[tmp_path / "log.parquet"], session=None, time=None, labels=["click"], features=["user"])
    pq.write_table(pa.table({"user": [*range(30)] * 2, "click": [0, 1] * 30}), tmp_path / "log.parquet")
    for ids, status, expected in (
        (FrequentIds(num_rows=99), 0, f"tables {31 * 9 * 4 / 2**20:.1f} MiB"),
        (None, 2, "steps.train.model.rows rows: auto # those of the vocabulary ^ rows is auto"),
    ):
        ImportLog(source=source, ids=ids).run(Run(tmp_path / "run/import", seed=status))
        assert main(["check", *words, "--gpus", "1"]) == status
        said = " ".join(capsys.readouterr().out.split())
        assert expected in said and waits not in said
    assert FeatureTable(tmp_path / "run/import/table").manifest.table_rows == {}


def test_a_table_that_was_written_before_sizes_were_known_can_be_read(tmp_path):
    data = imported(tmp_path / "run", HashedIds(num_rows=9))
    manifest = json.loads((data.folder / "manifest.json").read_text())
    assert (
        manifest.pop("table_rows")
        and manifest["schema"].pop("weight") is False
        and not manifest["schema"].pop("ids_of")
    )
    (data.folder / "manifest.json").write_text(json.dumps(manifest))
    assert FeatureTable(data.folder).num_rows == 60
