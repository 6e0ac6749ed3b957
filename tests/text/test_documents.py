"""Tests that each kind of file gives whole documents in order, and that bad ones are counted; many stop the run."""

import gzip
import json
from collections import Counter
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.text.document_lines import files_of, portions
from nemo_vfm.text.documents import Documents

TEXTS = ["one\nline and another", "zwei ü", "  three  ", "\u2028 four"]


def rows(texts: list[str]) -> bytes:
    return "".join(json.dumps({"id": n, "text": text}) + "\n" for n, text in enumerate(texts)).encode()


MANY = rows(TEXTS * 5000)


def read(path: Path, **more: str) -> tuple[list[str], dict[str, int]]:
    skipped: Counter[str] = Counter()
    return list(Documents(path=path, **more).texts(skipped)), dict(skipped)


def test_each_kind_of_file_gives_its_texts_in_the_order_of_names(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.jsonl").write_bytes(rows(TEXTS))
    (tmp_path / "deep" / "b.jsonl.gz").write_bytes(gzip.compress(rows(TEXTS[:2])))
    pyarrow.parquet.write_table(pyarrow.table({"text": TEXTS, "n": [1, 2, 3, 4]}), tmp_path / "e.parquet")
    (tmp_path / "f.txt").write_text(TEXTS[0])
    (tmp_path / "notes.md").write_text("not read")
    assert read(tmp_path) == ([*TEXTS, *TEXTS[:2], *TEXTS, TEXTS[0]], {})
    assert read(tmp_path / "f.txt") == ([TEXTS[0]], {})


def test_bad_and_empty_documents_are_counted_by_reason(tmp_path: Path) -> None:
    lines = [b'{"text": "good"}', b"{", b'{"words": "x"}', b'{"text": 3}', b'{"text": " "}', b'{"text": null}', b"[]",
             b"", b'{"text": "end"}']  # fmt: skip
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe\xfd")
    told = {
        "not JSON": 1,
        "without 'text'": 1,
        "not a JSON object": 1,
        "'text' is not text": 1,
        "empty": 3,
        "not UTF-8": 1,
    }
    assert read(tmp_path) == (["good", "end"], told)


def test_a_document_may_have_a_million_bytes_for_each_mb_of_the_limit(tmp_path: Path) -> None:
    for letter, length in (("a", 1_500_000), ("b", 1_500_001)):
        (tmp_path / f"{letter}.txt").write_text(letter * length)
    skipped = Counter[str]()
    assert [text[0] for text in Documents(path=tmp_path, max_document_mb=1.5).texts(skipped)] == ["a"]
    assert skipped == {"longer than 1,500,000 bytes": 1}


def test_many_bad_ones_in_a_row_stop(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(rows(["good"]) + b"{\n" * 16)
    with pytest.raises(DataError, match=r"16 documents in a row up to number 17 of .*a\.jsonl are bad: not JSON"):
        read(tmp_path)


def test_a_column_that_no_document_has_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"id": 1, "body": "x"}\n' * 16)
    with pytest.raises(UserError, match=r"without 'text'; it has id, body\. Set `column`"):
        read(tmp_path)


def test_many_bad_ones_among_good_ones_stop_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes((rows(["good"]) + b"{\n" * 10) * 5)
    assert read(tmp_path) == (["good"] * 5, {"not JSON": 50})


def test_a_parquet_file_that_breaks_off_is_a_sentence_and_a_gzip_gives_what_came_before(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"text": TEXTS}), tmp_path / "whole")
    for name, content in (("a.parquet", (tmp_path / "whole").read_bytes()), ("a.jsonl.gz", gzip.compress(MANY))):
        (tmp_path / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"a\.parquet cannot be read as a Parquet file"):
        read(tmp_path / "a.parquet")
    texts, skipped = read(tmp_path / "a.jsonl.gz")
    assert texts and texts == (TEXTS * 5000)[: len(texts)] and skipped == {"damaged from here on: EOFError": 1}


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no file of documents"):
        read(tmp_path)
    pyarrow.parquet.write_table(pyarrow.table({"body": TEXTS}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match="has no column 'text'; it has body"):
        read(tmp_path)
    assert read(tmp_path, column="body") == (TEXTS, {})
    (tmp_path / "a.csv").write_text("x")
    with pytest.raises(UserError, match="is not a file of documents; known endings are"):
        read(tmp_path / "a.csv")


def test_the_state_changes_with_names_and_sizes_and_not_with_the_place(tmp_path: Path) -> None:
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "a.jsonl").write_bytes(rows(TEXTS))
    one, two = (Documents(path=tmp_path / place) for place in ("one", "two"))
    assert one.state() == two.state() == [["a.jsonl", len(rows(TEXTS))]]
    (tmp_path / "two" / "b.txt").write_text("more")
    assert one.state() != two.state()


def test_files_share_a_portion_up_to_its_size_to_the_byte(tmp_path):
    for name in ("a.txt", "b.txt", "c.txt"):
        (tmp_path / name).write_bytes(b"x" * 10)
    for most, shared in ((19, [1, 1, 1]), (20, [2, 1]), (30, [3])):
        assert [len(one.spans) for one in portions(*files_of(tmp_path), most)] == shared
