"""Makes the logs that both sides store, read and train on, and measures how sessions share their values."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from nemo_vfm.recsys.feature_table.table_reader import FeatureTable
from nemo_vfm.recsys.feature_table.table_writer import FeatureTableWriter
from nemo_vfm.recsys.sessions.recd_log import recd_log
from nemo_vfm.recsys.sessions.session_log import SessionLog
from nemo_vfm.sparse.dedup_groups import change_statistics
from nemo_vfm.sparse.log_chunk import LogChunk

ROW_GROUPS, ZSTD, _STRETCHES = 40, 3, 64
SCHEMA = recd_log(num_samples=1).schema()
GROUPS, HISTORIES = SCHEMA.groups, SCHEMA.windows


@dataclass(frozen=True)
class LogShape:
    """What a log is like; see `recd_log`.

    Args:
        rows_per_group: samples of a row group; the log has 40 of them.
        unchanged: d of all groups.
        session_share: of all ids, those in features of the session.
        rows: of each table, looked up by Zipf's law with exponent 1.05.
        row_groups: how many of the log's are made and measured.
    """

    rows_per_group: int
    unchanged: float = 0.9
    session_share: float = 0.85
    rows: int = 100_000
    row_groups: int = ROW_GROUPS

    def log(self, seed: int = 0) -> SessionLog:
        """The log."""
        return recd_log(
            num_samples=self.rows_per_group * ROW_GROUPS, unchanged=self.unchanged,
            session_share=self.session_share, rows=self.rows, seed=seed,
        )  # fmt: skip

    def samples(self) -> tuple[LogChunk, LogChunk]:
        """What is measured: samples in random order, and as many of whole sessions, one session after another.

        Where these are not all of the log, the former are of stretches from all over it: as few of each session as if
        the whole log were shuffled.
        """
        log, count = self.log(), self.rows_per_group * self.row_groups
        begins = range(0, log.num_samples, log.num_samples // _STRETCHES)
        spread = LogChunk.cat([log.samples(begin, begin + count // _STRETCHES) for begin in begins])
        order = torch.randperm(count, generator=torch.Generator().manual_seed(1))
        return _of_users(spread.select(order)), _of_users(log.samples(0, count, clustered=True))


def _of_users(chunk: LogChunk) -> LogChunk:
    """Without the teacher's probabilities, which no log of users has."""
    return replace(chunk, labels={"click": chunk.labels["click"]})


def sharing(chunk: LogChunk) -> str:
    """S, d, and the shares of values, as they are in this chunk."""
    counts = {name: len(rows.values_N) for name, rows in chunk.features.items()}
    session = sum(counts[name] for names in GROUPS.values() for name in names)
    lengths = {int(length) for name in HISTORIES for length in chunk.features[name].lengths_B.unique()}
    found = {group: change_statistics([chunk.features[n] for n in names], chunk.session_B)
             for group, names in GROUPS.items()}  # fmt: skip
    changes = ", ".join(f"{group} {one.unchanged:.3f}" for group, one in found.items())
    return (
        f"S {next(iter(found.values())).samples_per_session:.2f}, d of {changes}; {session / sum(counts.values()):.1%} "
        f"of {sum(counts.values()) // len(chunk)} values a sample in session features, "
        f"{sum(counts[name] for name in HISTORIES) / session:.1%} of these in histories of {lengths}"
    )


def written(chunk: LogChunk, folder: Path, shape: LogShape, *, groups: bool = True, windows: Sequence[str] = HISTORIES,
            in_order: bool = True) -> FeatureTable:  # fmt: skip
    """A feature table of the chunk, in one file."""
    schema = replace(
        SCHEMA, labels=tuple(chunk.labels), features=tuple(chunk.features), groups=GROUPS if groups else {},
        windows=windows if groups else (),
    )  # fmt: skip
    writer = FeatureTableWriter(
        folder, schema, rows_per_part=shape.rows_per_group * shape.row_groups,
        rows_per_group=shape.rows_per_group, zstd_level=ZSTD, clustered=in_order,
    )  # fmt: skip
    writer.add(chunk)
    writer.finish()
    return FeatureTable(folder)
