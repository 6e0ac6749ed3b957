"""Tests that the recipes of arXiv 2503.12964 fit their GPUs, and pairs of their degrees give one device's numbers."""

import math
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from nemo_vfm.config import build, compose
from nemo_vfm.data.shards.shard_files import ShardWriter
from nemo_vfm.parallel.engine.step_runner import EngineInputs
from nemo_vfm.parallel.plan.plan import AXES, ParallelPlan
from nemo_vfm.train.job import Train
from tests.support.combinations import cases
from tests.support.ranks import on_ranks
from tests.support.repository import ROOT

#: Name, GPUs, and tokens of a sample.
RECIPES = [
    ("dit_7b_8k", 64, 8192), ("dit_7b_74k", 64, 73_728), ("dit_28b_8k", 64, 8192), ("dit_28b_64k", 256, 65_536),
    ("st_dit_7b_35k", 64, 35_840), ("st_dit_7b_74k", 64, 73_728), ("st_dit_12b_35k", 64, 35_840),
    ("st_dit_12b_74k", 64, 73_728),
]  # fmt: skip
SEQUENCE = {"tensor": 2, "sequence": True}
PIPELINE = {"pipeline": 2, "microbatches": 2}
#: Degrees above one of each recipe, at 2, alone or two together.
CASES = [
    ("dit_28b_64k", {"shard": 2}),
    ("st_dit_12b_35k", {"context": 2}),
    ("dit_7b_8k", {**SEQUENCE, "shard": 2}),
    ("dit_7b_74k", {**SEQUENCE, "context": 2}),
    ("dit_28b_8k", {**PIPELINE, "shard": 2}),
    ("st_dit_7b_35k", {**PIPELINE, "virtual": 2, "schedule": "interleaved", "context": 2}),
    ("st_dit_7b_74k", {**SEQUENCE, "context": 2}),
    ("st_dit_12b_35k", {"context": 2, "shard": 2}),
    ("st_dit_12b_74k", {**SEQUENCE, **PIPELINE}),
]


def job(name: str, *changes: str, small: bool = True) -> Train:
    """A recipe built, with latents of few channels where it is small."""
    tiny = ["model.depth=4", "model.in_channels=8", "precision=fp32", "data.batch_size=8", "optimizer.lr=1e-2"]
    recipe = ROOT / "recipes/diffusion" / f"{name}.yaml"
    built = build(compose(recipe, [*(tiny if small else ["data.shards=x"]), *changes], overlays=["smoke"] * small))
    assert isinstance(built, Train)
    return built


def above_one(plan: ParallelPlan) -> set[str]:
    return {axis for axis, size in zip(AXES, plan.sizes, strict=True) if size > 1}


@pytest.mark.parametrize(("name", "gpus", "tokens"), RECIPES)
def test_its_samples_divide_as_its_plan_asks(name, gpus, tokens):
    built = job(name, small=False)
    plan, (batch,) = built.parallel, built.data.batch_sizes().values()
    assert plan.world == gpus and batch % (plan.data * plan.microbatches) == 0 and tokens % plan.tokens == 0
    header = (ROOT / "recipes/diffusion" / f"{name}.yaml").read_text()
    frames, height, width = map(int, re.findall(r"latents of (\d+) x (\d+) x (\d+)", header)[0])
    if name.startswith("st_"):
        assert frames % plan.tokens == 0 and (height // 2) * (width // 2) % plan.context == 0


def test_the_cases_have_every_pair_of_degrees_that_a_recipe_has_in_some_recipe():
    of_recipes = {name: above_one(job(name, small=False).parallel) for name, _, _ in RECIPES}
    assert all(above_one(ParallelPlan(**degrees)) <= of_recipes[name] for name, degrees in CASES)
    wanted = {pair for axes in of_recipes.values() for pair in combinations(sorted(axes), 2)}
    tried = {tuple(sorted(above_one(ParallelPlan(**degrees)))) for _, degrees in CASES}
    assert len(wanted) == 6 and wanted <= tried


@pytest.fixture(scope="module")
def latents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of sixteen samples that are no two alike."""
    folder = tmp_path_factory.mktemp("latents")
    with ShardWriter(folder) as writer:
        for number in range(16):
            draw = torch.Generator().manual_seed(number)
            x, text = torch.randn(8, 4, 4, 8, generator=draw), torch.randn(5, 1024, generator=draw)
            mask = torch.arange(5) <= number % 5
            members = {"latents.safetensors": save({"latents": x}),
                       "text.safetensors": save({"text": text, "mask": mask})}  # fmt: skip
            facts = {"caption": "", "fps": 8.0 + number, "bucket": "one", "latent_shape": list(x.shape)}
            writer.write(f"{number:032x}", members, facts)
    return folder


def trained(rank: int, name: str, degrees: dict[str, Any], shards: Path) -> list[float]:
    """Losses and gradient norms of two steps under these degrees."""
    words = [f"parallel.{key}={str(value).lower()}" for key, value in degrees.items()]
    built = job(name, f"data.shards={shards}", *words)
    plan = built.parallel
    runner = built.engine.start(EngineInputs(built.model, built.task, built.optimizer, built.precision, 1, plan))
    built.data.start(seed=1, first_batch=0, rank=plan.data_rank(rank), num_ranks=plan.data)
    batches = iter(built.data.train_dataloader())
    results = [runner.step([next(batches)]) for _ in range(2)]
    assert all(result.num_samples == 8 for result in results)
    return [number for result in results for number in (result.loss, result.grad_norm)]


@pytest.fixture(scope="module")
def alone(latents: Path) -> dict[str, list[float]]:
    """What one device sees of each recipe; shapes are all they differ in, so families agree."""
    found = {name: on_ranks(1, trained, name, {}, latents)[0] for name in ("dit_7b_8k", "st_dit_12b_35k")}
    assert all(math.isfinite(number) for numbers in found.values() for number in numbers)
    return {name: found["st_dit_12b_35k" if name.startswith("st_") else "dit_7b_8k"] for name, _, _ in RECIPES}


@pytest.mark.cluster  # several ranks
@pytest.mark.parametrize(("name", "degrees"), cases(CASES, [CASES[place] for place in (2, 4, 5, 8)]), ids=str)
def test_degrees_of_a_recipe_at_two_give_the_losses_of_one_device(name, degrees, latents, alone):
    for found in on_ranks(ParallelPlan(**degrees).world, trained, name, degrees, latents):
        assert found == pytest.approx(alone[name], rel=2e-5)
