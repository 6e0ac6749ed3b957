"""Tests that files of predictions are measured by the same samples, and beside the teacher."""

import json
import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.types.job import Run
from nemo_vfm.recsys.measure_scores import MeasureScores


def predictions(path: Path, **changed: object) -> Path:
    """Two sessions of three samples; by the scores, session 7 has one of its two pairs right, session 8 both."""
    columns = {"id": [0, 1, 2, 3, 4, 5], "session": [7, 7, 7, 8, 8, 8], "weight": [1.0] * 6,
               "label": [1.0, 0.0, 0.0, 1.0, 1.0, 0.0], "score": [0.4, 0.5, 0.2, 0.9, 0.8, 0.3],
               "teacher": [0.4, 0.3, 0.2, 0.9, 0.8, 0.5]}  # fmt: skip
    pq.write_table(pa.table({name: value for name, value in {**columns, **changed}.items() if value}), path)
    return path


def test_auc_and_gauc_of_each_file_stand_beside_those_of_the_teachers_probabilities(tmp_path: Path):
    files = {"ours": predictions(tmp_path / "a"), "ideal": predictions(tmp_path / "b", score=[1, 0, 0, 1, 1, 0])}
    outcome = MeasureScores(predictions=files).run(Run(tmp_path / "run"))
    found = json.loads((tmp_path / "run/measures.json").read_text())
    assert found["samples"] == 6 and list(found["measures"]) == ["ours", "ideal", "teacher"]
    assert found["measures"]["ours"] == pytest.approx({"auc": 8 / 9, "gauc": 0.75, "weighted_gauc": 0.75})
    assert found["measures"]["ideal"] == {"auc": 1, "gauc": 1, "weighted_gauc": 1}
    assert found["measures"]["teacher"] == pytest.approx({"auc": 8 / 9, "gauc": 1, "weighted_gauc": 1})
    assert outcome.figures["ours_gauc"] == pytest.approx(0.75)


def test_a_measure_that_is_not_defined_and_a_sample_without_a_label_are_left_out(tmp_path: Path):
    apart = predictions(tmp_path / "a", session=[1, 2, 3, 4, 5, 6], teacher=None, label=[1, 0, math.nan, 1, 1, 0])
    outcome = MeasureScores(predictions={"ours": apart, "again": apart}).run(Run(tmp_path / "run"))
    assert outcome.figures == {"ours_auc": pytest.approx(5 / 6), "again_auc": pytest.approx(5 / 6)}


def test_a_weight_of_two_is_the_sample_twice_in_each_measure(tmp_path: Path):
    columns = {"id": [0, 1, 2, 3, 4, 5], "session": [7, 7, 7, 8, 8, 8], "label": [1.0, 0.0, 0.0, 1.0, 1.0, 0.0],
               "score": [0.4, 0.5, 0.2, 0.3, 0.8, 0.3], "teacher": [0.4, 0.3, 0.45, 0.9, 0.8, 0.85]}  # fmt: skip
    places = [0, 1, 1, 2, 3, 4, 5, 5]
    twice = {name: [values[place] for place in places] for name, values in columns.items()}
    figures = [
        MeasureScores(predictions={"a": predictions(tmp_path / name, **changed)}).run(Run(tmp_path / "run")).figures
        for name, changed in (("w", {**columns, "weight": [1.0, 2.0, 1.0, 1.0, 1.0, 2.0]}),
                              ("c", {**twice, "weight": [1.0] * 8}))
    ]  # fmt: skip
    assert len(figures[0]) == 6 and figures[0] == pytest.approx(figures[1])


def test_what_cannot_be_compared_is_refused_by_name(tmp_path: Path):
    good, run = predictions(tmp_path / "a"), Run(tmp_path / "run")
    for column in ("id", "session", "weight", "label"):
        other = predictions(tmp_path / "b", **{column: [0, 1, 0, 1, 0, 1]})
        with pytest.raises(DataError, match="ours and theirs have different samples"):
            MeasureScores(predictions={"ours": good, "theirs": other}).run(run)
    with pytest.raises(UserError, match="has no column session"):
        MeasureScores(predictions={"ours": predictions(tmp_path / "b", session=None)}).run(run)
    with pytest.raises(UserError, match="there is no"):
        MeasureScores(predictions={"ours": tmp_path / "absent"}).run(run)
    with pytest.raises(ValueError, match="at least one file, and none teacher"):
        MeasureScores(predictions={"teacher": good})
    assert not (tmp_path / "run").exists()
