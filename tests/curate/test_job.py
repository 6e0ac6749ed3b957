"""Tests folders of small videos through the whole job: every drop reason has a video, and the ledger adds up."""

import hashlib
import inspect
import json
import os
import random
import shutil
import signal
import sys
import time

import numpy as np
import pyarrow.parquet as pq
import pytest

from nemo_vfm.core.errors import NothingKept
from nemo_vfm.core.types.job import JobShard, Run
from nemo_vfm.curate.balance import Balance
from nemo_vfm.curate.decide.rule import Rule
from nemo_vfm.curate.examine.sandbox import Child
from nemo_vfm.curate.execute.inline_executor import Inline
from nemo_vfm.curate.execute.process_executor import Processes
from nemo_vfm.curate.job import Curate
from nemo_vfm.curate.output.transcode import EncodedMedia, Transcode
from nemo_vfm.curate.restore.crop_letterbox import Letterbox
from nemo_vfm.curate.score.motion import Motion
from nemo_vfm.curate.split.adaptive import AdaptiveSplit
from nemo_vfm.data.batching.bucket import Bucket, Buckets
from nemo_vfm.data.shards.shard_files import ShardSet
from nemo_vfm.data.video.decode import open_video
from tests.support import preloaded
from tests.support.films import black, blurred, job, pan, texture, write_film


@pytest.fixture(scope="module")
def films(tmp_path_factory):
    """One film for each thing that can happen."""
    folder = tmp_path_factory.mktemp("films")
    write_film(folder / "good.mp4", pan(1), pan(2, 30), pan(3, 20))
    captions = [
        {"first_frame": 0, "last_frame": 24, "caption": "first"},
        {"first_frame": 24, "last_frame": 54, "caption": "second"},
        {"first_frame": 54, "last_frame": 74, "caption": "third"},
    ]
    (folder / "good.json").write_text(json.dumps({"captions": captions}))
    shutil.copyfile(folder / "good.mp4", folder / "good copy.mp4")
    write_film(folder / "again.mp4", pan(1), pan(2, 30), crf=34)
    write_film(folder / "static.mp4", np.stack([texture(5)] * 30))
    write_film(folder / "black.mp4", black(30))
    write_film(folder / "blurred.mp4", blurred(6, 30))
    write_film(folder / "three_frames.mp4", pan(7, 3))
    write_film(folder / "mixed.mp4", np.stack([texture(8)] * 20), black(20))
    (folder / "noise.mp4").write_bytes(random.Random(0).randbytes(5000))
    (folder / "empty.mp4").write_bytes(b"")
    return folder


@pytest.fixture(scope="module")
def done(films, tmp_path_factory):
    """The run folder of a finished curation of `films`."""
    folder = tmp_path_factory.mktemp("run")
    job(films).run(Run(folder))
    return folder


def rows(folder):
    return pq.read_table(folder / "scores.parquet").to_pylist()


def outputs(folder):
    """Hashes of all that a curation gives; how long its steps took is not the same twice."""
    own = {"work", "throughput.json"}
    names = [p for p in sorted(folder.rglob("*")) if p.is_file() and not own & set(p.relative_to(folder).parts)]
    return {p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in names}


def test_each_file_has_its_fate(done):
    fates = {file["file"]: (file["decision"], file["reason"]) for file in json.loads((done / "files.json").read_text())}
    failed = {name: fates.pop(name) for name in ("noise.mp4", "empty.mp4")}
    assert fates == {
        "good.mp4": ("kept", ""),
        "good copy.mp4": ("dropped", "exact_duplicate"),
        "again.mp4": ("dropped", "near_duplicate"),
        "static.mp4": ("dropped", "static"),
        "black.mp4": ("dropped", "black"),
        "blurred.mp4": ("dropped", "blurred"),
        "three_frames.mp4": ("dropped", "too_short"),
        "mixed.mp4": ("dropped", "no_clip_kept"),
    }
    assert all(decision == "failed" and name in why for name, (decision, why) in failed.items())


def test_the_ledger_adds_up_and_counts_what_the_files_say(done):
    ledger = json.loads((done / "ledger.json").read_text())
    for side in ledger.values():
        assert set(side) - {"kept_as"} == {"in", "kept", "dropped", "failed"}
        out = side["kept"] + sum(side["dropped"].values()) + sum(side["failed"].values())
        assert out == pytest.approx(side["in"], abs=1e-6)
    assert ledger["files"]["in"] == 10
    assert ledger["files"]["kept"] == 1
    assert ledger["clips"]["kept"] == 3
    assert ledger["clips"]["dropped"] == {"black": 2, "blurred": 1, "near_duplicate": 2, "static": 2, "too_short": 1}
    assert ledger["seconds"]["kept"] == pytest.approx(74 / 12, abs=1e-5)
    assert ledger["seconds"]["dropped"]["exact_duplicate"] == pytest.approx(74 / 12, abs=1e-5)


