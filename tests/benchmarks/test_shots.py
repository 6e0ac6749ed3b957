"""Tests that the shot benchmark gives every figure, and that the recipes' detector meets its bars on the corpus."""

from itertools import pairwise
from pathlib import Path

import av
import pytest

from tests.support.benchmarks import figures_of, module_of
from tests.support.interrupted_films import interrupted, write
from tests.support.shot_films import corpus, film


@pytest.mark.slow
def test_few_films_give_every_figure_of_every_detector():
    shots = module_of("shots")
    films = list(corpus(101, 2, 10))
    figures = shots.accuracy(films) | shots.speed(films, 1)
    for name in (*shots.PEERS, *shots.OURS):
        assert all(0 <= figures[f"{name}.{column}"] <= 1 for column in shots.COLUMNS)
    assert figures["adaptive_speed_ratio"] > 0 and figures["union_speed_ratio"] > 0


@pytest.mark.slow
def test_holes_and_new_sizes_are_cut_at_and_cost_no_other_cut():
    films, kinds = list(corpus(101, 4)), ("hole", "resize")
    made = [interrupted(one, kinds, seed) for seed, one in enumerate(films)]
    assert all(sum(event.kind == kind for one in made for event in one.events) >= 4 for kind in kinds)
    figures = module_of("shots").on_files(films, kinds)
    for name in ("adaptive", "union"):
        assert figures[f"interrupted.{name}.hole_recall"] == figures[f"interrupted.{name}.resize_recall"] == 1
        assert figures[f"interrupted.{name}.hard_f1"] >= figures[f"whole.{name}.hard_f1"]


def test_an_interrupted_film_has_the_frames_that_it_had_at_other_times_and_of_other_sizes(tmp_path: Path):
    whole = film(0, ("cut", "flash", "cut"))
    made = interrupted(whole, ("hole", "resize"), 0)
    assert made.frames is whole.frames and set(whole.events) < set(made.events)
    with av.open(write(tmp_path / "a.ts", made, 0)) as container:
        frames = list(container.decode(video=0))
    late = {number for number, (a, b) in enumerate(pairwise(frames), 1) if b.time - a.time > 0.5}
    resized = {number for number, (a, b) in enumerate(pairwise(frames), 1) if a.width != b.width}
    assert late == {event.start for event in made.events if event.kind == "hole"}
    assert resized == {event.start for event in made.events if event.kind == "resize"}
    assert late and resized and len(frames) == len(whole.frames)


@pytest.mark.soak
def test_union_meets_its_bars_on_the_whole_corpus(tmp_path: Path):
    figures = figures_of("shots", "--rounds", "1", folder=tmp_path)
    assert figures["union.hard_f1"] >= figures["pyscenedetect_adaptive.hard_f1"]
    assert figures["union.fade_recall"] >= 0.9
    assert figures["union.flash_false_positives"] <= 0.05
