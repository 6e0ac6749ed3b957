"""Tests that rows are read from every kind of file as they are, and that damage is a sentence with the place."""

import bz2
import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nemo_vfm.core.errors import DataError, NemoVfmError, UserError
from nemo_vfm.synth.given.row_file import RowFile

ROWS = [{"prompt": f"Frage {number} äöü", "n": number, "more": {"a": [1, None, "x"]}} for number in range(300)]
PLAIN = "".join(json.dumps(row, ensure_ascii=bool(row["n"] % 2)) + "\n" for row in ROWS).encode()


def zstd(data: bytes) -> bytes:
    return pa.Codec("zstd").compress(data, asbytes=True)


PACKED = {".jsonl": lambda data: data, ".jsonl.gz": gzip.compress, ".jsonl.bz2": bz2.compress, ".jsonl.zst": zstd}


def written(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def read(path: Path, **more: Any) -> list[dict[str, Any]]:
    return [dict(row.values) for row in RowFile(path=path, **more).given_rows()]


@pytest.mark.parametrize("ending", PACKED)
def test_lines_are_read_as_they_are_and_each_knows_its_place(tmp_path: Path, ending: str) -> None:
    path = written(tmp_path / f"x{ending}", PACKED[ending](PLAIN + b"\n  \n"))
    assert read(path) == ROWS
    places = [row.where for row in RowFile(path=path).given_rows()]
    assert places[0] == f"x{ending} line 1" and places[-1] == f"x{ending} line 300"


@pytest.mark.parametrize("ending", [".jsonl.gz", ".jsonl.bz2", ".jsonl.zst"])
def test_a_packed_file_that_is_cut_off_is_never_taken_for_a_whole_one(tmp_path: Path, ending: str) -> None:
    data = PACKED[ending](PLAIN)
    for share in (0.3, 0.9, (len(data) - 1) / len(data)):
        path = written(tmp_path / f"x{ending}", data[: int(len(data) * share)])
        with pytest.raises(DataError, match=rf"x{ending} is damaged or truncated after line \d+ \(.*copy it again"):
            read(path)


def test_parquet_gives_the_same_rows_and_is_a_sentence_where_it_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "below/x.parquet"
    path.parent.mkdir()
    rows = [{"messages": [{"role": "user", "content": "a"}]},
            {"messages": [{"role": "tool", "content": "b", "name": "f"}]}]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), path)
    assert read(tmp_path) == rows, "a message has no field that only another has"
    assert next(RowFile(path=tmp_path).given_rows()).where == "below/x.parquet row 1"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"below/x.parquet is damaged or truncated after row 0"):
        read(tmp_path)
    pq.write_table(pa.table({"prompt": ["a"], "when": pa.array([0], pa.timestamp("s"))}), path)
    with pytest.raises(UserError, match=r"column when of row 1 of below/x.parquet holds values that JSON cannot"):
        read(tmp_path)


@pytest.mark.parametrize(("line", "said"), [
    (b'{"a": 1', "line 2 of x.jsonl cannot be read as JSON .*it is the last line and has no line end, so the file "
                 "may be trunc"),
    (b'{"a": 1,}\n', r"line 2 of x.jsonl cannot be read as JSON \(.*\)$"),
    (b'{"a": NaN}\n', "NaN is not a JSON number"),
    (b'{"a": 1e999}\n', "1e999 is not a JSON number"),
    (b'{"a": "\\ud800"}\n', "line 2 of x.jsonl cannot be read as JSON"),
    (b'{"a": "\xff"}\n', "line 2 of x.jsonl cannot be read as JSON"),
    (b"[" * 100_000 + b"\n", "line 2 of x.jsonl cannot be read as JSON"),
    (b"[1]\n", "line 2 of x.jsonl holds no JSON object"),
    (b'{"a": "' + b"x" * 2_000_000 + b'"}\n', "line 2 of x.jsonl is longer than 1,000,000 bytes; raise max_row_mb"),
])  # fmt: skip
def test_a_line_that_is_no_row_is_a_sentence_with_its_number(tmp_path: Path, line: bytes, said: str) -> None:
    path = written(tmp_path / "x.jsonl", b'{"a": 0}\n' + line)
    with pytest.raises(NemoVfmError, match=said):
        read(path, max_row_mb=1)


def test_files_that_are_none_of_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no file of rows in .*ending in .jsonl"):
        read(tmp_path)
    with pytest.raises(UserError, match=r"x.csv is not a file of rows; known endings are .jsonl"):
        read(written(tmp_path / "x.csv", b"a"))
    with pytest.raises(ValueError, match="max_row_mb must be above 0"):
        RowFile(path=tmp_path, max_row_mb=0)


def test_a_bomb_fills_no_memory(tmp_path: Path) -> None:
    path = written(tmp_path / "x.jsonl.gz", gzip.compress(b'{"a": "' + bytes(60_000_000)))
    tracemalloc.start()
    with pytest.raises(UserError, match="longer than 1,000,000 bytes"):
        read(path, max_row_mb=1)
    assert tracemalloc.get_traced_memory()[1] < 8e6
    tracemalloc.stop()
