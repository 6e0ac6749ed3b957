# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Makes the logs that both sides store, read and train on.

A sample has 96 ids of histories (two of 48 that shift together), `others` ids of the user in four features, and 22 of
the item in 22 features: with 32 of the user, 85 % of the ids are of the session, three quarters of them in histories.
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from nemo_vfm.recsys.feature_table.table_reader import FeatureTable
from nemo_vfm.recsys.feature_table.table_schema import TableSchema
from nemo_vfm.recsys.feature_table.table_writer import FeatureTableWriter
from nemo_vfm.recsys.sessions.id_feature import IdFeature
from nemo_vfm.recsys.sessions.session_log import SessionGroup, SessionLog
from nemo_vfm.recsys.sessions.teacher import Teacher
from nemo_vfm.sparse.log_chunk import LogChunk

HISTORY, ROW_GROUPS, ZSTD = 48, 40, 3
HISTORIES, USER = ("watched", "watched_topic"), tuple(f"user_{n}" for n in range(4))
ITEM = ("item", "topic", *(f"item_{n}" for n in range(20)))
GROUPS = {"history": HISTORIES, "user": USER}


@dataclass(frozen=True)
class LogShape:
    """What a log is like.

    Args:
        rows_per_group: samples of a row group, of which there are 40.
        unchanged: d of both groups.
        user_ids: ids of each of the four features of the user.
        item_ids: ids of each feature of the item.
        samples_per_session: S, the mean of a geometric distribution.
        rows: of each table, looked up by Zipf's law with exponent 1.05.
    """

    rows_per_group: int
    unchanged: float = 0.9
    user_ids: int = 8
    item_ids: int = 1
    samples_per_session: float = 16.5
    rows: int = 100_000

    @property
    def session_share(self) -> float:
        """Of all ids, those of the session."""
        session = len(HISTORIES) * HISTORY + len(USER) * self.user_ids
        return session / (session + len(ITEM) * self.item_ids)

    def log(self, teacher: Teacher | None = None, seed: int = 0) -> SessionLog:
        """The log."""
        history = {name: IdFeature(rows=self.rows, length=HISTORY, history=True) for name in HISTORIES}
        user = {name: IdFeature(rows=self.rows, length=self.user_ids) for name in USER}
        groups = {"history": history, "user": user}
        return SessionLog(
            num_samples=self.rows_per_group * ROW_GROUPS,
            samples_per_session=self.samples_per_session,
            groups={name: SessionGroup(unchanged=self.unchanged, features=of) for name, of in groups.items()},
            features={name: IdFeature(rows=self.rows, length=self.item_ids) for name in ITEM},
            dense=("age", "price"),
            teacher=teacher,
            seed=seed,
        )


def clustered(log: SessionLog) -> LogChunk:
    """All samples, session by session."""
    return log.samples(0, log.num_samples, clustered=True)


def shuffled(chunk: LogChunk) -> LogChunk:
    """The same samples in random order."""
    return chunk.select(torch.randperm(len(chunk), generator=torch.Generator().manual_seed(1)))


def schema(chunk: LogChunk, *, groups: bool, windows: bool) -> TableSchema:
    """Of a table of this chunk."""
    return TableSchema(
        dense=tuple(chunk.dense), labels=tuple(chunk.labels), features=tuple(chunk.features),
        groups=GROUPS if groups else {}, windows=HISTORIES if windows else (),
    )  # fmt: skip


def written(chunk: LogChunk, folder: Path, shape: LogShape, *, groups: bool = True, windows: bool = True,
            in_order: bool = True) -> FeatureTable:  # fmt: skip
    """A feature table of the chunk, in 40 row groups of one file."""
    writer = FeatureTableWriter(
        folder, schema(chunk, groups=groups, windows=windows), rows_per_part=shape.rows_per_group * ROW_GROUPS,
        rows_per_group=shape.rows_per_group, zstd_level=ZSTD, clustered=in_order,
    )  # fmt: skip
    writer.add(chunk)
    writer.finish()
    return FeatureTable(folder)
