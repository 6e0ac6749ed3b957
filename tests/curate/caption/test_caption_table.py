"""Tests captions from a table, and that clips which get none are said."""

import shutil

import pytest

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.types.job import Run
from nemo_vfm.curate.caption.caption_table import CaptionTable
from nemo_vfm.curate.caption.description import Description
from nemo_vfm.curate.execute.inline_executor import Inline
from nemo_vfm.curate.sources.table_source import TableSource
from tests.curate.caption.test_sidecar import record
from tests.curate.test_job import rows
from tests.data.test_video_folder import write_table
from tests.support.films import job, pan, write_film
from tests.support.odd_tables import ODD_TABLES


@pytest.fixture(scope="module")
def films(tmp_path_factory):
    folder = tmp_path_factory.mktemp("films")
    for seed in range(3):
        write_film(folder / f"{seed}.mp4", pan(seed))
    return folder


def curated(films, folder, captions, **changes):
    captioners = {**captions, "description": Description()}
    job(films, captions=captioners, executor=Inline(isolated=False), stages={}, rules={}, **changes).run(Run(folder))
    return {row["source"]: (row["caption"], row["caption_by"]) for row in rows(folder)}


def test_a_row_captions_its_video_by_path_or_by_the_name_in_the_source(tmp_path):
    shutil.copytree(tmp_path, tmp_path / "videos/deep", dirs_exist_ok=True)
    table = write_table(tmp_path / "t.jsonl", [
        {"video": "videos/deep/a.mp4", "caption": "by path"}, {"video": "./b.mp4", "caption": "by name"},
        {"video": "videos/c.mp4", "caption": ""},
    ])  # fmt: skip
    said = [CaptionTable(path=table).caption(record(tmp_path / f"videos/{name}")) for name in
            ("deep/a.mp4", "b.mp4", "c.mp4", "d.mp4")]  # fmt: skip
    assert said == [("by path", "table"), ("by name", "table"), None, None]
    below = CaptionTable(path=write_table(tmp_path / "u.jsonl", [{"video": "x.mp4", "caption": "y"}]),
                         root=tmp_path / "videos")  # fmt: skip
    assert below.caption(record(tmp_path / "videos/x.mp4")) == ("y", "table")


def test_clips_without_a_row_are_counted_when_they_get_a_stand_in(films, tmp_path, capfd):
    table = write_table(tmp_path / "t.jsonl", [{"video": "0.mp4", "caption": "a cat"}])
    found = curated(films, tmp_path / "run", {"table": CaptionTable(path=table)})
    assert found["0.mp4"] == ("a cat", "table") and found["1.mp4"] == ("a 2.0 s video, 128x96, 12 fps", "description")
    said = " ".join(capfd.readouterr().err.split())
    assert "WARNING: 2 of 3 kept clips have no caption; 2 of them get a line of numbers instead" in said


def test_the_caption_of_a_row_of_the_source_goes_before_every_captioner(films, tmp_path):
    captions = {"table": CaptionTable(path=write_table(tmp_path / "t.jsonl", [{"video": "0.mp4", "caption": "other"}]))}
    listed = [{"video": "0.mp4", "caption": "from the row"}, {"video": "1.mp4", "caption": None}]
    source = TableSource(path=write_table(films / "source.jsonl", listed))
    found = curated(films, tmp_path / "run", captions, source=source)
    assert found["0.mp4"] == ("from the row", "table") and found["1.mp4"][1] == "description"
    source = TableSource(path=films / "source.jsonl", caption=None, scores=[])
    assert curated(films, tmp_path / "run", captions, source=source)["0.mp4"] == ("other", "table")


def test_a_table_of_captions_is_read_before_anything_is_encoded(films, tmp_path):
    table = write_table(tmp_path / "t.jsonl", [{"video": "0.mp4", "caption": 1}])
    with pytest.raises(DataError, match=r"row 1 .* a number under 'caption'"):
        curated(films, tmp_path / "run", {"table": CaptionTable(path=table)})
    assert not list((tmp_path / "run").rglob("work/clips/*"))
    write_table(table, [{"video": "0.mp4", "caption": "a"}, {"video": "./0.mp4", "caption": "b"}])
    with pytest.raises(DataError, match=r"row 2 .* and row 1 .* one video different captions"):
        CaptionTable(path=table).ready()


@pytest.mark.parametrize(("name", "content", "words"), ODD_TABLES)
def test_a_table_of_captions_refuses_the_rows_that_training_refuses(name, content, words, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises((DataError, UserError), match=words):
        CaptionTable(path=tmp_path / name).ready()
