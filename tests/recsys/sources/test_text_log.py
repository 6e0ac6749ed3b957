"""Tests that CSV and JSON Lines become samples wherever reading begins, and that what is none is named by its line."""

import gzip
import hashlib
import json
import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.recsys.sources import text_blocks
from nemo_vfm.recsys.sources.log_reading import ImportSource, LogPosition
from nemo_vfm.recsys.sources.parquet_log import ParquetLog
from nemo_vfm.recsys.sources.text_log import TextLog
from nemo_vfm.sparse.log_chunk import LogChunk, LogSource
from tests.support.jagged_rows import lists
from tests.support.log_samples import samples_of

NAMES = {"session": "s", "time": "t", "labels": ["y"], "features": ["f"], "dense": ["d"]}
HEADER = "s,t,y,f,d\n"


def hash_of(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def log(tmp_path, *texts: str | bytes, name: str = "log.csv", **settings) -> TextLog:
    paths = []
    for number, text in enumerate(texts):
        content = text.encode() if isinstance(text, str) else text
        paths.append(tmp_path / f"{number}-{name}")
        paths[-1].write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return TextLog(paths=paths, **{**NAMES, **settings})


def read(source: ImportSource) -> tuple[LogChunk, list[tuple[int, str]]]:
    found = [*source.read(LogPosition())]
    return LogChunk.cat([one.chunk for one in found]), [(row.line, row.reason) for one in found for row in one.bad]


def test_cells_of_many_kinds_become_samples(tmp_path):
    source = log(tmp_path, HEADER + 'u1,5,1,7,0.5\nu2,6,True,"a, ""b""",\n u1 , 7 ,0,,1e3\r\nu3,8,0.25,5.0,nan\n')
    assert isinstance(source, ImportSource) and isinstance(source, LogSource)
    (chunk,) = source.log_chunks()
    assert chunk.session_B.tolist() == [hash_of(one) for one in ("u1", "u2", "u1", "u3")]
    assert chunk.time_B.tolist() == [5, 6, 7, 8] and chunk.labels["y"].tolist() == [1, 1, 0, 0.25]
    assert lists(chunk.features["f"]) == [[7], [hash_of('a, "b"')], [], [5]]
    assert chunk.dense["d"].tolist() == pytest.approx([0.5, math.nan, 1000, math.nan], nan_ok=True)
    assert chunk.ids_B.tolist() == [0, 1, 2, 3] and chunk.weight_B is None


def test_json_lines_csv_and_parquet_of_one_log_are_the_same_samples_packed_or_not(tmp_path):
    rows = [{"s": 2**64 - n, "t": n, "y": n % 2, "f": f"é{n % 5}", "d": n / 4, "w": 1 + n} for n in range(1, 40)]
    cells = "".join(",".join(map(str, row.values())) + "\n" for row in rows)
    objects = "".join(json.dumps(row) + "\n\n" for row in rows)
    expected, _ = read(log(tmp_path, "s,t,y,f,d,w\n" + cells, weight="w"))
    assert expected.session_B.tolist() == [-n for n in range(1, 40)]
    assert expected.weight_B is not None and expected.weight_B.tolist() == [n + 1 for n in range(1, 40)]
    columns = {name: pa.array([row[name] for row in rows], pa.uint64() if name == "s" else None) for name in rows[0]}
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    tabs = cells.replace(",", "\t")
    for found in (
        ParquetLog(paths=[tmp_path / "log.parquet"], weight="w", **NAMES),
        log(tmp_path, objects, name="log.jsonl", weight="w"),
        log(tmp_path, objects, name="log.ndjson.gz", weight="w"),
        log(tmp_path, cells, name="log.csv.gz", columns=["s", "t", "y", "f", "d", "w"], weight="w"),
        log(tmp_path, "\ufeffw\tt\ty\tf\td\ts\n" + "".join(
            "\t".join(map(str, ([row["w"], *[*row.values()][1:5], row["s"]]))) + "\r\n" for row in rows
        ), name="log.tsv", weight="w"),
        log(tmp_path, tabs, delimiter="\t", columns=["s", "t", "y", "f", "d", "w"], weight="w"),
    ):  # fmt: skip
        chunk, bad = read(found)
        assert not bad and samples_of(chunk) == samples_of(expected)
        assert chunk.weight_B is not None and chunk.weight_B.tolist() == expected.weight_B.tolist()


def test_reading_begins_at_the_end_of_any_block_with_the_same_samples_and_bad_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 40)
    cells = HEADER + "".join(f'{n},{n},1,"x\n{n}",1\n\n' if n % 3 else f'{n},{n},"1,{n},1\n' for n in range(30))
    objects = "".join(json.dumps({"s": n, "t": n, "y": 1 if n % 4 else None, "f": n}) + "\n" for n in range(30))
    for name in ("log.csv", "log.csv.gz", "log.jsonl"):
        text = objects if "json" in name else cells
        source = log(tmp_path, text, text, name=name, dense=[])
        whole = [*source.read(LogPosition())]
        assert len(whole) > 10 and sum(len(one.chunk) + len(one.bad) for one in whole) == 60
        for number in range(len(whole)):
            rest = [*source.read(whole[number].end)]
            assert [samples_of(one.chunk) for one in rest] == [samples_of(one.chunk) for one in whole[number + 1 :]]
            assert [(one.bad, one.end) for one in rest] == [(one.bad, one.end) for one in whole[number + 1 :]]


