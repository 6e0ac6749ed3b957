"""Writes the batches that training would see as safetensors files, for other programs."""

import itertools
import shutil
from pathlib import Path

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.log import warn
from nemo_vfm.core.storage.files import read_json, write_json
from nemo_vfm.core.types.job import Outcome, Run, makes
from nemo_vfm.core.types.training_data import TrainingData
from nemo_vfm.sparse.feature_batch import FeatureBatch
from nemo_vfm.sparse.feature_files import write_features

FOLDER = "batches"


@makes("batches", "plan.json")
class ExportBatches:
    """Writes the first global batches, a file `batches/NNNNNN.safetensors` each, with all that a training needs.

    Features and groups are as `nemo_vfm.sparse.feature_files` says; below `samples/` are `dense` (B, F), `label/NAME`,
    `ids` and `weight`.

    Args:
        data: of a recommender; it begins as training with the seed of this run would.
        num_batches: how many files.
    """

    def __init__(self, *, data: TrainingData, num_batches: int) -> None:
        if num_batches < 1:
            raise ValueError(f"num_batches must be at least 1, got {num_batches}")
        self.data, self.num_batches = data, num_batches

    def run(self, run: Run) -> Outcome:
        """Write the files that are not there yet; each is whole or absent.

        Raises:
            UserError: the data gives batches of something else.
            DataError: the data is damaged.
        """
        folder = run.folder / FOLDER
        # Take away the batches of other settings than this run has; how many there are to be does not matter.
        settings = {name: value for name, value in run.settings.items() if name != "num_batches"}
        plan = {"format": 2, "settings": settings, "seed": run.seed, "before": run.before}
        path = run.folder / "plan.json"
        if path.is_file() and read_json(path) != plan:
            warn(f"{folder} holds batches made with other settings; they are written again")
            shutil.rmtree(folder, ignore_errors=True)
        write_json(path, plan)
        first = next(number for number in itertools.count() if not _file(folder, number).exists())
        if first < self.num_batches:
            self.data.start(seed=run.seed, first_batch=first)
            for batch in itertools.islice(self.data.train_dataloader(), self.num_batches - first):
                if not isinstance(batch, FeatureBatch):
                    raise UserError(
                        f"the data yields {type(batch).__name__}, which has no features; use data of a recommender, "
                        "such as nemo_vfm.recsys.feature_table_data.FeatureTableData"
                    )
                labels = {f"label/{name}": label_B for name, label_B in batch.labels.items()}
                samples = {"ids": batch.ids_B, "weight": batch.weight_B, "dense": batch.dense_BF, **labels}
                write_features(_file(folder, batch.index), batch.features, batch.groups, samples)
        written = sum(_file(folder, number).stat().st_size for number in range(self.num_batches))
        return Outcome(
            f"{self.num_batches:,} batches, {written / 1e6:,.1f} MB, in {folder}",
            {"batches": self.num_batches, "bytes": written},
            did_nothing=first >= self.num_batches,
        )


def _file(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.safetensors"
