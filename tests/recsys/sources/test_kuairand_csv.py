"""Tests that sessions and histories of KuaiRand are those that a loop over each user's samples finds."""

import re

import numpy as np
import pytest
import torch

from nemo_vfm.core.errors import DataError
from nemo_vfm.recsys.sources.kuairand_csv import COLUMNS, KuaiRandCsv
from nemo_vfm.recsys.sources.log_reading import ImportSource, LogPosition
from nemo_vfm.sparse.log_chunk import LogChunk, LogSource
from tests.support.jagged_rows import lists
from tests.support.kuairand_files import kuairand_rows, write_kuairand


def by_loop(rows: np.ndarray, history: int, gap_ms: int) -> list[tuple[int, int, list[int]]]:
    """Number, session and history of each sample, in the order of user, time and number."""
    found = []
    table = [dict(zip(COLUMNS, row, strict=True)) | {"number": number} for number, row in enumerate(rows.tolist())]
    for user in sorted({row["user_id"] for row in table}):
        own = sorted((row for row in table if row["user_id"] == user), key=lambda row: (row["time_ms"], row["number"]))
        session = None
        for place, row in enumerate(own):
            if session is None or row["time_ms"] - own[place - 1]["time_ms"] > gap_ms:
                session = row["number"]
            before = [one["video_id"] for one in own if one["time_ms"] < row["time_ms"] and one["is_click"]]
            found.append((row["number"], session, before[-history:]))
    return found


@pytest.mark.parametrize(("history", "gap_minutes"), [(5, 30), (1, 5), (1000, 600)])
def test_sessions_and_histories_are_those_of_a_loop(tmp_path, history, gap_minutes):
    rows = kuairand_rows(700)
    source = KuaiRandCsv(paths=[write_kuairand(tmp_path / "log.csv", rows)], history=history, gap_minutes=gap_minutes)
    assert isinstance(source, ImportSource) and isinstance(source, LogSource)
    read = LogChunk.cat([*source.log_chunks()])
    order = np.lexsort([column.numpy() for column in (read.ids_B, read.time_B, read.session_B)])
    chunk = source.complete(read.select(torch.from_numpy(order)))
    samples = [*zip(chunk.ids_B.tolist(), chunk.session_B.tolist(), lists(chunk.features["history"]), strict=True)]
    assert samples == by_loop(rows, history, gap_minutes * 60_000)
    assert len({len(sample[2]) for sample in samples}) > 1 and len({sample[1] for sample in samples}) > 30


def test_columns_become_labels_numbers_and_features_as_they_are_named(tmp_path):
    rows = kuairand_rows(50)
    column = {name: rows[:, place].tolist() for place, name in enumerate(COLUMNS)}
    paths = [
        write_kuairand(tmp_path / f"{part}.csv", rows[begin:end]) for part, begin, end in (("a", 0, 20), ("b", 20, 50))
    ]
    source = KuaiRandCsv(paths=paths, labels=["is_click"], features=["video_id", "tab"], dense=["duration_ms"])
    chunk = LogChunk.cat([*source.log_chunks()])
    assert chunk.ids_B.tolist() == [*range(50)] and chunk.session_B.tolist() == column["user_id"]
    assert chunk.time_B.tolist() == column["time_ms"] and chunk.labels["is_click"].tolist() == column["is_click"]
    assert {name: lists(ids) for name, ids in chunk.features.items()} == {
        name: [[one] for one in column[name]] for name in ("video_id", "tab")
    }
    assert chunk.dense["duration_ms"].tolist() == pytest.approx(np.log1p(column["duration_ms"]).tolist())
    plain = LogChunk.cat([*KuaiRandCsv(paths=paths, log1p=False).log_chunks()])
    assert plain.dense["duration_ms"].tolist() == column["duration_ms"]
    assert source.schema().groups == {"history": ("history",)} and source.schema().windows == ("history",)


@pytest.mark.parametrize(("name", "text"), [("user_id", ""), ("time_ms", "x"), ("is_click", ""), ("video_id", "1.5")])
def test_a_cell_that_is_missing_or_no_number_is_named(tmp_path, name, text):
    path = write_kuairand(tmp_path / "log.csv", kuairand_rows(9))
    lines = path.read_text().splitlines()
    cells = lines[4].split(",")
    cells[COLUMNS.index(name)] = text
    path.write_text("\n".join([*lines[:4], ",".join(cells), *lines[5:]]))
    source = KuaiRandCsv(paths=[path])
    (read,) = source.read(LogPosition())
    assert [(row.line, name in row.reason) for row in read.bad] == [(5, True)] and len(read.chunk) == 8
    with pytest.raises(DataError, match=re.escape(f"{path}, line 5: {name} is")):
        [*source.log_chunks()]


@pytest.mark.parametrize(("settings", "said"), [
    ({"paths": []}, "paths is empty"), ({"labels": ["clicks"]}, "no column clicks"), ({"history": -1}, "history"),
    ({"gap_minutes": 0}, "gap_minutes"), ({"labels": ["long_view"]}, "a history needs is_click"),
    ({"features": ["tab"]}, "video_id among features"),
])  # fmt: skip
def test_settings_that_cannot_be_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        KuaiRandCsv(**{"paths": ["a"], **settings})
