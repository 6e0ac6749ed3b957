"""Writes and reads vectors.parquet: the features of comparing stages, for deciding again without video."""

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.storage.files import atomic_path
from nemo_vfm.curate.decide.check_rules import comparisons
from nemo_vfm.curate.record.stage import ClipRecord, Stage

_AT_ONCE = 32
_NAMES = ("clip_id", "stage", "column", "vector")


def write_vectors(path: Path, records: Sequence[ClipRecord], stages: Mapping[str, Stage]) -> None:
    """vectors.parquet: a row for each clip and comparing stage; no row where nothing was remembered."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = (
        (record.clip.id, name, column, record.vectors[name])
        for column, (name, _) in comparisons(stages).items()
        for record in records
        if name in record.vectors
    )
    schema = pa.schema([(name, pa.string()) for name in _NAMES])
    # A vector is 50 KB of text, and no two are alike: some at a time, and no table of those that were seen.
    with (
        atomic_path(path) as temporary,
        pq.ParquetWriter(temporary, schema, use_dictionary=list(_NAMES[:-1])) as writer,
    ):
        while some := list(islice(rows, _AT_ONCE)):
            writer.write_table(pa.table([pa.array(values, pa.string()) for values in zip(*some, strict=True)], schema))


def read_vectors(path: Path) -> dict[str, dict[str, str]]:
    """Of every compared column, clip id -> vector; nothing where there is no such file.

    Raises:
        DataError: it is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        return {}
    try:
        table = pq.read_table(path, columns=list(_NAMES))
        found: dict[str, dict[str, str]] = {}
        for clip, column, vector in zip(*(table[name].to_pylist() for name in _NAMES if name != "stage"), strict=True):
            found.setdefault(str(column), {})[str(clip)] = str(vector)
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise DataError(f"{path} holds no vectors of clips, or is damaged ({error})") from error
    return found
