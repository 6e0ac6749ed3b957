"""Tests that a pretrained pipeline is sampled as diffusers samples it, also from a picture or a clip."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from nemo_vfm.data.video.decode import read_all
from nemo_vfm.data.video.encode import encode_mp4
from tests.support.installed import skip_without
from tests.support.video_pipelines import compared, pixels, saved, words

skip_without("diffusers")

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of diffusers


@pytest.mark.parametrize("name", ["wan 2.1 image", "cosmos 2 video"])
def test_latents_are_those_of_diffusers(name: str, tmp_path: Path) -> None:
    """The others are in benchmarks/pipeline_parity.py."""
    found = compared(name, tmp_path / "pipeline")
    assert found.theirs.std() > 0.1 and 0 < found.made_difference() < 1e-4
    assert found.given == (2 if name == "cosmos 2 video" else 0)


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved("cosmos 2 video", tmp_path_factory.mktemp("base") / "pipeline")


def test_a_video_goes_on_from_the_end_of_a_clip(kitchen, pipeline: Path) -> None:
    clip = torch.cat([pixels("cosmos 2 video", seed) for seed in (1, 2)]).numpy()  # ten frames, of which five are given
    encode_mp4(kitchen.folder / "street.mp4", clip, 16, crf=0)
    typed = [*words("cosmos 2 video", pipeline), "prompts.texts=[red, blue]", "prompts.given=[street.mp4]",
             "pipeline.sampler.steps=2", "batch_size=2", "run_dir=run"]  # fmt: skip
    assert kitchen.main("run", "world_model/video_to_world", *typed) == 0
    entries = json.loads((kitchen.folder / "run/samples.json").read_text())
    assert [(entry["prompt"], entry["given"]) for entry in entries] == [("red", "street.mp4"), ("blue", "street.mp4")]
    red, blue = (read_all(kitchen.folder / "run" / entry["file"]).astype(int) for entry in entries)
    assert red.shape == (9, 32, 32, 3)
    beginning, rest = (abs(red[part] - blue[part]).mean() for part in (slice(5), slice(5, None)))
    assert beginning < 0.5 < 1 < rest, "the beginning is what was given"


@pytest.mark.slow
def test_a_base_that_is_not_there_is_one_sentence(kitchen) -> None:
    done = kitchen.command("run", "world_model/sample_pretrained", "base=nowhere", "run_dir=run")
    assert done.returncode == 2 and "nowhere" in done.stderr and "Traceback" not in done.stderr, done.stderr


@pytest.mark.slow
def test_weights_of_another_family_are_refused(kitchen, pipeline: Path) -> None:
    shutil.copytree(pipeline, kitchen.folder / "base")
    path = kitchen.folder / "base/transformer/config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"in_channels": 4}))
    done = kitchen.command("run", "world_model/sample_pretrained", "base=base", "run_dir=run")
    assert done.returncode == 1 and "patch_embed" in done.stderr and "implies" in done.stderr, done.stderr
    assert not list((kitchen.folder / "run").glob("samples/*.mp4"))
