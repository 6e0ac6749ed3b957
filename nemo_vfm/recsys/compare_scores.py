"""Compares a trained model on a made log with the teacher that clicked, and with logistic regression.

Shape letter: B samples.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.storage.files import atomic_path, write_json
from nemo_vfm.core.storage.uri import local
from nemo_vfm.core.types.job import Outcome, Run, makes
from nemo_vfm.recsys.feature_table.table_reader import FeatureTable
from nemo_vfm.recsys.logistic_regression import LogisticModel
from nemo_vfm.recsys.sessions.teacher import ScoreRanks

if TYPE_CHECKING:
    import pyarrow as pa

_COLUMNS = ("id", "label", "score", "teacher")


@makes("predictions.parquet", "comparison.json")
class CompareScores:
    """Writes `predictions.parquet`, all columns of the training's and `logistic`, and `comparison.json`.

    An AUC is expected under the teacher's probabilities, which is less noisy than that of the clicks.

    Args:
        log: folder of a `MakeSessions` run with a logistic regression.
        predictions: the `predictions.parquet` of a training on its table.
    """

    def __init__(self, *, log: Path, predictions: Path) -> None:
        self.log, self.predictions = local(log, "the folder of the log"), local(predictions, "the predictions")

    def run(self, run: Run) -> Outcome:
        """Score the samples by logistic regression, and compare.

        Raises:
            UserError: a file is missing, or the log has no logistic regression.
            DataError: the predictions are of samples that are not in the log.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = self._read()
        scores = {name: torch.tensor(table[name].to_numpy()) for name in ("score", "teacher")}
        # The probability of each of these samples.
        ids_B = torch.tensor(table["id"].to_numpy())
        path = self.log / "logistic.safetensors"
        if not path.is_file():
            raise UserError(f"there is no {path}; set logistic in the recipe that makes the log")
        model, places = LogisticModel.load(path), ids_B.argsort()
        sorted_B, found_B = ids_B[places], torch.full((len(ids_B),), torch.nan)
        for chunk in FeatureTable(self.log / "table").log_chunks():
            at_B = torch.searchsorted(sorted_B, chunk.ids_B).clamp(max=len(sorted_B) - 1)
            asked = (sorted_B[at_B] == chunk.ids_B).nonzero()[:, 0]
            here = chunk.select(asked)
            found_B[places[at_B[asked]]] = model.score(here.features, here.dense_BF).sigmoid()
        if missing := int(found_B.isnan().sum()):
            raise DataError(f"{self.predictions} has {missing:,} samples that are not in {self.log / 'table'}")
        scores["logistic"] = found_B
        run.folder.mkdir(parents=True, exist_ok=True)
        with atomic_path(run.folder / "predictions.parquet") as unfinished:
            pq.write_table(table.append_column("logistic", pa.array(scores["logistic"].numpy())), unfinished)
        aucs = {name: ScoreRanks(score_B).expected_auc(scores["teacher"]) for name, score_B in scores.items()}
        # How far the model is from the teacher, and that over how far logistic regression is.
        ours, theirs = aucs["teacher"] - aucs["score"], aucs["teacher"] - aucs["logistic"]
        result = {f"{name}_auc": auc for name, auc in aucs.items()} | {
            "from_teacher": ours, "over_logistic": ours / theirs if theirs else float("inf"), "samples": len(table),
        }  # fmt: skip
        write_json(run.folder / "comparison.json", result)
        text = f"AUC {aucs['score']:.4f}, of the teacher {aucs['teacher']:.4f}, of logistic {aucs['logistic']:.4f}"
        return Outcome(text, result)

    def _read(self) -> "pa.Table":
        import pyarrow.parquet as pq

        if not self.predictions.is_file():
            raise UserError(f"there is no {self.predictions}; add the callback WritePredictions to the training")
        found = pq.read_table(self.predictions)
        if lacking := [name for name in _COLUMNS if name not in found.column_names]:
            raise UserError(
                f"{self.predictions} has no column {lacking[0]}; train on the table of a log with a teacher"
            )
        return found
