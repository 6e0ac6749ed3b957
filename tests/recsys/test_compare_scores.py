"""Tests that scores are compared sample by sample with the teacher's and logistic regression's."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.types.job import Run
from nemo_vfm.recsys.compare_scores import CompareScores
from nemo_vfm.recsys.feature_table.table_reader import FeatureTable
from nemo_vfm.recsys.logistic_regression import LogisticModel, LogisticRegression
from nemo_vfm.recsys.make_sessions import MakeSessions
from nemo_vfm.recsys.sessions.id_feature import IdFeature
from nemo_vfm.recsys.sessions.session_log import SessionLog
from nemo_vfm.recsys.sessions.teacher import Teacher


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("log")
    teacher = Teacher(single=["a", "b"], pairs_share=0.0, dense=["x"], dense_share=0.2)
    made = SessionLog(num_samples=400, samples_per_session=4, dense=["x"], teacher=teacher,
                      features={"a": IdFeature(rows=5), "b": IdFeature(rows=7, length=2)})  # fmt: skip
    MakeSessions(log=made, val_fraction=0.5, logistic=LogisticRegression(ridges=[10.0])).run(Run(folder, seed=5))
    return folder


def predictions(log: Path, folder: Path, **changed: object) -> Path:
    """Of every third sample, in another order than the table's; the teacher's own scores."""
    chunk = FeatureTable(log / "table").read(0, 400).select(torch.arange(399, -1, -3))
    columns = {"id": chunk.ids_B.numpy(), "label": chunk.labels["click"].numpy(),
               "score": chunk.labels["teacher"].numpy(), "teacher": chunk.labels["teacher"].numpy(),
               "session": chunk.session_B.numpy()}  # fmt: skip
    path = folder / "predictions.parquet"
    pq.write_table(pa.table({**columns, **changed}), path)
    return path


def test_each_sample_keeps_its_columns_and_gets_the_score_of_logistic_regression(log: Path, tmp_path: Path) -> None:
    CompareScores(log=log, predictions=predictions(log, tmp_path)).run(Run(tmp_path / "run", seed=5))
    found = pq.read_table(tmp_path / "run" / "predictions.parquet")
    assert found.column_names == ["id", "label", "score", "teacher", "session", "logistic"]
    table, model = FeatureTable(log / "table").read(0, 400), LogisticModel.load(log / "logistic.safetensors")
    score_B = model.score(table.features, table.dense["x"][:, None]).sigmoid()
    expected = dict(zip(table.ids_B.tolist(), score_B.tolist(), strict=True))
    given = [expected[number] for number in found["id"].to_pylist()]
    assert found["logistic"].to_pylist() == pytest.approx(given, rel=1e-6) and len(set(given)) > 50
    result = json.loads((tmp_path / "run" / "comparison.json").read_text())
    assert result["score_auc"] == result["teacher_auc"] > result["logistic_auc"] > 0.5
    assert result["from_teacher"] == 0 and result["samples"] == 134


def test_what_cannot_be_compared_is_refused_by_name(log: Path, tmp_path: Path) -> None:
    run = Run(tmp_path / "run", seed=5)
    with pytest.raises(UserError, match="add the callback WritePredictions"):
        CompareScores(log=log, predictions=tmp_path / "absent.parquet").run(run)
    foreign = predictions(log, tmp_path, id=pa.array(range(1000, 1134)))
    with pytest.raises(DataError, match="134 samples that are not in"):
        CompareScores(log=log, predictions=foreign).run(run)
    pq.write_table(pa.table({"id": [1]}), foreign)
    with pytest.raises(UserError, match="has no column label"):
        CompareScores(log=log, predictions=foreign).run(run)
    with pytest.raises(UserError, match="set logistic in the recipe"):
        CompareScores(log=tmp_path, predictions=predictions(log, tmp_path)).run(run)
    assert not (tmp_path / "run").exists()
