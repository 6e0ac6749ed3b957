"""Makes a log of sessions and writes it as a service would leave it: a Parquet file a day, with raw ids."""

from nemo_vfm.core.log import bar, warn
from nemo_vfm.core.storage.files import atomic_path, read_json, write_json
from nemo_vfm.core.types.job import Outcome, Run, makes
from nemo_vfm.recsys.sessions.session_log import SessionLog
from nemo_vfm.sparse.row_fingerprint import mix64_

_OWN_COLUMNS = ("session", "time", "click", "teacher")


@makes("day-*.parquet")
class MakeRawLog:
    """Writes `day-1.parquet`, `day-2.parquet` and so on, each in the order of time, for `ParquetLog`.

    Columns are `session`, `time` (microseconds), the dense numbers, the labels `click` and `teacher` where there is a
    teacher, and the features, lists of ids. Ids are numbers of 64 bits, as a service has them: no rows of a table.

    Args:
        log: the log to make.
    """

    def __init__(self, *, log: SessionLog) -> None:
        if taken := sorted({*log.dense, *log.schema().features} & {*_OWN_COLUMNS}):
            raise ValueError(f"{taken[0]} is already a column of a raw log; give the feature another name")
        self.log = log

    def run(self, run: Run) -> Outcome:
        """Write the days that are not there yet; each is whole or absent."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        log = self.log.with_seed(run.seed)
        path, plan = run.folder / "plan.json", {"settings": run.settings, "seed": run.seed}
        if path.is_file() and read_json(path) != plan:
            warn(f"{run.folder} holds a log made with other settings; it is made again")
            for old in run.folder.glob("day-*.parquet"):
                old.unlink()
        write_json(path, plan)
        paths = [run.folder / f"day-{day + 1}.parquet" for day in range(log.days)]
        missing = [day for day, path in enumerate(paths) if not path.is_file()]
        with bar("make days", len(missing) * log.num_samples // log.days) as line:
            for day in missing:
                writer = None
                with atomic_path(paths[day]) as unfinished:
                    for chunk in log.day_chunks(day):
                        columns = {"session": chunk.session_B, "time": chunk.time_B, **chunk.dense, **chunk.labels}
                        features = {  # ids by a bijection, so that the same id is the same number everywhere
                            name: pa.LargeListArray.from_arrays(
                                ids.offsets.numpy(), mix64_(ids.values_N.clone()).numpy()
                            )
                            for name, ids in chunk.features.items()
                        }
                        table = pa.table(
                            {name: pa.array(column_B.numpy()) for name, column_B in columns.items()} | features
                        )
                        writer = writer or pq.ParquetWriter(unfinished, table.schema)
                        writer.write_table(table)
                        line.advance(len(chunk))
                    assert writer is not None, "a day has samples"
                    writer.close()
        figures = {"samples": log.num_samples, "days": log.days}
        return Outcome(f"{log.num_samples:,} samples, one file a day in {run.folder}", figures, not missing)
