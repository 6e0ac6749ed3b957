"""Says which samples of a log are held out: those of some sessions or users, those from a time on, or another table.

Shape letters: B samples.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from nemo_vfm.core.errors import DataError
from nemo_vfm.recsys.feature_table.row_order import held_out
from nemo_vfm.recsys.feature_table.table_reader import FeatureTable


@dataclass(frozen=True, kw_only=True)
class HeldOutShare:
    """All samples of a share of the sessions, or of the users; which ones is a function of the seed.

    A session that is held out may be of a user who is trained on, whose histories then hold what was clicked in it.
    """

    fraction: float  #: of the sessions or ids, above 0 and below 1
    #: with at most one id a sample, such as the user; samples without one are trained on. None: sessions.
    feature: str | None = None

    def __post_init__(self) -> None:
        if not 0 < self.fraction < 1:
            raise ValueError(f"the share that is held out must be above 0 and below 1, got {self.fraction:g}")


@dataclass(frozen=True, kw_only=True)
class HeldOutFrom:
    """All samples from a time on."""

    time: int  #: the first that is held out, in the unit of the table's times


@dataclass(frozen=True, kw_only=True)
class HeldOutTable:
    """The samples of another feature table, of which nothing is trained on.

    Args:
        folder: of the table, with the columns that are read.
        samples: how many of its first ones; None takes all.
    """

    folder: Path
    samples: int | None = None

    def __post_init__(self) -> None:
        if self.samples is not None and self.samples < 1:
            raise ValueError(f"at least 1 sample of {self.folder} must be held out, got {self.samples}")


@dataclass(frozen=True)
class TrainedRows:
    """Which samples of a table are trained on."""

    table: FeatureTable  #: the table
    held_out: HeldOutShare | HeldOutFrom | None  #: the others; None holds none out
    seed: int  #: of the run

    def of(self, row_group: int) -> Tensor:
        """Whether each sample of a row group is trained on: bool, (B,)."""
        match self.held_out:
            case None:
                begin, end = self.table.row_groups[row_group : row_group + 2]
                return torch.ones(end - begin, dtype=torch.bool)
            case HeldOutFrom(time=time):
                return self.table.numbers(row_group, "time") < time
            case HeldOutShare(fraction=fraction, feature=None):
                return ~held_out(self.table.numbers(row_group, "session"), self.seed, fraction)
        fraction, feature = self.held_out.fraction, self.held_out.feature
        assert feature is not None
        begin, end = self.table.row_groups[row_group : row_group + 2]
        ids = self.table.read(begin, end, [feature]).features[feature]
        if len(several := (ids.lengths_B > 1).nonzero()):
            raise DataError(
                f"sample {begin + int(several[0])} of {self.table.folder} has {int(ids.lengths_B[several[0]])} ids of "
                f"{feature}, by which samples are held out; name a feature with one id a sample, such as the user"
            )
        found_B = torch.zeros(end - begin, dtype=torch.bool)
        found_B[ids.lengths_B == 1] = held_out(ids.values_N, self.seed, fraction)
        return ~found_B