def test_every_clip_has_scores_and_duplicates_refer_to_kept_clips(done):
    table = rows(done)
    kept = {row["clip_id"] for row in table if row["decision"] == "kept"}
    assert all(row["motion"] is not None and row["similarity"] is not None for row in table)
    copies = [row for row in table if row["rule"] == "near_duplicate"]
    assert len(copies) == 2
    assert all(row["duplicate_of"] in kept for row in copies)
    assert {path.stem for path in (done / "thumbnails").iterdir()} == {row["clip_id"] for row in table}
    assert json.loads((done / "rules.json").read_text())["static"] == {
        "score": "motion_peak", "op": "<", "threshold": 1.0,
    }  # fmt: skip


def test_clips_are_the_frames_of_their_span_and_keep_their_captions(films, done):
    shards = ShardSet(done / "shards")
    assert [entry.index["caption"] for entry in shards.entries] == ["first", "second", "third"]
    for entry, (first, last) in zip(shards.entries, ((0, 24), (24, 54), (54, 74)), strict=True):
        clip = json.loads(shards.read(entry, "json"))
        assert (clip["first_frame"], clip["last_frame"], clip["source"]) == (first, last, "good.mp4")
        assert shards.read(entry, "txt").decode() == clip["caption"]
        with open_video(shards.read(entry, "mp4")) as reader, open_video(films / "good.mp4") as source:
            frames, expected = reader.read(range(reader.info().num_frames)), source.read(range(first, last))
        assert len(frames) == last - first
        difference = np.abs(frames.astype(int) - expected).mean(axis=(1, 2, 3))
        # A frame too early or too late differs by the pan's two pixels, four times as much and more.
        late = np.abs(frames[:-1].astype(int) - expected[1:]).mean(axis=(1, 2, 3))
        assert difference.max() < 2.5 < late.min()


def test_a_second_run_does_nothing_and_changes_nothing(films, done):
    before = outputs(done)
    assert job(films).run(Run(done)).did_nothing
    assert outputs(done) == before


def test_every_setting_that_changes_an_output_is_part_of_what_it_is_made_of(tmp_path):
    """What is found, decided and said of each file and clip is a part of it besides."""
    changes = {
        "split": AdaptiveSplit(ratio=4.0), "stages": {"motion": Motion()}, "transcode": Transcode(crf=20),
        "rules": {"too_short": Rule(score="duration_s", below=2.0)}, "restore": {"letterbox": Letterbox()},
        "samples_per_shard": 7, "side_px": 128, "balance": Balance(by="source", caps={"*": 2}), "decode": "nvdec",
        "buckets": Buckets(buckets={"wide": Bucket(64, 48, 9)}),
    }  # fmt: skip
    no_output = {"executor", "limits", "copy_to", "keep_clips", "max_frames", "source", "captions"}
    assert changes.keys() == inspect.signature(Curate).parameters.keys() - no_output

    def state(**changed):
        return json.dumps(job(tmp_path, **{"rules": {}, **changed})._state([], []))

    states = [state(), *(state(**{name: change}) for name, change in changes.items())]
    assert len(set(states)) == len(states) and state(executor=Inline(), keep_clips=True) == states[0]


@pytest.mark.parametrize("executor", [Inline(), Processes(workers=1), Processes(workers=3)], ids=["inline", "1", "3"])
def test_results_do_not_depend_on_who_works(films, done, tmp_path, executor):
    job(films, executor=executor).run(Run(tmp_path))
    assert outputs(tmp_path) == outputs(done)


def test_parts_leave_nothing_but_the_last_words_to_the_whole_which_gives_the_same_bytes(
    films, done, tmp_path, monkeypatch
):
    for round_ in range(job(films).needs().rounds):
        for number in (2, 0, 1):
            job(films, executor=Inline()).run_part(Run(tmp_path), JobShard(number, 3, round_))
    run, worked = Inline.run, []

    def noting(self, steps, items, watch):
        worked.extend(step.name for step in steps for _ in items)
        return run(self, steps, items, watch)

    monkeypatch.setattr(Inline, "run", noting)
    job(films, executor=Inline()).run(Run(tmp_path))
    assert outputs(tmp_path) == outputs(done)
    assert worked == []
    job(films, executor=Inline()).run_part(Run(tmp_path / "other"), JobShard(0, 3))
    assert "probe" in worked


