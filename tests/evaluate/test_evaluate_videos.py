"""Tests that evaluation counts what the pixels show, finds the nearest clip, and says when nothing can be measured."""

import json
from pathlib import Path

import pytest

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.storage.files import write_json
from nemo_vfm.core.types.job import Run
from nemo_vfm.data.shards.shard_files import ShardWriter
from nemo_vfm.data.video.encode import encode_mp4
from nemo_vfm.evaluate.evaluate_videos import Evaluate
from nemo_vfm.synth.shot_plan import Shot, draw

ASKED = [("red", "circle", "left"), ("blue", "square", "up")]


def shot(colour: str, shape: str, direction: str) -> Shot:
    """One drawn take of nine frames."""
    return Shot(colour=colour, shape=shape, direction=direction, num_frames=9, radius=0.2, lateral=0.5, travel=0.5,
                brightness=0.6, texture_seed=1)  # fmt: skip


def samples(folder: Path, drawn: list[tuple[str, str, str]], *, known: bool = True) -> Path:
    """A finished sampling step that was asked for ASKED and drew `drawn`."""
    entries = []
    for i, ((colour, shape, direction), what) in enumerate(zip(ASKED, drawn, strict=True)):
        (folder / "samples").mkdir(parents=True, exist_ok=True)
        encode_mp4(folder / f"samples/{i:03d}.mp4", draw(shot(*what), side_px=64), 8.0)
        attributes = {"colour": colour, "shape": shape, "direction": direction} if known else None
        entries.append({"index": i, "prompt": f"a {colour} {shape} moving {direction}", "file": f"samples/{i:03d}.mp4",
                        "seed": 0, "attributes": attributes})  # fmt: skip
    write_json(folder / "samples.json", entries)
    return folder


def evaluation(folder: Path) -> dict[str, object]:
    """What was written."""
    return json.loads((folder / "evaluation.json").read_text())


def test_right_and_wrong_are_counted_from_the_pixels(tmp_path: Path) -> None:
    good = samples(tmp_path / "good", ASKED)
    half = samples(tmp_path / "half", [("red", "circle", "right"), ("yellow", "square", "up")])
    outcome = Evaluate(samples=half, baseline=good).run(Run(tmp_path / "run"))
    measured = evaluation(tmp_path / "run")
    assert (measured["colour_accuracy"], measured["direction_accuracy"], measured["num_prompts"]) == (0.5, 0.5, 2)
    assert measured["shape_accuracy"] == 1.0 and "seam_ratio" not in measured
    assert measured["untrained"]["colour_accuracy"] == 1.0
    assert measured["chance"] == {"colour": 0.25, "shape": 0.25, "direction": 0.25}
    assert [row["direction"] for row in measured["per_prompt"]] == ["right", "up"]
    assert "colour 1/2, shape 2/2, direction 1/2" in outcome.summary


def test_a_wrong_shape_counts_as_wrong_and_seams_are_measured_at_the_blocks_given(tmp_path: Path) -> None:
    drawn = samples(tmp_path / "s", [("red", "cross", "left"), ("blue", "square", "up")])
    Evaluate(samples=drawn, block_px=8).run(Run(tmp_path / "run"))
    measured = evaluation(tmp_path / "run")
    assert measured["shape_accuracy"] == 0.5 and measured["per_prompt"][0]["shape"] == "cross"
    assert 0.8 < measured["seam_ratio"] < 1.2
    with pytest.raises(ValueError, match="block_px"):
        Evaluate(samples=drawn, block_px=1)


def test_the_nearest_training_clip_is_the_one_that_looks_the_same(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "curate/shards") as writer:
        writer.write("a-picture", {"png": b""}, {"caption": "a picture has no frames to compare"})
        for what in [("green", "cross", "down"), *ASKED]:
            path = tmp_path / "clip.mp4"
            encode_mp4(path, draw(shot(*what), side_px=64), 8.0)
            writer.write("-".join(what), {"mp4": path.read_bytes()}, {"caption": " ".join(what)})
    Evaluate(samples=samples(tmp_path / "s", ASKED), clips=tmp_path / "curate/shards").run(Run(tmp_path / "run"))
    found = json.loads((tmp_path / "run/nearest.json").read_text())
    assert [entry["clip_id"] for entry in found] == ["red-circle-left", "blue-square-up"]
    assert [entry["caption"] for entry in found] == ["red circle left", "blue square up"]
    assert found[0]["thumbnail"] == "curate/thumbnails/red-circle-left.jpg"
    assert found[0]["distance"] < 0.05


def test_prompts_without_known_attributes_are_not_measured_and_this_is_said(tmp_path: Path) -> None:
    outcome = Evaluate(samples=samples(tmp_path / "s", ASKED, known=False)).run(Run(tmp_path / "run"))
    assert "nothing to measure" in outcome.summary
    assert "colour_accuracy" not in evaluation(tmp_path / "run")


def test_an_unfinished_sampling_step_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"samples\.json is not there"):
        Evaluate(samples=tmp_path).run(Run(tmp_path / "run"))
