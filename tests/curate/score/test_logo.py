"""Logos over films of different shots are found; films without, one scene seen again, bars and bonnets have none."""

import numpy as np
import pytest

from nemo_vfm.core.errors import NothingKept
from nemo_vfm.core.types.job import Run
from nemo_vfm.curate.decide.rule import Rule
from nemo_vfm.curate.record.footage import ClipFrames
from nemo_vfm.curate.record.stage import FileScore
from nemo_vfm.curate.score.logo import Logo
from tests.curate.test_job import rows
from tests.support.films import job, pan, write_film
from tests.support.logo_films import DATA, film, logos, shot, still_camera

STAGE = Logo()
REAL = pytest.mark.skipif(not DATA.is_dir(), reason="NEMO_VFM_TEST_DATA is not set")
NONE = {"logo.overlay": 0, "logo.likeness": 0, "logo.area": 0, "logo.corner": 0}


def scores(shots):
    return STAGE.agree([STAGE.remember(ClipFrames.of(frames, 24.0)) for frames in shots])


def overlays(shots):
    return [found.get("logo.overlay") for found in scores(shots)]


def drawn(seed, num_frames=8):
    """A shot of one drawn scene: rectangles of its own on a ground of its own."""
    random = np.random.default_rng(seed)
    picture = np.full((120, 200, 3), random.integers(40, 200), np.uint8)
    for top, left, high, wide in random.integers((0, 0, 8, 8), (110, 190, 60, 80), (30, 4)).tolist():
        picture[top : top + high, left : left + wide] = random.integers(0, 255, 3)
    return np.stack([np.roll(picture, 2 * k, axis=1) for k in range(num_frames)])


def marked(frames, top=6, left=6):
    """With a small cross in white and black."""
    frames = frames.copy()
    frames[:, top : top + 15, left : left + 15] = 0
    frames[:, top + 5 : top + 10, left + 1 : left + 14] = frames[:, top + 1 : top + 14, left + 5 : left + 10] = 250
    return frames


def test_it_is_a_score_of_files_and_gives_its_columns():
    assert isinstance(STAGE, FileScore)
    assert all(list(found) == list(STAGE.columns()) for found in scores([drawn(seed) for seed in range(4)]))


def test_a_mark_on_drawn_shots_is_found_in_those_that_have_it():
    shots = [marked(drawn(seed)) for seed in range(5)]
    found = scores([*shots, drawn(5)])
    assert [one["logo.overlay"] for one in found] == [1] * 5 + [0]
    assert found[0]["logo.corner"] > found[0]["logo.area"] > 0.005 and found[5] == NONE | {
        "logo.likeness": found[5]["logo.likeness"]
    }


def test_fewer_than_three_different_shots_have_no_score():
    shots = [marked(drawn(seed)) for seed in range(2)]
    assert scores(shots) == [{}, {}] and scores([]) == []
    assert scores([*shots, *shots, *shots]) == [{}] * 6
    assert scores([np.zeros((4, 120, 200, 3), np.uint8)] * 5) == [{}] * 5


def test_bars_and_what_reaches_the_border_are_no_logos():
    shots = [drawn(seed) for seed in range(4)]
    for frames in shots:
        frames[:, :14] = frames[:, -14:] = 0
    assert scores(shots) == [NONE] * 4
    for frames in shots:  # a bonnet
        for row in range(40):
            frames[:, 80 + row, 60 - row : 140 + row] = 20 + (row // 4 % 2) * 90
    assert overlays(shots) == [0] * 4


def test_pictures_of_any_size_are_remembered():
    for size in ((1, 16, 16, 3), (2, 8, 8, 3), (3, 500, 300, 3)):
        assert scores([np.zeros(size, np.uint8)] * 4) == [{}] * 4


def test_damage_to_what_was_remembered_is_an_error():
    text = STAGE.remember(ClipFrames.of(drawn(1), 24.0))
    with pytest.raises(ValueError, match="a picture"):
        STAGE.agree([text[: len(text) // 2]])


class _Fails:
    """A score of files that cannot cope."""

    def columns(self):
        return ("odd",)

    def remember(self, footage):
        return "nothing"

    def agree(self, memories):
        raise KeyError("odd")


def test_a_curation_drops_the_clips_of_a_film_with_a_logo_and_keeps_its_copy_without(tmp_path):
    shots, folder = [drawn(seed, 24) for seed in range(4)], tmp_path / "in"
    folder.mkdir()
    write_film(folder / "plain.mp4", *shots, crf=23)
    write_film(folder / "logo.mp4", *(marked(one) for one in shots), crf=23)
    write_film(folder / "short.mp4", marked(pan(1)), crf=23)
    rules = {"logo": Rule(score="logo.overlay", above=0.5)}
    job(folder, stages={"logo": Logo()}, rules=rules).run(Run(tmp_path / "run"))
    fates = {name: [] for name in ("plain.mp4", "logo.mp4", "short.mp4")}
    for row in rows(tmp_path / "run"):
        fates[row["source"]].append((row["logo.overlay"], row["decision"]))
    assert fates == {"plain.mp4": [(0, "kept")] * 4, "logo.mp4": [(1, "dropped")] * 4, "short.mp4": [(None, "kept")]}


def test_a_stage_that_cannot_cope_with_a_file_costs_its_clips(tmp_path):
    (tmp_path / "in").mkdir()
    write_film(tmp_path / "in/a.mp4", pan(1))
    with pytest.raises(NothingKept, match="stage odd"):
        job(tmp_path / "in", stages={"odd": _Fails()}, rules={}).run(Run(tmp_path / "run"))


@REAL
@pytest.mark.slow
@pytest.mark.parametrize(("seed", "num_shots"), [(5001, 3), (5002, 4), (5007, 5)])
def test_at_min_six_of_seven_logos_over_real_shots_are_found_and_none_without(seed, num_shots):
    shots = film(seed, num_shots)
    assert overlays(shots) == [0] * num_shots
    found = [overlays([mark.over(frames) for frames in shots]) for mark in logos().values()]
    assert sum(sum(one) == num_shots for one in found) >= 6


@REAL
@pytest.mark.slow
def test_a_still_camera_that_is_cut_is_one_scene():
    for scene in (0, 3):
        assert scores(still_camera(5003, scene)) == [{}] * 3
    two = [*still_camera(5004, 0), *still_camera(5004, 3)]
    assert scores(two) == [{}] * 6
    assert overlays([*two, shot(np.random.default_rng(5005), 9)]) == [0] * 7


@REAL
@pytest.mark.slow
def test_a_logo_that_pauses_is_missed_only_where_it_pauses():
    shots = film(5006, 6)
    mark = logos()["rimmed letters"]
    assert overlays([*(mark.over(frames) for frames in shots[:5]), shots[5]]) == [1] * 5 + [0]