def test_another_threshold_decides_again_without_decoding(films, done, tmp_path, monkeypatch):
    run = tmp_path / "run"
    shutil.copytree(done, run)

    def refuse(*_, **__):
        raise AssertionError("a threshold must not cost decoding")

    monkeypatch.setattr(Child, "ask", refuse)
    rules = job(films).rules | {"too_short": Rule(score="duration_s", below=2.2)}
    outcome = job(films, rules=rules).run(Run(run))
    assert not outcome.did_nothing
    table = rows(run)
    assert [row["decision"] for row in table if row["source"] == "good.mp4"] == ["dropped", "kept", "dropped"]


def test_another_stage_setting_measures_again(films, done, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(done, run)
    job(films, stages=job(films).stages | {"motion": Motion(side_px=64)}).run(Run(run))
    before, after = ([row["motion"] for row in rows(folder) if row["source"] == "good.mp4"] for folder in (done, run))
    assert before != after


def test_nothing_kept_is_an_error_that_counts_the_reasons_and_still_writes_the_ledger(films, tmp_path):
    rules = {"too_dark": Rule(score="luma_mean", below=300.0)}
    with pytest.raises(NothingKept, match=r"none of the 11 clips .* 11 by too_dark") as caught:
        job(films, rules=rules).run(Run(tmp_path))
    assert caught.value.exit_code == 3
    assert json.loads((tmp_path / "ledger.json").read_text())["clips"]["kept"] == 0


class _Odd:
    """A stage that cannot cope with some clips."""

    def __init__(self, answer):
        self.answer = answer

    def columns(self):
        return ("odd",)

    def measure(self, footage):
        if isinstance(self.answer, Exception):
            raise self.answer
        return {"odd": self.answer}


@pytest.mark.parametrize(
    ("answer", "message"), [(RuntimeError("no idea"), "stage odd: no idea"), (float("nan"), "not numbers")]
)
def test_a_stage_that_cannot_cope_costs_its_clips_and_not_the_run(tmp_path, answer, message):
    write_film(tmp_path / "a.mp4", pan(1))
    with pytest.raises(NothingKept):
        job(tmp_path, stages=job(tmp_path).stages | {"odd": _Odd(answer)}).run(Run(tmp_path / "run"))
    assert message in rows(tmp_path / "run")[0]["message"]


def test_a_film_damaged_in_the_middle_is_used_up_to_there_and_the_rest_is_said(tmp_path):
    good = write_film(tmp_path / "a.mp4", pan(1, 60), pan(2, 60)).read_bytes()
    with open_video(tmp_path / "a.mp4", "pyav") as reader:
        whole = reader.info()
    start = good.index(b"mdat")
    middle = start + (len(good) - start) * 3 // 4
    noise = random.Random(1).randbytes(len(good) // 8)
    (tmp_path / "a.mp4").write_bytes(good[:middle] + noise + good[middle + len(noise) :])
    job(tmp_path).run(Run(tmp_path / "run"))
    table = rows(tmp_path / "run")
    assert table[0]["decision"] == "kept"
    assert table[-1]["last_frame"] == whole.num_frames
    ledger = json.loads((tmp_path / "run/ledger.json").read_text())
    assert ledger["files"]["kept"] == 1
    assert ledger["seconds"]["in"] == pytest.approx(whole.duration_s, abs=1e-5)


def test_a_clip_that_cannot_be_encoded_fails_and_its_copy_takes_its_place(films, done, tmp_path):
    curation = job(films)
    media = EncodedMedia.of(tmp_path / "work/clips", tmp_path / "shards", curation.transcode, curation.restore)
    for row in rows(done):
        if row["source"] == "good.mp4":
            (media.path(row["clip_id"]) / "in the way").mkdir(parents=True)
    curation.run(Run(tmp_path))
    table = rows(tmp_path)
    assert {row["decision"] for row in table if row["source"] == "good.mp4"} == {"failed"}
    assert all("directory" in row["message"] for row in table if row["source"] == "good.mp4")
    assert "kept" in {row["decision"] for row in table if row["source"] == "again.mp4"}


_CHILD = """
import sys
from pathlib import Path
from nemo_vfm.core.types.job import Run
from tests.support.films import job
job(Path(sys.argv[1])).run(Run(Path(sys.argv[2])))
"""


def _start(films, folder):
    command = [sys.executable, "-c", _CHILD, str(films), str(folder)]
    return preloaded.Started(command, err=folder.with_suffix(".said"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_killed_at_any_moment_and_run_again_it_gives_the_same_bytes(films, done, tmp_path, seed):
    """The moment is drawn over the work, from the first file examined to the last thumbnail and clip."""
    wanted = random.Random(seed).randint(2, 12)
    child = _start(films, tmp_path)
    while child.poll() is None and sum(path.is_file() for path in tmp_path.rglob("*")) < wanted:
        time.sleep(0.002)
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL, "the run ended before it could be killed"
    assert not (tmp_path / "done.json").exists()
    job(films).run(Run(tmp_path))
    assert outputs(tmp_path) == outputs(done)
