# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Measures what a made log is like: sessions, changes of groups, and the AUC of its teacher.

Shape letter: B samples.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.recsys.sessions.expected_auc import ScoreRanks
from nemo_vfm.sparse.log_chunk import LogChunk
from nemo_vfm.sparse.row_deduplication import row_changes


class LogStatistics:
    """Counts over samples that come session by session, in chunks of any size.

    Args:
        groups: features that change together, by name.
    """

    def __init__(self, groups: Mapping[str, Sequence[str]]) -> None:
        self._groups = groups
        self._samples = self._sessions = 0
        self._changes = dict.fromkeys(groups, 0)
        self._last: LogChunk | None = None
        self._teacher: list[Tensor] = []
        self._clicks = 0.0

    def add(self, chunk: LogChunk) -> None:
        """Count the next samples."""
        begins_B = torch.diff(chunk.session_B, prepend=chunk.session_B.new_tensor([-1])) != 0
        if self._last is not None:
            begins_B[0] = chunk.session_B[0] != self._last.session_B[0]
        for group, names in self._groups.items():
            changed_B = self._changed(chunk, names)
            self._changes[group] += int((changed_B & ~begins_B).sum())
        self._samples, self._sessions = self._samples + len(chunk), self._sessions + int(begins_B.sum())
        if "teacher" in chunk.labels:
            self._teacher.append(chunk.labels["teacher"])
            self._clicks += float(chunk.labels["click"].double().sum())
        self._last = chunk.rows(len(chunk) - 1, len(chunk))

    def json(self) -> dict[str, Json]:
        """S, d of each group, and AUC and rate of the teacher."""
        pairs = self._samples - self._sessions
        unchanged = {group: 1 - changes / pairs if pairs else None for group, changes in self._changes.items()}
        facts: dict[str, Json] = {
            "samples": self._samples, "sessions": self._sessions,
            "samples_per_session": self._samples / self._sessions if self._sessions else None, "unchanged": unchanged,
        }  # fmt: skip
        if self._teacher:
            teacher_B = torch.cat(self._teacher)
            facts |= {"teacher_auc": ScoreRanks(teacher_B).expected_auc(teacher_B)}
            facts |= {"teacher_rate": float(teacher_B.double().mean()), "click_rate": self._clicks / len(teacher_B)}
        return facts

    def _changed(self, chunk: LogChunk, names: Sequence[str]) -> Tensor:
        """Whether a row differs from the one before; the first of all counts as one that does."""
        if self._last is None:
            return row_changes([chunk.features[name] for name in names])
        both = LogChunk.cat([self._last, chunk])
        return row_changes([both.features[name] for name in names])[1:]