BAD = [
    ("1,2,1,3\n", "it does not have 5 columns"),
    ("1,2,1,3,4,\n", "it does not have 5 columns"),
    ('"1,2,1,3,4\n', "it is not CSV: a quote is not closed"),
    ('"1"x,2,1,3,4\n', "it is not CSV: ',' expected after '\"'"),
    (",2,1,3,4\n", "s is missing"),
    ("1,,1,3,4\n", "t is missing"),
    ("1,2,,3,4\n", "y is missing"),
    ("1,2,nan,3,4\n", "y is missing"),
    ("1,soon,1,3,4\n", "t is neither a whole number nor a date or time"),
    ("1,2,yes,3,4\n", "y is not a number"),
    ("1,2,1,3,1_0\n", "d is not a number"),
    ('1,2,1,"[3, 4]",4\n', "f has an id that is neither a whole number nor text"),
]


@pytest.mark.parametrize(("line", "reason"), BAD)
def test_a_bad_row_of_csv_is_named_by_its_line_and_spoils_no_other(line, reason, tmp_path):
    good = ["1,2,1,3,4\n", "5,6,0,7,8\n"]
    chunk, bad = read(log(tmp_path, HEADER + good[0] + "\n" + line + good[1]))
    assert chunk.session_B.tolist() == [1, 5] and chunk.ids_B.tolist() == [0, 2]
    assert bad == [(4, reason)]
    with pytest.raises(DataError, match=r"0-log\.csv, line 4: "):
        [*log(tmp_path, HEADER + good[0] + "\n" + line + good[1]).log_chunks()]


def test_a_bad_record_of_json_is_named_by_its_line_and_missing_keys_are_empty(tmp_path):
    lines = ['{"s": 1, "t": 2, "y": 0, "f": [4, "x"], "d": 2}', "{", "[1]", '{"s": 1, "t": 2, "f": 3}', "",
             '{"s": true, "t": 2, "y": 1}', '{"s": 1, "t": 2.5, "y": 1}', '{"s": 1, "t": 3, "y": true}',
             '{"s": 1, "t": 4, "y": 1, "f": [1, null], "d": 1}', '{"s": 1, "t": 4, "y": 1, "f": {"a": 1}}',
             '{"s": 1, "t": 4, "y": 1, "d": [1]}']  # fmt: skip
    chunk, bad = read(log(tmp_path, "\n".join(lines), name="log.jsonl"))
    assert lists(chunk.features["f"]) == [[4, hash_of("x")], []] and chunk.labels["y"].tolist() == [0, 1]
    assert chunk.dense["d"].tolist() == pytest.approx([2, math.nan], nan_ok=True) and chunk.ids_B.tolist() == [0, 6]
    assert bad == [
        (2, "it is not JSON"), (3, "it is not a JSON object"), (4, "y is missing"),
        (6, "s is neither a whole number nor text"), (7, "t is neither a whole number nor a date or time"),
        (9, "f has an id that is neither a whole number nor text"),
        (10, "f has an id that is neither a whole number nor text"),
        (11, "d is not a number"),
    ]  # fmt: skip


