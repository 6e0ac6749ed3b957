"""Tests that captions of their own clips pass, and that swapped captions are detected."""

import json

import numpy as np
import pytest

from nemo_vfm.cli.main import main
from nemo_vfm.core.types.job import Run
from nemo_vfm.curate.caption.check_captions import CaptionsRefused, CheckCaptions, compare
from nemo_vfm.curate.caption.likeness import ClipLikeness, NamedColours
from tests.support.coloured import NAMES, coloured_shards


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    return coloured_shards(tmp_path_factory.mktemp("right"), [f"a {name} square, seen from afar" for name in NAMES])


@pytest.fixture(scope="module")
def swapped(tmp_path_factory):
    """Every caption belongs to the clip five places on, as after a batch that came back in another order."""
    moved = NAMES[5:] + NAMES[:5]
    return coloured_shards(tmp_path_factory.mktemp("swapped"), [f"a {name} square, seen from afar" for name in moved])


def check(shards, folder, **changes):
    return CheckCaptions(**({"shards": shards, "likeness": NamedColours()} | changes)).run(Run(folder))


def test_captions_of_their_own_clips_pass_with_the_figures_told(right, tmp_path):
    outcome = check(right, tmp_path)
    told = json.loads((tmp_path / "caption_check.json").read_text())
    # Three other clips have the same colour: ties, of which half count, so the best there is is 1.5 of 15.
    verdict = told["verdict"]
    assert told["passed"] and verdict["mean_rank"] == pytest.approx(0.1) and verdict["deviations"] > 5
    assert verdict["likeness"] > verdict["shuffled"] + 0.3 and not verdict["suspects"]
    again = check(right, tmp_path, min_deviations=5.0)
    assert again.did_nothing and again.figures == outcome.figures
    assert outcome.figures["mean_rank"] == pytest.approx(0.1)


def test_swapped_captions_are_caught_also_by_a_second_run(swapped, tmp_path):
    for _ in range(2):
        with pytest.raises(CaptionsRefused, match="do not belong to their clips"):
            check(swapped, tmp_path)
    assert json.loads((tmp_path / "caption_check.json").read_text())["passed"] is False


def test_a_verdict_of_no_ends_in_a_sentence_and_an_exit_code_without_a_traceback(swapped, tmp_path, capfd):
    recipe = tmp_path / "check.yaml"
    place = "nemo_vfm.curate.caption"
    recipe.write_text(
        f"_target_: {place}.check_captions.CheckCaptions\nshards: {swapped}\n"
        f"likeness: {{_target_: {place}.likeness.NamedColours}}\n"
    )
    assert main(["run", str(recipe), f"run_dir={tmp_path / 'run'}"]) == 2
    said = capfd.readouterr().err
    assert "captions do not belong to their clips" in said
    assert "raceback" not in said and "CaptionsRefused" not in said


def test_a_warning_can_take_the_place_of_the_end(swapped, tmp_path):
    assert "do not belong" in check(swapped, tmp_path, on_failure="warn").summary


def test_two_clips_that_swapped_captions_among_right_ones_are_named(tmp_path):
    rng = np.random.default_rng(0)
    clips = rng.normal(size=(60, 64)).astype(np.float32)
    captions = clips + rng.normal(size=clips.shape).astype(np.float32) * 0.5
    captions[[7, 30]] = captions[[30, 7]]
    keys = [f"k{number}" for number in range(60)]
    verdict = compare(keys, captions, clips)
    assert verdict.deviations > 4
    assert verdict.suspects == {"k7": "k30", "k30": "k7"}


@pytest.mark.parametrize("seed", range(20))
def test_by_chance_nothing_passes(seed):
    rng = np.random.default_rng(seed)
    captions, clips = (rng.normal(size=(200, 16)).astype(np.float32) for _ in range(2))
    assert abs(compare([str(n) for n in range(200)], captions, clips).deviations) < 4


def test_captions_that_are_all_alike_say_nothing(right, tmp_path):
    verdict = compare([str(n) for n in range(9)], np.ones((9, 4), np.float32), np.eye(9, 4, dtype=np.float32))
    assert verdict.mean_rank == 0.5 and verdict.deviations == 0


def test_colours_cannot_judge_captions_without_colours(tmp_path):
    folder = coloured_shards(tmp_path / "in", [f"clip number {number} of a film" for number in range(16)])
    with pytest.raises(CaptionsRefused, match="or the model cannot tell"):
        check(folder, tmp_path)


def test_too_few_clips_are_not_judged(tmp_path):
    with pytest.raises(ValueError, match="too few"):
        compare(["a"] * 7, np.eye(7, dtype=np.float32), np.eye(7, dtype=np.float32))


def test_a_clip_model_from_a_folder_gives_the_vectors_of_transformers(right, tmp_path):
    pytest.importorskip("transformers", reason="needs the extra transformers")
    import torch
    from transformers import AutoProcessor, CLIPModel

    from tests.support.tiny_models import tiny_clip

    folder = tiny_clip(tmp_path / "clip")
    model, words = CLIPModel.from_pretrained(folder).eval(), AutoProcessor.from_pretrained(folder)
    texts = ["a red square", "", "x" * 500]
    found = ClipLikeness(folder=folder).of_texts(texts)
    assert found.shape == (3, 16)
    with torch.inference_mode():
        alone = model.get_text_features(**words.tokenizer([texts[0]], return_tensors="pt"))
    np.testing.assert_allclose(found[0], getattr(alone, "pooler_output", alone)[0].numpy(), atol=1e-5)
    with pytest.raises(CaptionsRefused, match="or the model cannot tell"):
        check(right, tmp_path, likeness=ClipLikeness(folder=folder))


@pytest.mark.parametrize("changes", [{"num_frames": 0}, {"at_most": 3}, {"min_deviations": 0}])
def test_settings_that_cannot_be_are_refused(right, changes):
    with pytest.raises(ValueError, match="expected"):
        CheckCaptions(**({"shards": right, "likeness": NamedColours()} | changes))
