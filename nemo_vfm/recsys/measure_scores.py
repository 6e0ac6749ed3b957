"""Measures predictions on the same samples side by side, and beside the teacher of a made log.

Shape letter: B samples.
"""

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.storage.files import write_json
from nemo_vfm.core.storage.uri import local
from nemo_vfm.core.types.job import Outcome, Run, makes
from nemo_vfm.metrics.ranking import GroupedScores, auc

_RESULT = "measures.json"
_SAMPLES = ("id", "session", "weight", "label")
_TEACHER = "teacher"


@makes("measures.json")
class MeasureScores:
    """Writes `measures.json`: AUC, and GAUC and weighted GAUC by session, of each file and the teacher.

    Samples count by their weights; `gauc` counts sessions alike.
    The teacher's are those of its probabilities as scores, which no model can exceed but by chance; they are measured
    where the files have a column `teacher`.

    Args:
        predictions: files of `ScoreTable` or `WritePredictions`, of one label and the same samples, by a name for each.
    """

    def __init__(self, *, predictions: Mapping[str, Path]) -> None:
        if not predictions or _TEACHER in predictions:
            raise ValueError(f"predictions must name at least one file, and none {_TEACHER}; got {[*predictions]}")
        self.predictions = {name: local(path, "the predictions") for name, path in predictions.items()}

    def run(self, run: Run) -> Outcome:
        """Measure all files.

        Raises:
            UserError: a file is missing or lacks a column.
            DataError: two are of other samples.
        """
        files = {name: _read(path) for name, path in self.predictions.items()}
        (first, known), *others = files.items()
        for name, found in others:
            if any(not torch.equal(known[column].nan_to_num(-1), found[column].nan_to_num(-1)) for column in _SAMPLES):
                raise DataError(f"{first} and {name} have different samples, or another order; score the same table")
        scores = {name: found["score"] for name, found in files.items()}
        scores |= {_TEACHER: known[_TEACHER]} if _TEACHER in known else {}
        label_B, weight_B, measures = known["label"], known["weight"], dict[str, dict[str, float]]()
        for name, score_B in scores.items():
            groups = GroupedScores.of(known["session"], score_B, label_B, weight_B).measures([])
            every = {"auc": auc(score_B, label_B, weight_B), **{key: groups[key] for key in ("gauc", "weighted_gauc")}}
            measures[name] = {key: value for key, value in every.items() if math.isfinite(value)}  # else not defined
        run.folder.mkdir(parents=True, exist_ok=True)
        write_json(run.folder / _RESULT, {"samples": len(known["id"]), "measures": measures})
        said = {name: ", ".join(f"{key} {value:.4f}" for key, value in one.items()) for name, one in measures.items()}
        text = "; ".join(f"{name}: {values or 'nothing is defined'}" for name, values in said.items())
        return Outcome(text, {f"{name}_{key}": value for name, one in measures.items() for key, value in one.items()})


def _read(path: Path) -> dict[str, Tensor]:
    """The columns that are measured."""
    import pyarrow.parquet as pq

    if not path.is_file():
        raise UserError(f"there is no {path}; ScoreTable and the callback WritePredictions write such files")
    there = pq.read_schema(path).names
    if lacking := [name for name in (*_SAMPLES, "score") if name not in there]:
        raise UserError(f"{path} has no column {lacking[0]}; it has {', '.join(there)}")
    table = pq.read_table(path, columns=[name for name in (*_SAMPLES, "score", _TEACHER) if name in there])
    return {
        name: torch.tensor(column.to_numpy()) for name, column in zip(table.column_names, table.columns, strict=True)
    }
