"""Tests which files of a user's folder are read: by media, texts and made videos alike."""

import gzip
import os
from collections import Counter
from pathlib import Path, PurePath

import pyarrow
import pyarrow.parquet
import pytest

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.storage.files import write_json
from nemo_vfm.core.storage.folder_walk import files_below, is_taken, say_passed_over, walk
from nemo_vfm.synth.given.row_file import RowFile
from nemo_vfm.synth.make_shapes import videos_in
from nemo_vfm.text.document_lines import files_of
from nemo_vfm.text.documents import Documents

ENDINGS = frozenset({".mp4"})


@pytest.mark.parametrize("name", ["a.mp4", "deep/b.MP4", "a b/c..mp4"])
def test_a_whole_file_of_that_ending_is_taken(name):
    assert is_taken(PurePath(name), ENDINGS)


@pytest.mark.parametrize("name", ["a.mp4.part", "a.mp4~", ".a.mp4", ".cache/a.mp4", "a.mkv", "mp4", "a.mp4.crdownload"])
def test_hidden_unfinished_and_other_files_are_not(name):
    assert not is_taken(PurePath(name), ENDINGS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a file, a deeper one, links and a pipe."""
    root = tmp_path / "in"
    for path in (tmp_path / "out/secret.mp4", root / "b.mp4", root / "a/c.mp4", root / ".hidden/d.mp4"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (root / "inside.mp4").symlink_to("b.mp4")
    (root / "outside.mp4").symlink_to(tmp_path / "out/secret.mp4")
    (root / "folder").symlink_to(tmp_path / "out")
    (root / "circle.mp4").symlink_to("circle.mp4")
    os.mkfifo(root / "pipe.mp4")
    return root


def test_links_that_lead_out_and_what_is_no_file_are_named_and_not_read(folder, capsys):
    found = {path.name: why for path, why in walk(folder, lambda name: is_taken(name, ENDINGS))}
    assert found == {
        "b.mp4": None, "c.mp4": None, "inside.mp4": None, "outside.mp4": "link_outside",
        "circle.mp4": "no_regular_file", "pipe.mp4": "no_regular_file",
    }  # fmt: skip
    said = capsys.readouterr().err
    assert "outside.mp4 is a link that points outside" in said and "pipe.mp4 is not a regular file" in said
    read = files_below(folder, lambda name: is_taken(name, ENDINGS))
    assert [path.relative_to(folder).as_posix() for path in read] == ["a/c.mp4", "b.mp4", "inside.mp4"]


def test_a_file_whose_path_is_too_long_to_be_opened_is_named_and_skipped(tmp_path, capsys, monkeypatch):
    (tmp_path / "a.mp4").touch()
    monkeypatch.chdir(tmp_path)
    while len(str(Path.cwd())) < 3900:
        Path("d" * 150).mkdir()
        os.chdir("d" * 150)
    Path("f" * 240 + ".mp4").touch()
    assert files_below(tmp_path, lambda name: is_taken(name, ENDINGS)) == [tmp_path / "a.mp4"]
    assert "is not a regular file" in capsys.readouterr().err


def test_made_videos_and_texts_keep_to_their_folder(tmp_path):
    (tmp_path / "in").mkdir()
    for name in ("secret.mp4", "secret.txt"):
        (tmp_path / name).write_text("secret")
        (tmp_path / "in" / name).symlink_to(tmp_path / name)
    with pytest.raises(UserError, match="no video file under"):
        videos_in(tmp_path / "in")
    with pytest.raises(UserError, match="there is no file of documents"):
        files_of(tmp_path / "in")
    (tmp_path / "in/own.txt").write_text("own")
    assert files_of(tmp_path / "in") == (tmp_path / "in", [("own.txt", "text")])


@pytest.mark.parametrize("name", [b"caf\xe9", b"n" * 240, "\u00fc".encode() * 120], ids=["latin-1", "long", "umlauts"])
def test_documents_and_rows_are_read_whatever_their_file_is_called(tmp_path, name):
    lines = b'{"text": "one"}\n{"text": "two"}\n'
    table = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table({"text": ["one", "two"]}), table)
    for end, data in {
        b".jsonl": lines, b".jsonl.gz": gzip.compress(lines), b".parquet": table.getvalue().to_pybytes(),
        b".jsonl.zst": pyarrow.compress(lines, "zstd", asbytes=True),
    }.items():  # fmt: skip
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name + end)).write_bytes(data)
    skipped = Counter()
    documents = Documents(path=tmp_path)
    assert sorted(documents.texts(skipped)) == ["one"] * 4 + ["two"] * 4 and not skipped
    write_json(tmp_path / "state", documents.state())
    rows = list(RowFile(path=tmp_path).given_rows())
    assert len(rows) == 8 and all(row.where.encode() for row in rows)


def test_a_folder_with_shards_among_what_is_passed_over_names_the_recipes_that_read_them(tmp_path, capsys):
    for name, hint in (("a.gif", 0), ("a.tar", 1)):
        say_passed_over(tmp_path, [PurePath(name)], ENDINGS)
        assert " ".join(capsys.readouterr().err.split()).count("nemo-vfm run curation/encode shards=DIR") == hint
