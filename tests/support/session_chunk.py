"""Makes a small log of sessions whose features repeat, shift, or are missing, and says whether two logs are equal."""

import torch

from nemo_vfm.recsys.feature_table.table_schema import TableSchema
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.log_chunk import LogChunk

SCHEMA = TableSchema(
    ["age"], ["click", "like"], ["item", "country", "scores", "history"],
    {"user": ["country", "scores"], "recent": ["history"]}, ["history"],
)  # fmt: skip


def session_chunk(sessions: int, seed: int = 0) -> LogChunk:
    """Some samples a session: an item each, a country and weighted scores that seldom change, a history that shifts."""
    numbers = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 12, (sessions,), generator=numbers)
    session_B = torch.repeat_interleave(torch.randperm(sessions, generator=numbers) + 1000, lengths)
    size = len(session_B)
    begins_B = torch.diff(session_B, prepend=session_B.new_zeros(1)) != 0
    row_B = (begins_B | (torch.rand(size, generator=numbers) < 0.2)).cumsum(0) - 1
    rows = int(row_B[-1]) + 1
    country = Jagged(torch.randint(0, 9, (rows,), generator=numbers), torch.ones(rows, dtype=torch.int64))
    scores = random_rows(rows, 4, numbers)
    items = random_rows(size, 3, numbers)
    weights_N = torch.rand(len(scores.values_N), generator=numbers)
    return LogChunk(
        torch.arange(size) * 7, session_B, torch.arange(size) * 100, {"age": torch.rand(size, generator=numbers)},
        {"click": torch.randint(0, 2, (size,), generator=numbers).float(), "like": torch.zeros(size)},
        {
            "item": items, "country": country.select(row_B),
            "scores": Jagged(scores.values_N, scores.lengths_B, weights_N).select(row_B),
            "history": shifting(begins_B, row_B, numbers),
        },
    )  # fmt: skip


def random_rows(count: int, longest: int, numbers: torch.Generator) -> Jagged:
    """Rows of 0 to `longest` ids."""
    lengths_B = torch.randint(0, longest + 1, (count,), generator=numbers)
    return Jagged(torch.randint(0, 10**12, (int(lengths_B.sum()),), generator=numbers), lengths_B)


def shifting(begins_B: torch.Tensor, row_B: torch.Tensor, numbers: torch.Generator) -> Jagged:
    """The last 5 of what a session has seen; each change adds an id, and a session may begin with none."""
    rows, seen, before = [], [], -1
    for begins, row in zip(begins_B.tolist(), row_B.tolist(), strict=True):
        if begins:
            seen = [int(n) for n in torch.randint(0, 50, (row % 4,), generator=numbers)]
        elif row != before:
            seen = [*seen, int(torch.randint(0, 50, (), generator=numbers))][-5:]
        rows.append(torch.tensor(seen, dtype=torch.int64))
        before = row
    return Jagged(torch.cat(rows), torch.tensor([*map(len, rows)]))


def equal_rows(a: Jagged, b: Jagged) -> bool:
    """Whether lengths, offsets, values and weights are the same."""
    pairs = zip(*[(one.values_N, one.lengths_B, one.offsets, one.weights_N) for one in (a, b)], strict=True)
    return all(x is y or (x is not None and y is not None and torch.equal(x, y)) for x, y in pairs)


def equal_chunks(a: LogChunk, b: LogChunk) -> bool:
    columns = [{"id": c.ids_B, "session": c.session_B, "time": c.time_B, **c.dense, **c.labels} for c in (a, b)]
    same = [*columns[0]] == [*columns[1]] and [*a.features] == [*b.features]
    same = same and all(torch.equal(column, columns[1][name]) for name, column in columns[0].items())
    return same and all(equal_rows(rows, b.features[name]) for name, rows in a.features.items())
