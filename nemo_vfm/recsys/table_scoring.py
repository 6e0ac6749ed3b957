"""Scores the samples of a feature table with a trained ranker."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn

from nemo_vfm.core import ranks
from nemo_vfm.core.device import device
from nemo_vfm.core.errors import NothingKept, UserError
from nemo_vfm.core.log import bar, info, warn
from nemo_vfm.core.precision import Precision
from nemo_vfm.core.storage.files import atomic_path, read_json, write_json
from nemo_vfm.core.storage.uri import Place, place
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.job import Needs, Outcome, Run, makes
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.recommenders.table_choice import SizedModel
from nemo_vfm.parallel.checkpoint.checkpoint import weights_of
from nemo_vfm.parallel.checkpoint.checkpoint_ranks import gather_group
from nemo_vfm.parallel.checkpoint.checkpoint_reader import fill
from nemo_vfm.parallel.checkpoint.checkpoint_store import open_checkpoint
from nemo_vfm.parallel.engine.step_runner import EngineInputs, StepRunner
from nemo_vfm.parallel.engine.torch_engine import TorchEngine
from nemo_vfm.parallel.plan.mesh import join
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.plan.sharding_spec import OptimizerFactory
from nemo_vfm.parallel.ranks.process_group import everyone_says, first_says
from nemo_vfm.recsys.click import Click
from nemo_vfm.recsys.feature_table_data import FeatureTableData, OrderedBatches
from nemo_vfm.sparse.feature_batch import FeatureBatch

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "predictions.parquet"


@makes("predictions.parquet")
class ScoreTable:
    """Writes `predictions.parquet`: `id`, `session`, `weight`, the table's labels, a score a label, and `keep`.

    Ranks share the batches in parts, which are joined in the table's order. A killed run resumes with the missing
    parts. The file is the same to the byte after a resume, and on any number of ranks. With the training's batch size,
    the scores of held-out samples are bit for bit those that it measured.

    Args:
        model: builds the model; the same node as in training.
        checkpoint: a run folder, a folder of checkpoints (the newest complete one is taken), or a checkpoint.
        task: the training's; there is a score for each of its labels. The table may lack labels.
        data: the table. Under `out_of_range: weight_0`, samples with an id that is out of range are left out.
        samples: `all` of the table, or those that training holds out, with the seed of this run.
        keep: dense numbers and features to copy to columns; a feature's column has lists of ids.
        weights: which weights of the checkpoint; None takes the averaged ones (ema) if there are any.
        precision: of the arithmetic; only the training's gives the same bits.
        ranks: devices that share the work, each with the whole model.
        part_batches: batches of a part.
    """

    def __init__(
        self, *, model: Factory[[], nn.Module], checkpoint: Place, task: Click, data: FeatureTableData,
        samples: Literal["all", "held_out"] = "all", keep: Sequence[str] = (),
        weights: Literal["ema", "model"] | None = None, precision: Precision = Precision(), ranks: int = 1,
        part_batches: int = 64,
    ) -> None:  # fmt: skip
        if min(ranks, part_batches) < 1:
            raise ValueError(f"ranks ({ranks}) and part_batches ({part_batches}) must be at least 1")
        self.model: Factory[[], nn.Module] = SizedModel(model, data)
        self.checkpoint, self.task, self.data, self.samples = place(checkpoint), task, data, samples
        self.keep, self.weights, self.precision = tuple(keep), weights, precision
        self.ranks, self.part_batches = ranks, part_batches

    def needs(self, *, num_gpus: int | None = None, folder: Path | None = None) -> Needs:
        """See `HasNeeds`."""
        return Needs(ranks=self.ranks)

    def require(self, num_ranks: int) -> None:
        """See `MultiRankJob`."""
        ParallelPlan(replicate=self.ranks).require(num_ranks)

    def run(self, run: Run) -> Outcome:
        """Score the parts that are missing, and join all.

        Raises:
            UserError: there is no checkpoint, or it is of another model; or the table lacks a column.
            NothingKept: there are no samples.
        """
        import pyarrow.parquet as pq

        if self.ranks > 1:
            join(ParallelPlan(replicate=self.ranks), device())
        if self.samples == "all":
            batches = self.data.all_samples()
        else:
            self.data.start(seed=run.seed, first_batch=0)
            batches = self.data.held_out_batches()
        if not len(batches):
            raise NothingKept(f"{self.data.folder} holds out no samples, so there is nothing to score")
        engine, sha256 = self._engine(run.seed)
        plan: Json = {
            "weights": sha256, "table": batches.digest, "seed": run.seed, "samples": self.samples,
            "keep": [*self.keep], "labels": [*self.task.labels],
            "batches": [len(batches), self.data.batch_size, self.part_batches],
        }  # fmt: skip
        done = first_says(_prepare(run.folder, plan) if ranks.is_first() else "")
        if not done:
            self._score(run.folder, engine, batches)
            everyone_says("scored its parts")
            if ranks.is_first():
                # Join all parts, a batch at a time, and delete them.
                paths = [_part(run.folder, number) for number in range(-(-len(batches) // self.part_batches))]
                with (
                    atomic_path(run.folder / NAME) as temporary,
                    pq.ParquetWriter(temporary, pq.read_schema(paths[0])) as writer,
                ):
                    for file in map(pq.ParquetFile, paths):
                        for group in range(file.num_row_groups):
                            writer.write_table(file.read_row_group(group))
                for path in paths:
                    path.unlink()
            everyone_says("joined them")
        rows = pq.ParquetFile(run.folder / NAME).metadata.num_rows
        return Outcome(f"{rows:,} samples scored in {run.folder / NAME}", {"samples": rows}, bool(done))

    def _engine(self, seed: int) -> tuple[StepRunner, str]:
        """(engine with the weights, their SHA-256). Training evaluates with the same engine, so the bits are equal."""
        unused: OptimizerFactory = partial(torch.optim.SGD, lr=0.0)
        inputs = EngineInputs(self.model, self.task, unused, self.precision, seed, ParallelPlan())
        runner = TorchEngine().start(inputs)
        with open_checkpoint(self.checkpoint, gather_group()) as found:
            group = self.weights or ("ema" if "ema" in found.saved.groups else "model")
            fill(runner.model.state_dict(), weights_of(found.saved, group), gather_group())
            info(f"scores with the {group} weights of {found.name}")
            return runner, found.saved.sha256[group]

    def _score(self, folder: Path, runner: StepRunner, batches: OrderedBatches) -> None:
        """Write this rank's missing parts."""
        import pyarrow.parquet as pq

        parts = range(ranks.rank(), -(-len(batches) // self.part_batches), self.ranks)
        missing = {
            part: range(part * self.part_batches, min(len(batches), (part + 1) * self.part_batches))
            for part in parts if not _part(folder, part).is_file()
        }  # fmt: skip
        with bar("score", sum(map(len, missing.values())), 0, "batches") as progress:
            for part, numbers in missing.items():
                writer = None
                with atomic_path(_part(folder, part)) as path:
                    for number in numbers:
                        table = self._table(runner, batches[number], batches.dense)
                        writer = writer or pq.ParquetWriter(path, table.schema)
                        writer.write_table(table, row_group_size=max(1, len(table)))
                        progress.advance(1)
                    assert writer is not None
                    writer.close()

    def _table(self, runner: StepRunner, batch: FeatureBatch, dense: Sequence[str]) -> "pa.Table":
        """The rows of one batch, without samples of weight 0: some of their ids are out of range."""
        import pyarrow as pa

        # The task needs every label; those that the table lacks are NaN, and get no column.
        unknown = {name: torch.full((len(batch),), torch.nan) for name in self.task.labels if name not in batch.labels}
        valid_M = batch.weight_B.nonzero().squeeze(1)
        _, prepared = runner.evaluate(replace(batch, labels={**batch.labels, **unknown}))
        absent = {self.task.column_name("label", name) for name in unknown}
        found = {name: column for name, column in self.task.columns(prepared).items() if name not in absent}
        columns = {name: pa.array(column.cpu()[valid_M].numpy()) for name, column in found.items()}
        if taken := sorted(columns.keys() & {*self.keep}):
            raise UserError(f"keep names {taken[0]!r}, which is a column of predictions already")
        kept = batch.expand().select(valid_M) if self.keep else batch
        for name in self.keep:
            if name in dense:
                columns[name] = pa.array(kept.dense_BF[:, dense.index(name)].numpy())
            elif name in kept.features:
                rows = kept.features[name]
                columns[name] = pa.LargeListArray.from_arrays(rows.offsets.numpy(), rows.values_N.numpy())
            else:
                raise UserError(f"keep names {name}, but the table has {', '.join([*dense, *kept.features])}")
        return pa.table(columns)


def _part(folder: Path, number: int) -> Path:
    return folder / f".scores-{number:06d}.parquet"


def _prepare(folder: Path, plan: Json) -> str:
    """Delete what another plan wrote, and write this plan; "done" if all of it is scored already, else ""."""
    path = folder / "plan.json"
    before = read_json(path) if path.is_file() else None
    if before == plan and (folder / NAME).is_file():
        return "done"
    if before != plan:
        if before is not None:
            warn(f"the scores in {folder} are from other weights, settings or samples; they are made again")
        for old in [*folder.glob(".scores-*.parquet"), folder / NAME]:
            old.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, plan)
    return ""
