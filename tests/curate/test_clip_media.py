"""Tests that encoded clips lie on the disk once, and can be taken out of the shards again."""

from pathlib import Path

import pytest

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.job import Run
from nemo_vfm.curate.caption.description import Description
from nemo_vfm.curate.decide.rule import Rule
from nemo_vfm.curate.execute.inline_executor import Inline
from nemo_vfm.curate.output import transcode
from nemo_vfm.curate.output.transcode import Encode, Transcode
from nemo_vfm.data.shards.shard_files import ShardSet
from tests.support.films import job, pan, write_film

LONG = {"short": Rule(score="duration_s", below=2.2)}


@pytest.fixture
def films(tmp_path: Path) -> Path:
    (tmp_path / "films").mkdir()
    for seed, frames in enumerate((24, 30)):
        write_film(tmp_path / f"films/{seed}.mp4", pan(seed, frames))
    return tmp_path / "films"


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were encoded, in order."""
    names: list[str] = []
    call = Encode.__call__

    def counted(self, request, tick):
        names.append(request["name"])
        return call(self, request, tick)

    monkeypatch.setattr(Encode, "__call__", counted)
    return names


def curate(films: Path, **changes: object) -> dict[str, bytes]:
    """The clips in the shards after a run."""
    settings = {"rules": {}, "captions": {}, "executor": Inline(isolated=False), **changes}
    job(films, **settings).run(Run(films.parent / "run"))
    shards = ShardSet(films.parent / "run/shards")
    return {entry.key: shards.read(entry, "mp4") for entry in shards.entries}


def copies(films: Path) -> list[str]:
    return sorted(path.name for path in (films.parent / "run" / "work" / "clips").glob("*.mp4"))


def test_clips_lie_in_the_shards_alone_unless_files_are_asked_for(films, encoded):
    first = curate(films)
    assert len(first) == 2 and copies(films) == []
    assert curate(films, captions={"text": Description()}, keep_clips=True) == first and len(copies(films)) == 2
    assert curate(films, captions={"text": Description()}) == first and copies(films) == []
    assert encoded == ["0.mp4", "1.mp4"]


def test_a_clip_that_a_rule_drops_comes_back_without_being_encoded_again(films, encoded):
    first = curate(films)
    assert len(curate(films, rules=LONG)) == 1
    assert len(copies(films)) == 1, "the new shards do not hold it"
    assert curate(films) == first and copies(films) == []
    assert encoded == ["0.mp4", "1.mp4"]


def test_clips_of_other_settings_are_never_taken_for_those_asked_for(films, encoded):
    first, small = curate(films), curate(films, transcode=Transcode(crf=40, preset="veryfast"))
    assert first.keys() == small.keys() and all(len(small[key]) < len(first[key]) for key in first)
    assert curate(films) == first and encoded == ["0.mp4", "1.mp4"] * 3


def test_shards_that_cannot_be_read_are_said_and_once_deleted_made_again(films, encoded):
    first = curate(films)
    (shard,) = (films.parent / "run/shards").glob("*.tar")
    whole = shard.read_bytes()
    shard.write_bytes(whole[:1000] + bytes(2000) + whole[3000:])
    with pytest.raises(UserError, match=r"cannot be read .* delete that folder"):
        curate(films, captions={"text": Description()})
    for file in (films.parent / "run/shards").iterdir():
        file.unlink()
    assert curate(films, captions={"text": Description()}) == first and len(encoded) == 4


def test_clips_are_kept_where_the_shards_are_not_what_was_written(films, monkeypatch):
    monkeypatch.setattr(transcode, "verify", lambda folder: [f"{folder}/000000.tar does not match its checksum"])
    with pytest.raises(UserError, match=r"does not match .* although it was just written"):
        curate(films)
    assert len(copies(films)) == 2
