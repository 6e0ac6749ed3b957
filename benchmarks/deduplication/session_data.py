# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
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

ROW_GROUPS, ZSTD = 40, 3
SCHEMA = recd_log(num_samples=1).schema()
GROUPS, HISTORIES = SCHEMA.groups, SCHEMA.windows


@dataclass(frozen=True)
class LogShape:
    """What a log is like; see `recd_log`.

    Args:
        rows_per_group: samples of a row group, of which there are 40.
        unchanged: d of all groups.
        session_share: of all ids, those in features of the session.
        rows: of each table, looked up by Zipf's law with exponent 1.05.
    """

    rows_per_group: int
    unchanged: float = 0.9
    session_share: float = 0.85
    rows: int = 100_000

    def log(self, seed: int = 0) -> SessionLog:
        """The log."""
        return recd_log(
            num_samples=self.rows_per_group * ROW_GROUPS, unchanged=self.unchanged,
            session_share=self.session_share, rows=self.rows, seed=seed,
        )  # fmt: skip


def clustered(log: SessionLog) -> LogChunk:
    """All samples, session by session, without the teacher's probabilities, which no log of users has."""
    chunk = log.samples(0, log.num_samples, clustered=True)
    return replace(chunk, labels={"click": chunk.labels["click"]})


def shuffled(chunk: LogChunk) -> LogChunk:
    """The same samples in random order."""
    return chunk.select(torch.randperm(len(chunk), generator=torch.Generator().manual_seed(1)))


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
    """A feature table of the chunk, in 40 row groups of one file."""
    schema = replace(
        SCHEMA, labels=tuple(chunk.labels), features=tuple(chunk.features), groups=GROUPS if groups else {},
        windows=windows if groups else (),
    )  # fmt: skip
    writer = FeatureTableWriter(
        folder, schema, rows_per_part=shape.rows_per_group * ROW_GROUPS,
        rows_per_group=shape.rows_per_group, zstd_level=ZSTD, clustered=in_order,
    )  # fmt: skip
    writer.add(chunk)
    writer.finish()
    return FeatureTable(folder)
