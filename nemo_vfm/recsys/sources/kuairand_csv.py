"""Reads the logs of KuaiRand, and gives each sample the videos that its user has clicked before.

Shape letters: B samples in the order of (user, time), C of them clicked.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from nemo_vfm.recsys.feature_table.table_schema import TableSchema
from nemo_vfm.recsys.sources.delimited_rows import parse
from nemo_vfm.recsys.sources.log_reading import LogFiles, LogPosition, ReadChunk, Sessions
from nemo_vfm.recsys.sources.text_blocks import TextFiles
from nemo_vfm.sparse.jagged import Jagged, run_begins, slice_positions
from nemo_vfm.sparse.log_chunk import LogChunk

#: Of `log_standard_*.csv` and `log_random_*.csv`, in KuaiRand-Pure, -1K and -27K alike.
HEADER = (
    "user_id,video_id,date,hourmin,time_ms,is_click,is_like,is_follow,is_comment,is_forward,is_hate,long_view,"
    "play_time_ms,duration_ms,profile_stay_time,comment_stay_time,is_profile_enter,is_rand,tab"
)
COLUMNS = tuple(HEADER.split(","))
HISTORY = "history"


class KuaiRandCsv(LogFiles):
    """KuaiRand's logs of videos that were shown. All columns are whole numbers, and those that are used must be there.

    Read by itself, all samples of a user are one session. `ImportLog` has them in order of time; it then cuts them
    where nothing was shown for a while, and adds the feature `history`: the last videos that were clicked before, the
    newest last. Times are in ms.

    Args:
        paths: the files, in order; those that end in .gz are unpacked.
        labels: columns to train on; is_click must be among them where there is a history.
        features: columns of ids.
        dense: columns of numbers.
        history: how many videos; 0 makes none.
        gap_minutes: a session ends where a user is shown nothing for longer.
        log1p: numbers x become ln(1 + max(x, 0)).
    """

    def __init__(
        self,
        *,
        paths: Sequence[Path],
        labels: Sequence[str] = ("is_click", "long_view"),
        features: Sequence[str] = ("user_id", "video_id", "tab"),
        dense: Sequence[str] = ("duration_ms",),
        history: int = 50,
        gap_minutes: float = 30.0,
        log1p: bool = True,
    ) -> None:
        super().__init__(paths)
        if unknown := [name for name in (*labels, *features, *dense) if name not in COLUMNS]:
            raise ValueError(f"KuaiRand has no column {unknown[0]}; it has {', '.join(COLUMNS)}")
        if history < 0 or gap_minutes <= 0:
            raise ValueError(f"history ({history}) must be at least 0, and gap_minutes ({gap_minutes}) above 0")
        if history and not ("is_click" in labels and "video_id" in features):
            raise ValueError("a history needs is_click among labels and video_id among features; or set history to 0")
        self.labels, self.features = tuple(labels), tuple(features)
        self.dense, self.history, self.gap_minutes, self.log1p = tuple(dense), history, gap_minutes, log1p

    def schema(self) -> TableSchema:
        """The history is a group of its own, stored as windows; so is the user."""
        groups = {"user": ["user_id"]} if "user_id" in self.features else {}
        if not self.history:
            return TableSchema(self.dense, self.labels, self.features, groups)
        return TableSchema(
            self.dense,
            self.labels,
            (*self.features, HISTORY),
            {**groups, HISTORY: [HISTORY]},
            [HISTORY],
            ids_of={HISTORY: "video_id"},
        )

    def sessions(self) -> Sessions:
        """Cut of what was shown to a user."""
        return "cut"

    def read(self, begin: LogPosition) -> Iterator[ReadChunk]:
        wanted = dict.fromkeys(("user_id", "time_ms", *self.labels, *self.features, *self.dense))
        for block in TextFiles(self.paths, HEADER).blocks(begin):
            cells = parse(block, COLUMNS, ",")
            columns = {}
            for name in wanted:
                numbers, present = cells.whole_numbers(name)
                cells.rows.refuse(~present, f"{name} is missing")
                columns[name] = torch.from_numpy(numbers.copy())
            dense = {name: columns[name].float() for name in self.dense}
            ones = torch.ones(len(cells.rows.numbers_L), dtype=torch.int64)
            chunk = LogChunk(
                torch.from_numpy(cells.rows.numbers_L), columns["user_id"], columns["time_ms"],
                {name: number_B.clamp(min=0).log1p() if self.log1p else number_B for name, number_B in dense.items()},
                {name: columns[name].float() for name in self.labels},
                {name: Jagged(columns[name], ones) for name in self.features},
            )  # fmt: skip
            yield cells.rows.read_chunk(chunk, block.end, block.share)

    def complete(self, chunk: LogChunk) -> LogChunk:
        """Cut users into sessions, and add histories."""
        users_B, times_B = chunk.session_B, chunk.time_B
        begins_B = run_begins(users_B)  # of sessions; each has the number of its first sample
        begins_B[1:] |= torch.diff(times_B) > round(self.gap_minutes * 60_000)
        session_B = chunk.ids_B[_last_begin(begins_B)]
        if not self.history:
            return replace(chunk, session_B=session_B)
        clicked_B, videos = chunk.labels["is_click"] > 0, chunk.features["video_id"]
        # A click counts from the next time on: samples of one time were shown at once, and none knows the others.
        before_B = clicked_B.cumsum(0) - clicked_B.to(torch.int64)  # clicks of samples before this one, of all users
        user_change_B = run_begins(users_B)
        clicks_B = before_B[_last_begin(user_change_B | run_begins(times_B))]
        lengths_B = (clicks_B - before_B[_last_begin(user_change_B)]).clamp(max=self.history)
        clicked_C = videos.select(clicked_B.nonzero().squeeze(1)).values_N
        history = Jagged(clicked_C[slice_positions(clicks_B - lengths_B, lengths_B)], lengths_B)
        return replace(chunk, session_B=session_B, features={**chunk.features, HISTORY: history})


def _last_begin(begins_B: Tensor) -> Tensor:
    """The last place up to each at which something begins."""
    return begins_B.nonzero().squeeze(1)[begins_B.cumsum(0) - 1]
