"""Tests that a change repeats only the work that depends on it."""

import json
import shutil

import pytest

from nemo_vfm.core.types.job import Run
from nemo_vfm.curate.caption.description import Description
from nemo_vfm.curate.decide.rule import Rule
from nemo_vfm.curate.examine.sandbox import Child
from nemo_vfm.curate.execute.inline_executor import Inline
from nemo_vfm.curate.output.transcode import Transcode
from nemo_vfm.curate.score.brightness import Brightness
from nemo_vfm.curate.score.motion import Motion
from nemo_vfm.curate.split.adaptive import AdaptiveSplit
from nemo_vfm.data.shards.shard_files import ShardSet
from tests.support.films import job, pan, write_film
from tests.support.judges import Brightest


@pytest.fixture(scope="module")
def films(tmp_path_factory):
    folder = tmp_path_factory.mktemp("films")
    for seed in range(2):
        write_film(folder / f"{seed}.mp4", pan(seed), pan(seed + 10, 30))
    return folder


@pytest.fixture(scope="module")
def done(films, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    job(films, executor=Inline()).run(Run(folder))
    return folder


@pytest.fixture
def run(done, tmp_path):
    shutil.copytree(done, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def asked(monkeypatch):
    """Which child was asked what: the operation's name, the file, and the stages or clips."""
    found, real = [], Child.ask

    def ask(self, request, **more):
        what = request.get("stages", len(request.get("clips", [])) or None)
        found.append((type(self._operation).__name__, request["name"], what, request.get("spans") is not None))
        return real(self, request, **more)

    monkeypatch.setattr(Child, "ask", ask)
    return found


def again(films, run, **changes):
    return job(films, executor=Inline(), **changes).run(Run(run))


def test_with_nothing_changed_no_video_is_opened(films, run, asked):
    assert again(films, run).did_nothing
    assert asked == []


def test_another_version_of_the_package_opens_no_video(films, run, asked, monkeypatch):
    for name in ("job", "examine.findings", "media_pipeline"):
        monkeypatch.setattr(f"nemo_vfm.curate.{name}.__version__", "9.9.9", raising=False)
    assert again(films, run).did_nothing
    assert asked == []


def test_a_part_whose_results_changed_does_its_work_again_and_no_other_does(films, run, asked, monkeypatch):
    monkeypatch.setattr(Brightness, "results_revision", 2, raising=False)
    again(films, run)
    assert asked == [("Examine", f"{n}.mp4", ["brightness"], True) for n in range(2)]
    asked.clear()
    monkeypatch.setattr(Transcode, "results_revision", 2, raising=False)
    again(films, run)
    assert [operation for operation, *_ in asked] == ["Encode"] * 2


def test_another_threshold_opens_no_video(films, run, asked):
    again(films, run, rules=job(films).rules | {"too_short": Rule(score="duration_s", below=2.2)})
    assert asked == []
    assert json.loads((run / "ledger.json").read_text())["clips"]["dropped"] == {"too_short": 2}


def media(shards: ShardSet) -> dict[str, bytes]:
    return {entry.key: shards.read(entry, "mp4") for entry in shards.entries}


def test_another_captioner_opens_no_video_and_changes_captions_alone(films, run, asked):
    films_there = media(ShardSet(run / "shards"))
    again(films, run, captions={"description": Description()})
    after = ShardSet(run / "shards")
    assert asked == []
    assert media(after) == films_there and not list((run / "work/clips").glob("*.mp4"))


def test_another_stage_is_measured_alone_over_the_known_shots(films, run, asked):
    stages = job(films).stages | {"brightness": Brightness(black=30.0)}
    again(films, run, stages=stages)
    assert asked == [("Examine", f"{n}.mp4", ["brightness"], True) for n in range(2)]


def test_a_stage_that_is_added_and_taken_away_again_costs_once(films, run, asked):
    stages = job(films).stages
    again(films, run, stages=stages | {"brightest": Brightest()})
    assert [what for _, _, what, _ in asked] == [["brightest"]] * 2
    again(films, run, stages=stages)
    again(films, run, stages=stages | {"brightest": Brightest()})
    assert len(asked) == 2


def test_another_splitter_measures_all_again_and_going_back_costs_nothing(films, run, asked):
    again(films, run, split=AdaptiveSplit(max_length_s=1.2))
    assert all(what == list(job(films).stages) and not known for op, _, what, known in asked if op == "Examine")
    asked.clear()
    again(films, run)
    assert asked == []


def test_another_encoder_setting_encodes_again_and_measures_nothing(films, run, asked):
    again(films, run, transcode=Transcode(preset="veryfast", crf=30))
    assert [operation for operation, *_ in asked] == ["Encode"] * 2


def test_a_changed_file_is_probed_again_and_the_others_are_not(films, run, asked, tmp_path):
    mine = tmp_path / "films"
    shutil.copytree(films, mine)
    again(mine, run)
    asked.clear()
    write_film(mine / "0.mp4", pan(7))
    again(mine, run)
    assert {name for _, name, _, _ in asked} == {"0.mp4"}


def test_a_lost_thumbnail_is_made_again(films, run, asked):
    lost = sorted((run / "work/thumbnails").glob("*.jpg"))[0]
    lost.unlink()
    again(films, run)
    assert lost.is_file()
    assert [what for op, _, what, _ in asked if op == "Examine"] == [[]]


def test_a_damaged_finding_is_found_again(films, run, asked):
    for path in (run / "work/findings").rglob("*.json"):
        path.write_text(path.read_text()[:20])
    assert again(films, run).did_nothing
    assert len(asked) == 2


def test_a_stage_of_another_size_of_frames_is_another_finding(films, run, asked):
    again(films, run, stages=job(films).stages | {"motion": Motion(side_px=64)})
    assert [what for _, _, what, _ in asked] == [["motion"]] * 2
