"""Tests which copies clip shards lose, that the rest is untouched, and that nothing is lost or done twice."""

import inspect
import json
import os
import tarfile
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from nemo_vfm.cli.main import main
from nemo_vfm.core.errors import NothingKept, UserError
from nemo_vfm.core.types.job import Run
from nemo_vfm.curate.deduplicate import Deduplicate
from nemo_vfm.curate.learned.learned_duplicate import LearnedDuplicate
from nemo_vfm.curate.learned.scorer_task import Recognise
from nemo_vfm.curate.score.near_duplicate import NearDuplicate
from nemo_vfm.curate.sources.shard_clips import open_all
from nemo_vfm.data.shards.shard_files import ShardSet, ShardWriter
from nemo_vfm.data.video.encode import encode_mp4
from nemo_vfm.models.scorer import Scorer
from tests.data.test_tar import member, tar
from tests.support.encoders import tiny_clip
from tests.support.films import FPS, pan


def media(folder: Path, film: np.ndarray, crf: int = 14) -> bytes:
    path = folder / "film.mp4"
    encode_mp4(path, film, FPS, crf=crf, preset="veryfast")
    data = path.read_bytes()
    path.unlink()
    return data


def write(folder: Path, samples: dict[str, bytes], **facts: float) -> Path:
    folder.mkdir()
    with ShardWriter(folder) as writer:
        for key, data in samples.items():
            members = {"mp4": data, "txt": f"clip {key}".encode(), "json": json.dumps({"source": key}).encode()}
            shape = {"width": 128, "height": 96, "num_frames": 36, "fps": float(FPS), **facts}
            writer.write(key, members, {**shape, "caption": f"clip {key}"})
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """`a` and `other` are films; `cut` is a piece of `a`, `same` its bytes, `a` and `other` come a second time."""
    folder = tmp_path_factory.mktemp("shards")
    film, other = pan(0, 48, 1), pan(1, 48, 1)
    first = {"a": media(folder, film), "other": media(folder, other), "broken": b"no video at all"}
    second = {
        "cut": media(folder, film[8:44], crf=26),
        "same": first["a"],
        "a": first["a"],
        "third": media(folder, pan(7)),
    }
    return [write(folder / "one", first), write(folder / "two", second)]


def job(folders: list[Path], **changes: object) -> Deduplicate:
    settings = {"shards": folders, "stages": {"near": NearDuplicate()}, "above": {"near": 0.9}}
    return Deduplicate(**(settings | changes))


