"""Tests what becomes of the clips of videos that are changed during a curation, and of the others."""

import json
import os
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.job import Run
from nemo_vfm.curate import job as curation
from nemo_vfm.curate.examine.examine_file import FileGuard, state_of
from nemo_vfm.curate.execute.inline_executor import Inline
from nemo_vfm.curate.execute.process_executor import Processes
from nemo_vfm.data.shards.clip_id import source_id
from nemo_vfm.data.shards.shard_files import ShardSet
from tests.support.films import job, pan, write_film

SAYS = "a.mp4 was changed after it was examined; run again"


@pytest.fixture
def films(tmp_path):
    """Two films, and beside them a third that somebody will put in the place of the first, as large as that."""
    folder, other = tmp_path / "films", tmp_path / "other.mp4"
    folder.mkdir()
    write_film(folder / "a.mp4", pan(1), pan(2, 30))
    write_film(folder / "b.mp4", pan(3), pan(4, 30))
    write_film(other, pan(5), pan(6, 30))
    both = (folder / "a.mp4", other)
    size = max(path.stat().st_size for path in both) + 8
    for path in both:  # a box that every reader passes over
        room = size - path.stat().st_size
        path.write_bytes(path.read_bytes() + room.to_bytes(4, "big") + b"free" + bytes(room - 8))
    return folder, other


def write_over(film: Path, other: Path) -> None:
    """As large, and as old as it was."""
    stat = film.stat()
    film.write_bytes(other.read_bytes())
    os.utime(film, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def exchange(film: Path, other: Path) -> None:
    stat = film.stat()
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    other.replace(film)


def cut_off(film: Path, other: Path) -> None:
    os.truncate(film, film.stat().st_size // 2)


def remove(film: Path, other: Path) -> None:
    film.unlink()


def touch(film: Path, other: Path) -> None:
    film.touch()


def copy_back(film: Path, other: Path) -> None:
    """Another file of the same bytes."""
    shutil.copyfile(film, other)
    other.replace(film)


def before(monkeypatch, step, happens):
    """Something happens to the first film before a step of the job."""
    whole = getattr(curation, step)

    def then(*arguments, **named):
        happens()
        return whole(*arguments, **named)

    monkeypatch.setattr(curation, step, then)


def rows(folder, source):
    return [row for row in pq.read_table(folder / "scores.parquet").to_pylist() if row["source"] == source]


def told(folder):
    return {row["file"]: row for row in json.loads((folder / "files.json").read_text())}


@pytest.mark.parametrize("change", [write_over, exchange, cut_off, remove])
@pytest.mark.parametrize("step", ["examine_all", "encode_kept"])
@pytest.mark.slow
def test_a_film_that_changes_after_it_was_probed_fails_in_a_sentence_and_alone(
    films, tmp_path, monkeypatch, step, change
):
    folder, other = films
    before(monkeypatch, step, lambda: change(folder / "a.mp4", other))
    job(folder, executor=Inline()).run(Run(tmp_path / "run"))
    says = "a.mp4 can no longer be read" if change is remove else SAYS
    failed = rows(tmp_path / "run", "a.mp4")
    assert all(row["decision"] == "failed" and says in row["message"] for row in failed)
    assert len(failed) == (2 if step == "encode_kept" else 0)
    fate = told(tmp_path / "run")["a.mp4"]
    assert fate["decision"] == "failed" and says in fate["reason"]
    kept = {row["clip_id"] for row in rows(tmp_path / "run", "b.mp4") if row["decision"] == "kept"}
    assert len(kept) == 2 and {entry.key for entry in ShardSet(tmp_path / "run/shards").entries} == kept


@pytest.mark.parametrize("change", [write_over, exchange])
@pytest.mark.slow
def test_the_next_run_takes_the_film_for_what_it_is_by_then(films, tmp_path, monkeypatch, change):
    folder, other = films
    bytes_of_other = other.read_bytes()
    with monkeypatch.context() as patch:
        before(patch, "encode_kept", lambda: change(folder / "a.mp4", other))
        job(folder, executor=Inline()).run(Run(tmp_path / "run"))
    job(folder, executor=Inline()).run(Run(tmp_path / "run"))
    assert {row["decision"] for row in rows(tmp_path / "run", "a.mp4")} == {"kept"}
    assert told(tmp_path / "run")["a.mp4"]["source_id"] == source_id(bytes_of_other)


@pytest.mark.parametrize("change", [touch, copy_back])
def test_a_film_that_is_touched_or_copied_over_itself_is_the_same(films, tmp_path, monkeypatch, change):
    folder, other = films
    before(monkeypatch, "examine_all", lambda: change(folder / "a.mp4", other))
    before(monkeypatch, "encode_kept", lambda: change(folder / "a.mp4", other))
    job(folder, executor=Inline()).run(Run(tmp_path / "run"))
    assert {row["decision"] for row in rows(tmp_path / "run", "a.mp4")} == {"kept"}


class _Writes:
    """A restorer that mends nothing; at the second clip that it looks at, somebody writes over the film."""

    def __init__(self, film: Path, other: Path) -> None:
        self.film, self.other = film, other

    def columns(self):
        return ()

    def look(self, frames_THWC):
        mark = self.other.with_suffix(".seen")
        if mark.exists() and self.other.exists():
            self.film.write_bytes(self.other.read_bytes())
            self.other.unlink()
        mark.touch()


@pytest.mark.slow  # encodes a long video
def test_a_film_written_over_in_the_middle_of_encoding_loses_the_clips_from_there_on(films, tmp_path):
    folder, other = films
    (folder / "b.mp4").unlink()
    whole = job(
        folder, executor=Processes(workers=1), keep_clips=True, restore={"writes": _Writes(folder / "a.mp4", other)}
    )
    whole.run(Run(tmp_path / "run"))
    first, second = rows(tmp_path / "run", "a.mp4")
    assert first["decision"] == "kept"
    assert second["decision"] == "failed" and second["message"] == SAYS
    assert {entry.key for entry in ShardSet(tmp_path / "run/shards").entries} == {first["clip_id"]}
    left = [path.name for path in (tmp_path / "run" / "work/clips").iterdir()]
    assert len(left) == 2 and all(name.startswith(first["clip_id"]) for name in left)


def test_bytes_are_read_again_once_for_each_state(films, monkeypatch):
    path = films[0] / "a.mp4"
    same = FileGuard({"path": str(path), "name": "a.mp4", "source_id": source_id(path), "state": state_of(path)})
    read = []
    monkeypatch.setattr(
        "nemo_vfm.curate.examine.examine_file.source_id", lambda path: read.append(1) or source_id(path)
    )
    same.check()
    assert not read
    path.touch()
    same.check()
    same.check()
    assert len(read) == 1
    path.write_bytes(b"x")
    with pytest.raises(DataError, match="was changed"):
        same.check()
