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
        self._labels: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, chunk: LogChunk, is_held_out_B: Tensor) -> None:
        """Count the next samples, at least one.

        Args:
            chunk: samples of a made log.
            is_held_out_B: which of them a training does not see.
        """
        begins_B = torch.diff(chunk.session_B, prepend=chunk.session_B.new_tensor([-1])) != 0
        if self._last is not None:
            begins_B[0] = chunk.session_B[0] != self._last.session_B[0]
        for group, names in self._groups.items():
            changed_B = self._changed(chunk, names)
            self._changes[group] += int((changed_B & ~begins_B).sum())
        self._samples, self._sessions = self._samples + len(chunk), self._sessions + int(begins_B.sum())
        if "teacher" in chunk.labels:
            self._labels.append((chunk.labels["teacher"], chunk.labels["click"], is_held_out_B))
        self._last = chunk.rows(len(chunk) - 1, len(chunk))

    def json(self) -> Json:
        """S, d of each group, and of all samples, those trained on and those held out the teacher's AUC and rate.

        d is None where no session has two samples. A side is left out where an AUC has no meaning.
        """
        pairs = self._samples - self._sessions
        unchanged = {group: 1 - changes / pairs if pairs else None for group, changes in self._changes.items()}
        return {
            "samples": self._samples, "sessions": self._sessions,
            "samples_per_session": self._samples / self._sessions, "unchanged": unchanged, "teacher": self._sides(),
        }  # fmt: skip

    def _sides(self) -> dict[str, Json]:
        if not self._labels:
            return {}
        teacher_B, click_B, is_held_out_B = map(torch.cat, zip(*self._labels, strict=True))
        sides = {"all": torch.ones_like(is_held_out_B)}
        if bool(is_held_out_B.any()):
            sides |= {"train": ~is_held_out_B, "held_out": is_held_out_B}
        return {name: _of_teacher(teacher_B[of], click_B[of]) for name, of in sides.items() if int(of.sum()) > 1}

    def _changed(self, chunk: LogChunk, names: Sequence[str]) -> Tensor:
        """Whether a row differs from the one before; the first of all counts as one that does."""
        if self._last is None:
            return row_changes([chunk.features[name] for name in names])
        both = LogChunk.cat([self._last, chunk])
        return row_changes([both.features[name] for name in names])[1:]


def _of_teacher(teacher_B: Tensor, click_B: Tensor) -> Json:
    auc = ScoreRanks(teacher_B).expected_auc(teacher_B)
    rates = {"rate": float(teacher_B.double().mean()), "click_rate": float(click_B.double().mean())}
    return {"samples": len(teacher_B), "auc": auc, **rates}
