"""Tests which files of messy folders are videos to curate."""

import json
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.job import Run
from nemo_vfm.curate.execute.inline_executor import Inline
from nemo_vfm.curate.sources.video_source import Folder
from tests.support.films import job, pan, write_film
from tests.support.stills import write_still


def touch(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    return path


def test_videos_of_all_folders_come_sorted_and_nothing_else_comes(tmp_path):
    for name in ("b.mp4", "a/z.MOV", "a/.hidden.mp4", ".trash/x.mp4", "b.txt", "b.json", "c.mp4.part", "d.mkv~"):
        touch(tmp_path / name)
    assert [found.name for found in Folder(path=tmp_path).files()] == ["a/z.MOV", "b.mp4"]


def test_what_has_another_ending_is_passed_over_in_one_line(tmp_path, capsys):
    for name in ("a.mp4", "b.gif", "deep/c.gif", "d.tif", "cover.jpg", "a.txt", ".x.gif"):
        touch(tmp_path / name)
    Folder(path=tmp_path).files()
    said = capsys.readouterr().err
    assert said.count("passed over") == 1 and "3 files in" in said and "2 .gif, 1 .tif;" in said


def test_the_other_folder_is_taken_when_the_user_names_none(tmp_path):
    touch(tmp_path / "made/a.mp4")
    assert [f.name for f in Folder(path=None, otherwise=tmp_path / "made").files()] == ["a.mp4"]
    touch(tmp_path / "mine/b.mp4")
    assert [f.name for f in Folder(path=tmp_path / "mine", otherwise=tmp_path / "made").files()] == ["b.mp4"]


def test_a_link_out_of_the_folder_is_not_followed_and_one_inside_is(tmp_path):
    outside, inside = touch(tmp_path / "secret/a.mp4"), touch(tmp_path / "in/b.mp4")
    (tmp_path / "in/out.mp4").symlink_to(outside)
    (tmp_path / "in/copy.mp4").symlink_to(inside)
    (tmp_path / "in/folder").symlink_to(tmp_path / "secret")
    assert [found.name for found in Folder(path=tmp_path / "in").files() if not found.passed_over] == [
        "b.mp4",
        "copy.mp4",
    ]


def test_a_single_file_is_a_source(tmp_path):
    assert [found.name for found in Folder(path=touch(tmp_path / "a.mp4")).files()] == ["a.mp4"]


def test_a_folder_without_videos_is_the_users_to_fix(tmp_path):
    touch(tmp_path / "a.txt")
    with pytest.raises(UserError, match="holds no video file"):
        Folder(path=tmp_path).files()
    with pytest.raises(UserError, match="not a folder"):
        Folder(path=tmp_path / "absent").files()


def test_neither_folder_is_refused_when_built():
    with pytest.raises(ValueError, match="input=DIR"):
        Folder(path=None)


def test_pipes_and_links_that_lead_nowhere_are_passed_over_and_said(tmp_path, capsys):
    """A pipe held the probing for two times ten minutes; a link to itself ended the run."""
    touch(tmp_path / "a.mp4")
    os.mkfifo(tmp_path / "pipe.mp4")
    (tmp_path / "circle.mp4").symlink_to("circle.mp4")
    (tmp_path / "broken.mp4").symlink_to("nowhere.mp4")
    (tmp_path / "folder.mp4").mkdir()
    assert [found.name for found in Folder(path=tmp_path).files() if not found.passed_over] == ["a.mp4"]
    said = capsys.readouterr().err
    assert all(name in said for name in ("pipe.mp4", "circle.mp4", "broken.mp4"))


def test_a_name_that_is_no_text_gets_one_that_tables_can_hold(tmp_path):
    (tmp_path / "b").mkdir()
    path = os.fsencode(tmp_path / "b") + b"/\xff\xc3\xa9.mp4"
    os.close(os.open(path, os.O_CREAT))
    (found,) = Folder(path=tmp_path).files()
    assert (found.name, os.fsencode(found.path)) == ("b/\\xff\u00e9.mp4", path)
    assert [one.name for one in Folder(path=found.path).files()] == ["\\xff\u00e9.mp4"]


def test_a_curation_takes_videos_and_images_of_any_name_with_the_captions_beside_them(tmp_path):
    (tmp_path / "in").mkdir()
    names = [b"caf\xe9", b"n" * 251]
    for number, name in enumerate(names):
        place = os.fsencode(tmp_path / "in") + b"/" + name
        write_film(Path(os.fsdecode(place + b".mp4")), pan(number))
        write_still(Path(os.fsdecode(place + b".png")), 10 + number)
        Path(os.fsdecode(place + b".txt")).write_text(str(number))
    source = Folder(path=tmp_path / "in", take="both")
    job(tmp_path / "in", source=source, executor=Inline(isolated=False)).run(Run(tmp_path / "run"))
    rows = pq.read_table(tmp_path / "run/scores.parquet").to_pylist()
    stems = [name.decode(errors="backslashreplace") for name in names]
    assert {(row["source"], row["caption"], row["decision"]) for row in rows} == {
        (f"{stem}{end}", str(number), "kept") for number, stem in enumerate(stems) for end in (".mp4", ".png")
    }


def test_what_is_passed_over_is_listed_with_the_reason_and_never_opened(tmp_path):
    videos = tmp_path / "videos"
    write_film(videos / "a.mp4", pan(1))
    write_film(tmp_path / "secret.mp4", pan(2))
    (videos / "b.mp4").symlink_to("a.mp4")
    (videos / "out.mp4").symlink_to(tmp_path / "secret.mp4")
    (videos / "round.mp4").symlink_to("round.mp4")
    os.mkfifo(videos / "pipe.mp4")
    found = {one.name: one.passed_over for one in Folder(path=videos).files()}
    expected = {"out.mp4": "link_outside", "round.mp4": "no_regular_file", "pipe.mp4": "no_regular_file"}
    assert found == {"a.mp4": None, "b.mp4": None} | expected
    job(videos, executor=Inline(isolated=False)).run(Run(tmp_path / "run"))
    rows = {row["file"]: row for row in json.loads((tmp_path / "run/files.json").read_text())}
    assert {name: (rows[name]["decision"], rows[name]["reason"]) for name in expected} == {
        name: ("dropped", why) for name, why in expected.items()
    }
    assert (rows["b.mp4"]["reason"], rows["b.mp4"]["duplicate_of"]) == ("exact_duplicate", "a.mp4")
    files = json.loads((tmp_path / "run/ledger.json").read_text())["files"]
    assert files == {
        "in": 5, "kept": 1, "dropped": {"exact_duplicate": 1, "link_outside": 1, "no_regular_file": 2}, "failed": {},
    }  # fmt: skip


def test_a_folder_of_nothing_but_links_that_lead_out_holds_no_video(tmp_path):
    (tmp_path / "videos").mkdir()
    write_film(tmp_path / "secret.mp4", pan(2))
    (tmp_path / "videos/out.mp4").symlink_to(tmp_path / "secret.mp4")
    with pytest.raises(UserError, match="holds no video"):
        Folder(path=tmp_path / "videos").files()