@pytest.fixture(scope="module")
def done(folders: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("done")
    job(folders).run(Run(folder))
    return folder


def rows(folder: Path) -> dict[str, dict[str, object]]:
    return {row["clip_id"]: row for row in pq.read_table(folder / "scores.parquet").to_pylist()}


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_each_copy_goes_by_its_rule_and_names_the_clip_that_stays(done: Path):
    fates = {key: (row["decision"], row["rule"], row["duplicate_of"]) for key, row in rows(done).items()}
    assert fates == {
        "a": ("kept", None, None), "other": ("kept", None, None), "third": ("kept", None, None),
        "broken": ("failed", None, None), "cut": ("dropped", "near", "a"),
        "same": ("dropped", "exact_duplicate", "a"),
    }  # fmt: skip


def test_what_stays_is_untouched(done: Path, folders: list[Path]):
    before = {entry.key: (shards, entry) for shards in map(ShardSet, folders[::-1]) for entry in shards.entries}
    after = ShardSet(done / "shards")
    assert [entry.key for entry in after.entries] == ["a", "other", "third"]
    for entry in after.entries:
        shards, old = before[entry.key]
        names = sorted(entry.members)
        assert (names, entry.index) == (sorted(old.members), old.index)
        assert after.read_all(entry, names) == shards.read_all(old, names)


def test_the_ledger_adds_up_to_all_that_the_folders_hold(done: Path, folders: list[Path]):
    ledger = json.loads((done / "ledger.json").read_text())["clips"]
    assert ledger["in"] == sum(len(ShardSet(folder)) for folder in folders) == 7
    summary = json.loads((done / "made_of.json").read_text())["summary"]
    assert summary == "kept 3 of 7 clips; dropped 2 by exact_duplicate, 1 by near"
    assert (ledger["kept"], ledger["dropped"], sum(ledger["failed"].values())) == (
        3,
        {"exact_duplicate": 2, "near": 1},
        1,
    )


def test_the_curve_says_what_each_threshold_would_remove(done: Path):
    near = json.loads((done / "similarity.json").read_text())["near"]
    assert (near["above"], near["how"], sum(near["histogram"]["counts"])) == (0.9, "given", 4)
    removed = [point["removed_percent"] for point in near["removed"]]
    assert removed == sorted(removed) and removed[0] == 0 and removed[-1] == 25


def test_the_second_run_does_nothing_and_another_threshold_decodes_nothing(
    folders: list[Path], tmp_path: Path, monkeypatch
):
    job(folders).run(Run(tmp_path))
    before = tree(tmp_path)
    assert job(folders).run(Run(tmp_path)).did_nothing
    assert tree(tmp_path) == before
    monkeypatch.setattr(
        "nemo_vfm.curate.deduplicate.footage_of",
        lambda data, _: pytest.fail("it decoded") if data[4:8] == b"ftyp" else broken(),
    )
    outcome = job(folders, above={"near": 0.999}).run(Run(tmp_path))
    assert not outcome.did_nothing and outcome.figures["clips_kept"] == 4


def test_every_setting_that_changes_an_output_is_part_of_what_it_is_made_of(folders: list[Path]):
    changes = {
        "shards": folders[:1], "stages": {"near": NearDuplicate(quality="brightness")}, "above": {"near": 0.8},
        "epsilon": 0.2, "samples_per_shard": 7,
    }  # fmt: skip
    assert changes.keys() == inspect.signature(Deduplicate).parameters.keys() - {"workers"}

    def state(**changed: object) -> str:
        one = job(folders, **changed)
        return one._state(open_all(one.shards))

    states = [state(), *(state(**{name: change}) for name, change in changes.items())]
    assert len(set(states)) == len(states) and state(workers=3) == states[0]


def test_a_copy_of_a_clip_that_goes_itself_names_the_one_that_stays(tmp_path: Path):
    film = pan(0, 48, 1)
    piece, whole = media(tmp_path, film[8:44]), media(tmp_path, film)
    one = write(tmp_path / "one", {"piece": piece, "copy": piece})
    job([one, write(tmp_path / "two", {"whole": whole})]).run(Run(tmp_path / "run"))
    found = rows(tmp_path / "run")
    assert {key: row["duplicate_of"] for key, row in found.items()} == {
        "piece": "whole",
        "copy": "whole",
        "whole": None,
    }
    assert (found["piece"]["rule"], found["copy"]["rule"]) == ("near", "exact_duplicate")


def broken() -> object:
    raise ValueError("no video")


def test_workers_do_not_change_a_byte(folders: list[Path], done: Path, tmp_path: Path):
    job(folders, workers=3).run(Run(tmp_path))
    assert tree(tmp_path) == tree(done)


def test_new_shards_are_noticed(folders: list[Path], tmp_path: Path):
    write(tmp_path / "more", {"new": media(tmp_path, pan(9))})
    job([folders[0]]).run(Run(tmp_path / "run"))
    assert job([folders[0], tmp_path / "more"]).run(Run(tmp_path / "run")).figures["clips"] == 4


def test_a_stage_with_a_model_compares_too(folders: list[Path], tmp_path: Path):
    clip = tiny_clip(tmp_path / "clip")
    stage = LearnedDuplicate(model=partial(Scorer, folder=clip, outputs=0), task=Recognise())
    both = {"near": NearDuplicate(), "learned": stage}
    for again in (False, True):
        outcome = job(folders, stages=both, above={"near": 0.9, "learned": 0.9999}).run(Run(tmp_path / "run"))
        assert outcome.did_nothing == again
    assert rows(tmp_path / "run")["cut"]["learned_similarity"] > rows(tmp_path / "run")["third"]["learned_similarity"]


def test_null_takes_the_threshold_from_the_likenesses_or_the_given_epsilon(folders: list[Path], tmp_path: Path):
    job(folders, above={"near": None}, epsilon=0.2).run(Run(tmp_path))
    near = json.loads((tmp_path / "similarity.json").read_text())["near"]
    assert (near["above"], near["how"]) == (pytest.approx(0.8), "given")


def test_shards_of_others_without_json_or_index_are_read(tmp_path: Path):
    folder = write(tmp_path / "ours", {"a": media(tmp_path, pan(0)), "b": media(tmp_path, pan(0), crf=24)})
    for path in folder.glob("*.json"):
        path.unlink()
    assert job([folder]).run(Run(tmp_path / "run")).figures == {"clips": 2.0, "clips_kept": 1.0}


def test_equal_and_odd_keys_in_tars_of_others_are_samples_of_their_own(tmp_path: Path):
    for number, folder in enumerate(("one", "two")):
        (tmp_path / folder).mkdir()
        for tar_name in ("0.tar", "1.tar"):
            films = {f"./{n}.film.MP4": media(tmp_path, pan(10 * number + 5 * int(tar_name[0]) + n)) for n in range(2)}
            tar(tmp_path / folder / tar_name, *(member(name, data) for name, data in films.items()))
    outcome = job([tmp_path / "one", tmp_path / "two"]).run(Run(tmp_path / "run"))
    assert outcome.figures == {"clips": 8.0, "clips_kept": 8.0}
    written = ShardSet(tmp_path / "run/shards")
    assert len({entry.key for entry in written.entries}) == 8
    assert len({written.read(entry, "film.mp4") for entry in written.entries}) == 8
    assert len([*(tmp_path / "run/thumbnails").iterdir()]) == 8


def test_a_tar_whose_name_is_no_text_is_read(tmp_path: Path):
    (tmp_path / "in").mkdir()
    (tmp_path / "a.mp4").write_bytes(media(tmp_path, pan(1)))
    with tarfile.open(os.fsencode(tmp_path) + b"/in/caf\xe9.tar", "w") as tar:
        tar.add(tmp_path / "a.mp4", "a.mp4")
    job([tmp_path / "in"]).run(Run(tmp_path / "run"))
    (row,) = rows(tmp_path / "run").values()
    assert str(row["source"]).endswith("caf\\udce9.tar")


def test_nothing_readable_is_said_and_the_tables_are_there(tmp_path: Path):
    folder = write(tmp_path / "bad", {"a": b"x", "b": b"y", "copy": b"x"})
    with pytest.raises(NothingKept, match="none of 3 clips could be read"):
        job([folder]).run(Run(tmp_path / "run"))
    assert {(row["decision"], row["duplicate_of"]) for row in rows(tmp_path / "run").values()} == {("failed", None)}


def test_a_folder_without_shards_and_its_own_output_are_refused(tmp_path: Path, folders: list[Path]):
    with pytest.raises(UserError):
        job([tmp_path]).run(Run(tmp_path / "run"))
    with pytest.raises(UserError, match="read and written at the same time"):
        job([tmp_path / "run/shards"]).run(Run(tmp_path / "run"))


@pytest.mark.parametrize("changes, says", [
    ({"above": {}}, "above must name the stages"), ({"above": {"near": 1.5}}, "between 0 and 1"),
    ({"shards": []}, "at least one folder"), ({"epsilon": 0.0}, "between 0 and 1"),
])  # fmt: skip
def test_what_cannot_be_is_refused(folders: list[Path], changes: dict[str, object], says: str):
    with pytest.raises(ValueError, match=says):
        job(folders, **changes)


def test_one_folder_needs_no_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "curation/dedup", "shards=runs/clips/shards"]) == 0, capsys.readouterr().err
