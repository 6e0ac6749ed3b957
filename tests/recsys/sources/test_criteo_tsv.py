"""Tests that Criteo's logs are read as a reader of lines and cells reads them, with each bad row named."""

import math
import random
import re
from pathlib import Path

import pytest
import torch

from nemo_vfm.core.errors import DataError
from nemo_vfm.recsys.sources import text_blocks
from nemo_vfm.recsys.sources.criteo_tsv import DENSE, FEATURES, CriteoTsv
from nemo_vfm.recsys.sources.log_reading import ImportSource, LogPosition
from nemo_vfm.sparse.log_chunk import LogChunk, LogSource
from tests.support.jagged_rows import lists

INTEGERS = ["", "0", "17", "-2", "-0", "007", str(10**17)]
IDS = ["", "0", "a", "0abc", "68fd1e64", "FFFFFFFF", "00000000", "80000000"]
#: A cell that spoils a row: its column, its text, and a part of the reason.
FAULTS = [
    (0, "", "label"), (0, "2", "label"), (0, "-1", "label"), (0, "x", "click is not"), (3, "1.5", "I3"),
    (13, "1e3", "I13"), (5, "é", "I5"), (7, " 4", "I7"), (9, "9" * 30, "I9"), (14, "g", "C1"), (39, "123456789", "C26"),
    (20, "68fd1e6 ", "C7"), (21, "\x00", "C8"), (30, "1\t2", "40 columns"), (30, "1\r2", "C17"), (16, "ü", "C3"),
    (17, '"a', "C4"), (8, "\udcff", "I8"), (22, "\udcff" * 8, "C9"),
]  # fmt: skip


def line(seed: int) -> list[str]:
    """The cells of a good row."""
    draw = random.Random(seed)
    return [draw.choice("01"), *(draw.choice(INTEGERS) for _ in DENSE), *(draw.choice(IDS) for _ in FEATURES)]


def expected(cells: list[str]) -> list[object]:
    """What the row says, by Python's own words; the logarithm of its integers is left to the test of it."""
    return [float(cells[0]), *(math.nan if not cell else torch.tensor(float(int(cell))).item() for cell in cells[1:14]),
            *([int(cell, 16)] if cell else [] for cell in cells[14:])]  # fmt: skip


def rows(chunk: LogChunk) -> list[list[object]]:
    columns = [chunk.labels["click"].tolist(), *(chunk.dense[name].tolist() for name in DENSE),
               *(lists(chunk.features[name]) for name in FEATURES)]  # fmt: skip
    return [list(row) for row in zip(*columns, strict=True)]


@pytest.fixture
def faulty(tmp_path, monkeypatch) -> tuple[CriteoTsv, list[tuple[Path, int, list[str], str]]]:
    """Two files, a few rows a block, and of each row its place, cells and why it is bad."""
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 2000)
    good = [(line(seed), "") for seed in range(60)]
    bad = []
    for number, (column, text, reason) in enumerate(FAULTS):
        cells = line(1000 + number)
        cells[column] = text
        bad.append((cells, reason))
    bad += [(["1"], "40 columns"), ([], "label"), (line(7)[1:], "40 columns"), (["1", "\udcff"], "40 columns")]
    bad += [(["1", "ü" * 60], "40 columns"), (["12", "ü" * 60], "40 columns")]  # one is cut within a letter when shown
    table = random.Random(0).sample(good + bad, len(good) + len(bad))
    truth = []
    for number, part in enumerate((table[:33], table[33:])):
        path = tmp_path / f"day_{number}"
        path.write_bytes("\n".join("\t".join(cells) for cells, _ in part).encode(errors="surrogateescape") + b"\r\n")
        truth += [(path, place, cells, reason) for place, (cells, reason) in enumerate(part, 1)]
    return CriteoTsv(paths=sorted(tmp_path.iterdir()), log1p=False), truth


def test_it_is_a_source(faulty):
    assert isinstance(faulty[0], ImportSource) and isinstance(faulty[0], LogSource)


def test_good_rows_are_read_cell_by_cell_and_bad_ones_named_by_file_and_line(faulty):
    source, truth = faulty
    reads = [*source.read(LogPosition())]
    chunk = LogChunk.cat([read.chunk for read in reads])
    good = [number for number, row in enumerate(truth) if not row[3]]
    assert repr(rows(chunk)) == repr([expected(truth[number][2]) for number in good])  # NaN equals NaN
    assert chunk.ids_B.tolist() == chunk.session_B.tolist() == chunk.time_B.tolist() == good
    assert [line for read in reads for line in read.lines_B.tolist()] == [truth[number][1] for number in good]
    bad = [row for read in reads for row in read.bad]
    wanted = [(str(path), place, reason) for path, place, _, reason in truth if reason]
    assert [(row.file, row.line) for row in bad] == [row[:2] for row in wanted]
    assert all(reason in row.reason for row, (*_, reason) in zip(bad, wanted, strict=True)), bad
    assert sum(len(read.chunk) + len(read.bad) for read in reads) == reads[-1].end.row == len(truth) and len(reads) > 5


def test_reading_goes_on_from_the_end_of_any_block(faulty):
    source, _ = faulty
    reads = [*source.read(LogPosition())]
    for number, read in enumerate(reads):
        rest = [*source.read(read.end)]
        assert [(one.end, one.bad, one.chunk.ids_B.tolist()) for one in rest] == [
            (one.end, one.bad, one.chunk.ids_B.tolist()) for one in reads[number + 1 :]
        ]


def test_integers_become_logarithms_with_those_below_0_as_0(tmp_path):
    cells = ["1", "", "0", "-3", "1", "99", *"0" * 8, *[""] * 26]
    (tmp_path / "a").write_text("\t".join(cells))
    (chunk,) = CriteoTsv(paths=[tmp_path / "a"]).log_chunks()
    found = [chunk.dense[f"I{number}"].item() for number in range(1, 6)]
    assert math.isnan(found[0]) and found[1:] == pytest.approx([0, 0, math.log(2), math.log(100)])


def test_without_an_import_a_bad_row_stops(faulty):
    source, truth = faulty
    path, place = next((path, place) for path, place, _, reason in truth if reason)
    with pytest.raises(DataError, match=re.escape(f"{path}, line {place}: ")):
        [*source.log_chunks()]


def test_no_paths_are_refused():
    with pytest.raises(ValueError, match="paths is empty"):
        CriteoTsv(paths=[])
