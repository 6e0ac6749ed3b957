"""Tests what the demo's videos show and hold out, and that they can be made again after a kill."""

import dataclasses
import itertools
import json
from pathlib import Path

import av
import numpy as np
import pytest

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.job import Run
from nemo_vfm.data.shards.shard_files import ShardWriter
from nemo_vfm.metrics.shape_reader import SHAPES
from nemo_vfm.synth import shot_plan
from nemo_vfm.synth.make_shapes import MakeVideos
from nemo_vfm.synth.prompts import CaptionPrompts, DemoPrompts, HeldOutPrompts, PromptList, StoryPrompts
from nemo_vfm.synth.shot_plan import draw

SMALL = {"num_files": 5, "shots_per_film": 3, "side_px": 64}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("videos")
    MakeVideos(**SMALL).run(Run(folder))
    return folder


def _bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "videos.json"}


def _num_frames(path: Path) -> int:
    with av.open(str(path)) as container:
        return sum(1 for _ in container.decode(video=0))


def test_no_held_out_combination_is_ever_drawn_and_every_pair_of_its_values_is():
    shots = [shot for film in shot_plan.films(seed=3, num_films=9, shots_per_film=9) for shot in film]
    drawn = {(shot.colour, shot.shape, shot.direction) for shot in shots}
    held_out = shot_plan.combinations(held_out=True)
    assert len(held_out) == 16 and drawn.isdisjoint(held_out)
    for i, j in itertools.combinations(range(3), 2):
        assert {(c[i], c[j]) for c in held_out} <= {(c[i], c[j]) for c in drawn}


def test_held_out_prompts_ask_each_colour_shape_and_direction_four_times():
    prompts = HeldOutPrompts().prompts()
    for name in ("colour", "shape", "direction"):
        values = [prompt.attributes[name] for prompt in prompts if prompt.attributes]
        assert sorted(values.count(value) for value in set(values)) == [4, 4, 4, 4]
    assert all(value in prompt.text for prompt in prompts for value in (prompt.attributes or {}).values())


def test_the_demo_has_60_to_100_shots_a_fade_and_a_static_one():
    shots = [shot for film in shot_plan.films(seed=0, num_films=9, shots_per_film=9) for shot in film]
    assert 60 <= len(shots) <= 100
    assert sum(shot.direction is None for shot in shots) == 1
    assert sum(shot.num_fade_frames > 0 for shot in shots) == 1


def test_a_film_holds_the_frames_its_captions_speak_of(made: Path):
    for film in ("film-01", "film-02", "film-01-copy", "film-02-reencoded"):
        captions = json.loads((made / f"{film}.json").read_text())["captions"]
        assert [c["first_frame"] for c in captions] == [0, *(c["last_frame"] for c in captions[:-1])]
        assert _num_frames(made / f"{film}.mp4") == captions[-1]["last_frame"]
        assert all(c["attributes"]["colour"] in c["caption"] for c in captions)


def test_there_is_a_copy_a_reencoded_copy_and_a_file_that_cannot_be_read(made: Path):
    data = _bytes(made)
    assert data["film-01-copy.mp4"] == data["film-01.mp4"]
    assert data["film-02-reencoded.mp4"] != data["film-02.mp4"]
    with pytest.raises(av.error.FFmpegError):
        _num_frames(made / "film-damaged.mp4")


@pytest.mark.slow
def test_a_second_run_does_nothing_and_an_interrupted_one_ends_with_the_same_bytes(made: Path, tmp_path: Path):
    before = _bytes(made)
    assert MakeVideos(**SMALL).run(Run(made)).did_nothing
    MakeVideos(**SMALL).run(Run(tmp_path))
    for name in ("videos.json", "film-02.json", "film-damaged.mp4"):
        (tmp_path / name).unlink()
    (tmp_path / "film-02.mp4").write_bytes(b"half")
    whole = (tmp_path / "film-01.mp4").stat().st_mtime_ns
    assert not MakeVideos(**SMALL).run(Run(tmp_path)).did_nothing
    assert _bytes(tmp_path) == before
    assert (tmp_path / "film-01.mp4").stat().st_mtime_ns == whole, "what was whole is not drawn again"