def test_a_quote_that_is_never_closed_spoils_its_own_row_however_long_the_file(tmp_path):
    rows = [f"{n},2,1,3,4\n" for n in range(500)]
    rows[7] = '"7,2,1,3,4\n'
    chunk, bad = read(log(tmp_path, HEADER + "".join(rows)))
    assert bad == [(9, "it is not CSV: a quote is not closed")]
    assert chunk.session_B.tolist() == chunk.ids_B.tolist() == [n for n in range(500) if n != 7]


def test_texts_hold_lists_where_the_recipe_says_what_stands_between_their_ids(tmp_path):
    text = "1,1,1,3|a| 4 ,1\n1,1,1,,1\n1,1,1,3||4,1\n1,1,1,NULL,NULL\n"
    chunk, bad = read(log(tmp_path, HEADER + text, lists={"f": "|"}, missing=["NULL"]))
    assert lists(chunk.features["f"]) == [[3, hash_of("a"), 4], [], []]
    assert math.isnan(chunk.dense["d"][2]) and bad == [(4, "f has an id that is neither a whole number nor text")]
    text = "1,1,1,\"[3, 'a']\",1\n1,1,1,[],1\n"
    chunk, bad = read(log(tmp_path, HEADER + text, lists={"f": ","}))
    assert lists(chunk.features["f"]) == [[3, hash_of("a")], []] and not bad


def test_dense_numbers_become_logarithms_where_the_recipe_says_so(tmp_path):
    chunk, _ = read(log(tmp_path, HEADER + "1,1,1,1,3\n1,1,1,1,-2\n1,1,1,1,\n", log1p=True))
    assert chunk.dense["d"].tolist() == pytest.approx([math.log(4), 0, math.nan], nan_ok=True)


def test_texts_of_times_are_counted_in_microseconds_in_their_order(tmp_path):
    texts = ["1970-01-01", "1970-01-01 00:00:01", "1970-01-01T02:00:01.5+02:00", "1970-01-01T00:00:02Z"]
    chunk, _ = read(log(tmp_path, HEADER + "".join(f"1,{text},1,1,1\n" for text in texts)))
    assert chunk.time_B.tolist() == [0, 1_000_000, 1_500_000, 2_000_000]


def test_ids_of_other_encodings_stay_apart(tmp_path):
    chunk, bad = read(log(tmp_path, HEADER.encode() + b"1,1,1,\xe9,1\n1,1,1,\xe8,1\n1,1,1,\xe9,1\n"))
    first, second, third = (row[0] for row in lists(chunk.features["f"]))
    assert first == third != second and not bad


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("s,t,y,ff,d\n1,1,1,1,1\n", "log.csv", r"no column f; did you mean ff\? .*split at ',', is 's, t, y, ff, d'"),
        (
            "1,1,1,1,1\n",
            "log.csv",
            r"no column s; its first line, split at ',', is '1, 1, 1, 1, 1'.* and columns if it has no header",
        ),
        ("s;t;y;f;d\n1;1;1;1;1\n", "log.csv", r"first line, split at ',', is 's;t;y;f;d'\. Set delimiter if"),
        ("s,t,y,f,f,d\n1,1,1,1,1,1\n", "log.csv", r"has 2 columns f; rename"),
        ("", "log.csv", r"has no column s"),
        ('{"s": 1, "t": 1, "y": 1, "ff": 1, "d": 2}\n', "log.jsonl", r"has a value of f; did you mean ff\?"),
    ],
)
def test_a_column_that_no_file_has_is_named_with_what_there_is(text, name, message, tmp_path):
    with pytest.raises(UserError, match=message):
        read(log(tmp_path, text, name=name))


def test_a_file_that_was_cut_and_a_line_without_end_are_errors_of_the_data(tmp_path, monkeypatch):
    source = log(tmp_path, HEADER + "1,2,1,3,4\n" * 1000, name="log.csv.gz")
    (path,) = source.files()
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="cannot be read beyond line"):
        read(source)
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 50)
    with pytest.raises(DataError, match=r"line 2 of .* is longer than 50 bytes"):
        read(log(tmp_path, HEADER + "1" * 60 + ",2,1,3,4\n"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"lists": {"g": "|"}}, "lists names g"), ({"lists": {"f": ""}}, r"lists\.f is empty"),
     ({"delimiter": "||"}, "one character"), ({"paths": []}, "paths is empty")],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(settings, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        TextLog(**{"paths": [tmp_path], **NAMES, **settings})
