"""Makes logs in KuaiRand's format, with users that come back after a while."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.recsys.sources.kuairand_csv import COLUMNS, HEADER

_MINUTE_MS = 60_000


def kuairand_rows(num_rows: int, seed: int = 0, num_users: int = 30) -> NDArray[np.int64]:
    """Rows in any order; a user is shown some videos at one time, and the next ones minutes or hours later."""
    draw = np.random.default_rng(seed)
    rows = np.zeros((num_rows, len(COLUMNS)), np.int64)
    column = {name: rows[:, place] for place, name in enumerate(COLUMNS)}
    column["user_id"][:] = draw.integers(0, num_users, num_rows)
    column["video_id"][:] = draw.integers(0, 500, num_rows)
    column["time_ms"][:] = 1_649_000_000_000 + draw.integers(0, 40, num_rows) ** 2 * 5 * _MINUTE_MS
    column["is_click"][:] = draw.random(num_rows) < 0.4
    column["long_view"][:] = draw.random(num_rows) < 0.3
    column["duration_ms"][:] = draw.integers(3_000, 300_000, num_rows)
    column["tab"][:] = draw.integers(0, 5, num_rows)
    return rows


def write_kuairand(path: Path, rows: NDArray[np.int64]) -> Path:
    lines = [HEADER, *(",".join(map(str, row)) for row in rows.tolist())]
    path.write_text("\n".join(lines) + "\n")
    return path
