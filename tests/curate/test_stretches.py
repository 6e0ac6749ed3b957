"""Tests that a long video examined by several workers gives the bytes of a single worker."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from nemo_vfm.core.storage.files import read_json
from nemo_vfm.core.types.job import Run
from nemo_vfm.curate import media_pipeline
from nemo_vfm.curate.execute.inline_executor import Inline
from nemo_vfm.curate.execute.process_executor import Processes
from nemo_vfm.curate.redecide import Redecide
from nemo_vfm.curate.score.brightness import Brightness
from nemo_vfm.curate.split.adaptive import AdaptiveSplit
from nemo_vfm.curate.split.union import UnionSplit
from tests.curate.test_kills import outputs
from tests.support.awkward import film
from tests.support.broadcast import cut_before
from tests.support.films import WIDTH, black, fade_through_black, job, pan, write_film


@pytest.fixture(scope="module")
def films(tmp_path_factory):
    folder = tmp_path_factory.mktemp("films")
    shots = [pan(seed, 17 + 9 * (seed % 4)) for seed in range(12)]
    write_film(folder / "cuts.mp4", *shots)
    write_film(folder / "fades.mp4", fade_through_black(pan(20, 60), pan(21, 60)), black(30), pan(22, 70), pan(23, 40))
    write_film(folder / "one_take.mp4", pan(30, 300, 1))
    stamps = [1000 * number // 12 + 5000 * (number // 77) for number in range(300)]
    (folder / "pauses.mp4").write_bytes(film(pan(31, 300, 1), stamps_ms=stamps))
    whole = (folder / "cuts.mp4").read_bytes()
    damaged = bytearray(whole)
    place = len(whole) * 2 // 3
    damaged[place : place + 4000] = np.random.default_rng(0).bytes(4000)
    (folder / "damaged.mp4").write_bytes(damaged)
    return folder


@pytest.mark.slow  # a curation by each number of workers
@pytest.mark.parametrize(
    "split", [UnionSplit(max_length_s=7.0), pytest.param(AdaptiveSplit(max_length_s=7.0), marks=pytest.mark.soak)]
)
def test_the_bytes_are_those_of_one_worker(films, tmp_path, monkeypatch, split):
    job(films, split=split, executor=Inline()).run(Run(tmp_path / "whole"))
    monkeypatch.setattr(media_pipeline, "STRETCH_S", 4.0)
    made = []
    real = media_pipeline.jobs_of
    monkeypatch.setattr(
        "nemo_vfm.curate.media_pipeline.jobs_of", lambda *given: made.append(len(real(*given))) or real(*given)
    )
    job(films, split=split, executor=Processes(workers=2)).run(Run(tmp_path / "parts"))
    assert max(made) >= 5
    assert outputs(tmp_path / "whole") == outputs(tmp_path / "parts")
    ledger = read_json(tmp_path / "parts/ledger.json")
    trimmed = sum(row["seconds_trimmed"] for row in read_json(tmp_path / "parts/files.json"))
    assert ledger["seconds"]["dropped"]["transition"] == pytest.approx(trimmed, abs=1e-6)
    assert trimmed >= 10 / 12  # the fade has 10 frames
    assert ledger["seconds"]["dropped"]["no_frames"] == pytest.approx(3 * 5, abs=0.01)
    Redecide(curated=tmp_path / "parts", rules={}, with_shards=False).run(Run(tmp_path / "again"))
    assert read_json(tmp_path / "again/ledger.json")["seconds"]["dropped"]["transition"] == pytest.approx(trimmed)


@pytest.mark.slow
def test_a_film_of_two_sizes_is_cut_there_however_it_is_divided_and_scored_again(tmp_path, monkeypatch):
    (tmp_path / "films").mkdir()
    parts = [film(shot, "mpegts", g="12") for shot in (pan(1, 30), np.repeat(pan(2, 34), 2, axis=2), pan(3, 20))]
    (tmp_path / "films/a.ts").write_bytes(b"".join(parts))
    how = {"split": UnionSplit(max_length_s=60.0), "rules": {}, "captions": {}, "executor": Inline(isolated=False)}
    how["stages"] = {"brightness": Brightness()}
    job(tmp_path / "films", **how).run(Run(tmp_path / "whole"))
    monkeypatch.setattr(media_pipeline, "STRETCH_S", 1.0)
    job(tmp_path / "films", **how | {"stages": {}}).run(Run(tmp_path / "parts"))
    job(tmp_path / "films", **how).run(Run(tmp_path / "parts"))  # the shots are known, the scores are not
    rows = [pq.read_table(tmp_path / run / "scores.parquet").to_pylist() for run in ("whole", "parts")]
    assert rows[0] == rows[1]
    assert [(row["first_frame"], row["last_frame"], row["width"]) for row in rows[0]] == [
        (0, 30, WIDTH), (30, 64, 2 * WIDTH), (64, 84, WIDTH),
    ]  # fmt: skip


def test_what_is_missing_of_a_film_is_said_however_it_is_divided(tmp_path, monkeypatch):
    (tmp_path / "films").mkdir()
    (tmp_path / "films/a.ts").write_bytes(cut_before(film(pan(1, 60), "mpegts", g="12"), 3))
    how = {"split": AdaptiveSplit(), "stages": {}, "rules": {}, "captions": {}, "executor": Inline(isolated=False)}
    job(tmp_path / "films", **how).run(Run(tmp_path / "whole"))
    monkeypatch.setattr(media_pipeline, "STRETCH_S", 1.0)
    job(tmp_path / "films", **how).run(Run(tmp_path / "parts"))
    rows = [pq.read_table(tmp_path / run / "scores.parquet").to_pylist() for run in ("whole", "parts")]
    assert rows[0] == rows[1] and "without their keyframe" in rows[1][-1]["message"]
