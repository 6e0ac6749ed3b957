"""Writes what a trained model predicts for each held-out sample to predictions.parquet."""

from pathlib import Path

from nemo_vfm.core import log, ranks
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.storage.files import atomic_path
from nemo_vfm.core.types.task import ScoresSamples
from nemo_vfm.parallel.ranks.process_group import everyone_says
from nemo_vfm.train.state.train_state import TrainState
from nemo_vfm.train.state.validation_batches import evaluate_batches, speaks_for_slice

_PART = ".predictions-{}.parquet"


class WritePredictions:
    """Writes `predictions.parquet` at the end of a run, with the averaged weights if there are any.

    It has a row for each held-out sample that counts, in the order of the data however many ranks there are, and the
    columns that the task names: of `Click` its id, session, weight, label and predicted probability, and further labels
    of the data. Samples of weight 0, bad ones or ones without an observed label, are left out.
    """

    def on_start(self, fit: TrainState) -> None:
        """Refuse what could only fail at the end. UserError if the task scores no samples."""
        if not isinstance(fit.task, ScoresSamples):
            raise UserError(f"{type(fit.task).__name__} scores no samples, so there are no predictions to write; "
                            f"remove this callback, or use a task such as nemo_vfm.recsys.click.Click")  # fmt: skip

    def on_step(self, fit: TrainState) -> None:
        """At the end: each slice writes its batches to a file of its own, and the first rank joins them."""
        if not (fit.finished or fit.ended_early):
            return
        import pyarrow as pa
        import pyarrow.parquet as pq

        assert isinstance(fit.task, ScoresSamples)
        # This rank's slice, a row group for each batch.
        path, speaks = fit.run.folder / _PART.format(fit.data_rank), speaks_for_slice(fit)
        if speaks:
            path.unlink(missing_ok=True)
        writer = None
        try:
            for _, _, prepared in evaluate_batches(fit):
                if speaks:
                    columns, counted_B = fit.task.columns(prepared), prepared.weight_B > 0
                    table = pa.table({name: column[counted_B].cpu().numpy() for name, column in columns.items()})
                    writer = writer or pq.ParquetWriter(path, table.schema)
                    writer.write_table(table, row_group_size=max(1, len(table)))
        finally:
            if writer is not None:
                writer.close()
        everyone_says("wrote its part")
        if ranks.is_first():
            _join(fit.run.folder, fit.plan.data)


def _join(folder: Path, num_slices: int) -> None:
    """One file of all parts, batch after batch, each of which is read alone; then the parts go."""
    import pyarrow.parquet as pq

    parts = [path for n in range(num_slices) if (path := folder / _PART.format(n)).is_file()]
    if not parts:
        log.warn("nothing is held out, so there are no predictions to write; hold samples out")
        return
    files = [pq.ParquetFile(path) for path in parts]
    with (
        atomic_path(folder / "predictions.parquet") as temporary,
        pq.ParquetWriter(temporary, files[0].schema_arrow) as writer,
    ):
        for number in range(sum(file.num_row_groups for file in files)):  # batch n is the next one of file n modulo all
            writer.write_table(files[number % len(files)].read_row_group(number // len(files)))
    for path in folder.glob(_PART.format("*")):
        path.unlink()