@pytest.mark.slow
def test_another_seed_or_size_draws_other_films_over_the_old_ones(made: Path, tmp_path: Path):
    MakeVideos(**SMALL).run(Run(tmp_path, seed=1))
    assert _bytes(tmp_path)["film-01.mp4"] != _bytes(made)["film-01.mp4"]
    MakeVideos(**SMALL).run(Run(tmp_path, seed=0))
    assert _bytes(tmp_path) == _bytes(made)


def test_the_users_own_folder_is_counted_and_an_empty_or_missing_one_is_refused(made: Path, tmp_path: Path):
    assert MakeVideos(input=made).run(Run(tmp_path)).figures["files"] == 5
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "absent"):
        with pytest.raises(UserError, match=folder.name):
            MakeVideos(input=folder).run(Run(tmp_path))


def test_every_shape_is_drawn_around_its_centre_of_mass():
    shot = shot_plan.films(seed=0, num_films=1, shots_per_film=1)[0][0]
    for shape in SHAPES:
        still = dataclasses.replace(
            shot, shape=shape, direction=None, lateral=0.5, brightness=0.0, num_frames=1, num_fade_frames=0,
            num_black_frames=0,
        )  # fmt: skip
        frame = draw(still, side_px=128)[0].astype(float)
        mask = np.ptp(frame, axis=-1) > 80
        assert np.argwhere(mask).mean(0) + 0.5 == pytest.approx([64, 64], abs=1.5)


@pytest.mark.parametrize("bad", [{"num_files": 3}, {"shots_per_film": 0}, {"side_px": 65}])
def test_impossible_sizes_are_refused_with_the_number(bad: dict[str, int]):
    with pytest.raises(ValueError, match=str(next(iter(bad.values())))):
        MakeVideos(**bad)
    with pytest.raises(ValueError, match="17"):
        HeldOutPrompts(num=17)


def test_prompts_are_those_of_the_texts_the_seed_or_the_shards_that_are_given(tmp_path: Path):
    assert [p.text for p in PromptList(texts=["a", "b"]).prompts()] == ["a", "b"]
    pictures = [Path("x.png"), Path("y.png")]
    for given, found in ((pictures, pictures), (pictures[:1], pictures[:1] * 2), ([], [None, None])):
        assert [p.given for p in PromptList(texts=["a", "b"], given=given).prompts()] == found
    stories = [
        StoryPrompts(num=3, **more).prompts() for more in ({}, {"seed": 2}, {"held_out": False}, {"sentences": 1})
    ]
    assert len({one[0].text for one in stories}) == 4
    with ShardWriter(tmp_path) as writer:
        for number, caption in enumerate(["red", "", "red", "blue", "green"]):
            writer.write(f"{number}", {"txt": b""}, {"caption": caption})
    assert [p.text for p in CaptionPrompts(shards=tmp_path, num=2).prompts()] == ["red", "blue"]
    assert [p.text for p in DemoPrompts(input=tmp_path, shards=tmp_path, num=3).prompts()] == ["red", "blue", "green"]
    assert [p.text for p in DemoPrompts(input=None, shards=tmp_path, num=2).prompts()] == [
        p.text for p in HeldOutPrompts().prompts()[:2]
    ]


@pytest.mark.parametrize("radius", [0.12, 0.3])
def test_the_edge_of_an_object_is_a_pixel_wide_at_any_size(radius):
    shot = dataclasses.replace(
        shot_plan.films(seed=0, num_films=1, shots_per_film=1)[0][0], shape="circle", direction=None, lateral=0.5,
        radius=radius, brightness=0.0, num_frames=1, num_fade_frames=0, num_black_frames=0,
    )  # fmt: skip
    colourful = np.ptp(draw(shot, side_px=256)[0].astype(float), axis=-1)
    inside = np.median(colourful[colourful > 80])
    mixed = ((colourful > 60) & (colourful < 0.6 * inside)).sum()
    around_px = 2 * np.pi * radius * 256
    assert 0.2 < mixed / around_px < 1.5, "about one mixed pixel in each row or column that the edge crosses"
