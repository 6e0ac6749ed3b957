"""Writes a feature table of made-up samples, which training then reads as it reads any.

Shape letters: B samples.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from nemo_vfm.core.seed import generator
from nemo_vfm.recsys.feature_table.table_schema import TableSchema
from nemo_vfm.recsys.feature_table.table_writer import FeatureTableWriter
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.log_chunk import LogChunk
from nemo_vfm.sparse.tables.made_up_batch import FeatureSizes

_PER_SESSION = 8  # samples
_GROUP = 1 << 14  # samples of a row group
_BEGIN = 1 << 30  # time of the first sample, above that of every item of a history
_WINDOWS = 8  # of time, where the data has any


def write_mock_table(
    folder: Path, sizes: FeatureSizes, longest: int, num_samples: int, *, dense: Sequence[str] | None,
    others: Mapping[str, int], time_window: int | None,
    times: Sequence[str],
) -> None:  # fmt: skip
    """One id a sample of each feature, histories of any length up to the longest, labels of both kinds.

    Args:
        folder: where to.
        sizes: what is read of a sample.
        longest: items of a history.
        num_samples: of the table.
        dense: names of the dense numbers; None numbers them.
        others: features that the model does not read, and the rows of their tables.
        time_window: how long a window of time lasts; there are eight. None: samples come one time unit apart.
        times: features with the times of a history's items, in addition to the model's.
    """
    draw = generator(0, "made-up table")
    names = list(dense) if dense is not None else [f"dense_{number}" for number in range(sizes.dense)]
    clocks = [*dict.fromkeys((*times, *([sizes.times] if sizes.times else [])))]
    ids = {name: rows for name, rows in {**others, **sizes.rows}.items() if name not in clocks}
    schema = TableSchema(names, tuple(sizes.labels), (*ids, *clocks))
    writer = FeatureTableWriter(folder, schema, rows_per_group=_GROUP, rows_per_part=64 * _GROUP,
                                table_rows=ids, ids="made-up")  # fmt: skip
    for first in range(0, num_samples, _GROUP):
        count = min(_GROUP, num_samples - first)
        ids_B = torch.arange(first, first + count)
        step = 1 if time_window is None else max(1, time_window * _WINDOWS // num_samples)
        one_B, lengths_B = torch.ones_like(ids_B), torch.randint(longest + 1, (count,), generator=draw)
        places_N = torch.arange(int(lengths_B.sum())) - (lengths_B.cumsum(0) - lengths_B).repeat_interleave(lengths_B)
        features = {name: Jagged(places_N, lengths_B) for name in clocks}
        for name, rows in ids.items():
            each_B = lengths_B if name in sizes.history else one_B
            features[name] = Jagged(torch.randint(rows, (int(each_B.sum()),), generator=draw), each_B)
        columns: Mapping[str, Tensor] = {name: torch.randn(count, generator=draw) for name in names}
        labels = {name: torch.randint(2, (count,), generator=draw).float() for name in sizes.labels}
        writer.add(LogChunk(ids_B, ids_B // _PER_SESSION, _BEGIN + ids_B * step, columns, labels, features))
    writer.finish()
