"""Tests that several ranks generate the videos of one rank under every plan, and stay in agreement."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.job import JobShard, Run
from nemo_vfm.parallel.apply.local_shard import local
from nemo_vfm.parallel.engine.inference_model import SamplingRanks, join_sampling
from nemo_vfm.parallel.plan.sampling_plan import SamplingPlan
from nemo_vfm.synth import sample_videos
from nemo_vfm.synth.sample_videos import SamplingModel, sampling_plan_for
from tests.support.combinations import cases
from tests.support.ranks import RankFailed, on_ranks
from tests.support.sampling import FAMILIES, adapter, difference, sampled_latents
from tests.synth.test_sample_videos import TEXTS, job

pytestmark = pytest.mark.cluster  # several ranks

BOUND = 1e-5
SPLIT = {"tensor": 2, "sequence": True, "guidance": 2}
TWO = [{"guidance": 2}, {"guidance": 2, "weights": "whole"}, {"context": 2}, {"context": 2, "weights": "whole"},
       {"tensor": 2}, {"tensor": 2, "sequence": True}, {"shard": 2}, {"replicate": 2}]  # fmt: skip
FOUR = [{"shard": 2, "guidance": 2}, {"context": 2, "guidance": 2, "attention": "ulysses"},
        {"tensor": 2, "replicate": 2}]  # fmt: skip
#: The others put together what these and tests/parallel try.
OFTEN = [TWO[1], TWO[2], TWO[5], TWO[6]]


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """One adapter of each method, by family."""
    folder = tmp_path_factory.mktemp("adapters")
    found = {}
    for family, method in (("wan", "dora"), ("cosmos 2.5", "lora")):
        (folder / method).mkdir()
        found[family] = adapter(family, method, folder / method)
    return found


@pytest.fixture(scope="module")
def alone(adapters: Mapping[str, Path]) -> dict[str, Any]:
    """Latents from one rank: exact, with a step cache, and without the adapters that some have."""
    families = list(FAMILIES)
    return {
        "exact": on_ranks(1, sampled_latents, {}, families, adapters)[0],
        "cached": on_ranks(1, sampled_latents, {}, families, adapters, 1.0)[0],
        "plain": on_ranks(1, sampled_latents, {}, list(adapters))[0],
    }


@pytest.mark.parametrize("degrees", cases([*TWO, *FOUR], OFTEN), ids=str)
def test_several_ranks_generate_the_latents_of_one(
    degrees: dict[str, Any], alone: dict[str, Any], adapters: Mapping[str, Path]
) -> None:
    for found in on_ranks(SamplingPlan(**degrees).world, sampled_latents, degrees, list(FAMILIES), adapters):
        for family in FAMILIES:
            assert difference(found[family], alone["exact"][family]) < BOUND, family


def test_adapters_change_the_latents_enough_to_notice_their_absence(
    alone: dict[str, Any], adapters: Mapping[str, Path]
) -> None:  # fmt: skip
    for family in adapters:
        assert difference(alone["plain"][family], alone["exact"][family]) > 0.1


@pytest.mark.parametrize("degrees", cases([{"guidance": 2}, {"context": 2}, SPLIT], [SPLIT]), ids=str)
def test_a_step_cache_skips_the_same_blocks_on_all_ranks_as_on_one(
    degrees: dict[str, Any], alone: dict[str, Any], adapters: Mapping[str, Path]
) -> None:
    for found in on_ranks(SamplingPlan(**degrees).world, sampled_latents, degrees, list(FAMILIES), adapters, 1.0):
        for family in FAMILIES:
            assert found[f"{family} skipped"] == alone["cached"][f"{family} skipped"] != (0, 24)
            assert difference(found[family], alone["cached"][family]) < BOUND, family


def without_exchange(rank: int) -> dict[str, Any]:
    """Sample with each rank using its own estimate for both."""
    with patch.object(SamplingRanks, "estimates", lambda self, own: [own, own]):
        return sampled_latents(rank, {"guidance": 2}, ["dit"])


def test_a_missing_exchange_of_estimates_changes_the_latents(alone: dict[str, Any]) -> None:
    for found in on_ranks(2, without_exchange):
        assert difference(found["dit"], alone["exact"]["dit"]) > 1000 * BOUND


def kept_bytes(rank: int, degrees: dict[str, Any], family: str) -> int:
    """Count the bytes of weights on this rank."""
    model = SamplingModel(FAMILIES[family][0], None, "ema", {}).build(0, join_sampling(SamplingPlan(**degrees)),
                                                                     offload=False)  # fmt: skip
    return sum(local(parameter).numel() * parameter.element_size() for parameter in model.parameters())


@pytest.mark.parametrize("degrees", [{"guidance": 2}, {"context": 2, "weights": "whole"}, {"tensor": 2}], ids=str)
def test_the_plan_reports_the_weight_bytes_of_the_fullest_rank(degrees: dict[str, Any]) -> None:
    for family in ("wan", "experts"):
        reported = sampling_plan_for(FAMILIES[family][0], SamplingPlan(**degrees), 2).state_bytes["weights"]
        assert max(on_ranks(2, kept_bytes, degrees, family)) == reported


def sampled(rank: int, folder: Path, degrees: dict[str, Any], blind: int | None = None) -> str:
    """Run the job on this rank; a blind rank finds no missing file."""
    said = sample_videos.everyone_says
    heard = (lambda text: said("[]" if text.startswith("[") else text)) if rank == blind else said
    with patch.object(sample_videos, "everyone_says", heard):
        return job(batch_size=1, parallel=SamplingPlan(**degrees)).run(Run(folder, seed=3)).summary


@pytest.mark.parametrize("degrees", [{"shard": 2}, {"replicate": 2}, {"guidance": 2}], ids=str)
def test_ranks_write_the_files_of_one_and_rank_0_decides_which_are_missing(
    degrees: dict[str, Any], tmp_path: Path
) -> None:  # fmt: skip
    job(batch_size=1).run(Run(tmp_path / "alone", seed=3))
    (tmp_path / "ranks/samples").mkdir(parents=True)
    first = (tmp_path / "alone/samples/000.mp4").read_bytes()
    (tmp_path / "ranks/samples/000.mp4").write_bytes(first)
    summaries = on_ranks(2, sampled, tmp_path / "ranks", degrees, 1)
    assert all("sampled 2 of 3" in one for one in summaries)
    for name in [*(f"samples/{index:03d}.mp4" for index in range(len(TEXTS))), "samples.json"]:
        assert (tmp_path / "ranks" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()


def sampled_apart(rank: int, folder: Path) -> None:
    """Write to a different folder on each rank."""
    job(batch_size=1, parallel=SamplingPlan(replicate=2)).run(Run(folder / str(rank), seed=3))


def test_a_disk_that_ranks_do_not_share_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RankFailed, match="which another rank wrote; run_dir must be on a disk that all ranks share"):
        on_ranks(2, sampled_apart, tmp_path)


def test_guidance_on_two_ranks_is_refused_at_scale_1() -> None:
    with pytest.raises(ValueError, match="scale 1 does not use it; set"):
        job(scale=1.0, parallel=SamplingPlan(guidance=2))


def test_parts_are_refused_if_the_recipe_needs_several_devices(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a part is one process, but parallel needs 2 devices"):
        job(parallel=SamplingPlan(context=2)).run_part(Run(tmp_path), JobShard(0, 2))
