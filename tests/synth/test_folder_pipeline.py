"""Tests that a folder's pipeline is the one that conf/pipeline has for its family, and follows its flow_shift."""

import json
import shutil
from pathlib import Path
from typing import get_args

import pytest

from nemo_vfm.config import build, compose
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.encoders import Family
from nemo_vfm.diffusion.objective import EDM, FlowMatching
from nemo_vfm.models.convert.video.pretrained_video import family_in
from nemo_vfm.models.convert.video.random_pipeline import write_random_pipeline
from nemo_vfm.synth.folder_pipeline import PARTS, FolderPipeline
from tests.support.installed import skip_without
from tests.support.repository import ROOT

skip_without("diffusers", "transformers")

FAMILIES = get_args(Family)
TEMPLATE = "say {caption}"


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny pipeline of each family, without weights."""
    root = tmp_path_factory.mktemp("bases")
    for family in FAMILIES:
        write_random_pipeline(root / family, family)
    return root


def values(part: object) -> object:
    """Return a component's class and arguments, with those of the components in it."""
    if not hasattr(part, "__dict__"):
        return part
    return type(part).__name__, {name: values(one) for name, one in vars(part).items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_pipeline_of_a_folder_is_that_of_its_family_in_conf(bases: Path, tmp_path: Path, family: Family) -> None:
    folder = Path(shutil.copytree(bases / family, tmp_path / "base"))
    assert family_in(folder) == family
    shutil.rmtree(folder / "scheduler")
    given = [f"pipeline.text_encoder.template={TEMPLATE}"] if family == "cosmos25" else []
    recipe = ROOT / "recipes/world_model/sample_pretrained.yaml"
    named = build(compose(recipe, [f"base={folder}", f"pipeline={family}", *given])).pipeline
    auto = FolderPipeline(folder=folder, template=TEMPLATE)
    assert auto.family == named.family == family
    for name in PARTS:
        assert values(getattr(auto, name)) == values(getattr(named, name)), name


@pytest.mark.parametrize("recipe", ["lora", "full"])
def test_a_folder_trains_with_the_objective_of_its_family_and_previews_take_it(bases: Path, recipe: str) -> None:
    path = ROOT / f"recipes/world_model/{recipe}.yaml"
    job = build(compose(path, [f"base={bases / 'cosmos1_text'}", "data.path=clips"]))
    assert isinstance(job.task.objective, EDM) and job.task.codec.scale == 0.5
    assert job.callbacks["preview"].pipeline is job.task.pipeline


def test_the_flow_shift_of_a_folder_replaces_the_familys(bases: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bases / "wan21_t2v", tmp_path / "base"))
    path = folder / "scheduler/scheduler_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"flow_shift": 7.0}))
    found = FolderPipeline(folder=folder, steps=3, guidance_scale=2.0)
    assert isinstance(found.objective, FlowMatching) and found.objective.shift == 7.0
    assert vars(found.noise_schedule)["shift"] == 7.0
    assert found.sampler.num_steps() == 3 and found.guidance.scale == 2.0


def test_a_folder_that_is_written_later_has_the_family_that_it_will_have(tmp_path: Path) -> None:
    assert FolderPipeline(folder=tmp_path / "later", random_base="cosmos2_video").family == "cosmos2_video"
    with pytest.raises(UserError, match="has no video model that can be read, so its pipeline is unknown"):
        _ = FolderPipeline(folder=tmp_path / "later").objective
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="has no video model that can be read"):
        _ = FolderPipeline(folder=tmp_path / "empty", random_base="cosmos2_video").objective


def test_cosmos_25_needs_a_template_and_says_so(bases: Path) -> None:
    with pytest.raises(UserError, match="give template="):
        _ = FolderPipeline(folder=bases / "cosmos25").text_encoder
