"""Tests which blocks the step cache skips, the error that it reports, and that threshold 0 skips nothing."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.model_traits import BlockLoop
from nemo_vfm.diffusion.generated_videos import GeneratedVideos, VideoRequest
from nemo_vfm.diffusion.guidance import ClassifierFree
from nemo_vfm.diffusion.step_cache import IDLE, CachedSteps, FirstBlockCache
from tests.support.sampling import FAMILIES, PROMPTS, RecordingCache, difference, given, noise, pipeline

ACTS = {"guidance": ClassifierFree(scale=3.0)}


@cache
def network(family: str) -> Any:
    torch.manual_seed(5)
    return FAMILIES[family][0]().eval()


@torch.no_grad()
def latents(family: str, threshold: float | None, **how: Any) -> tuple[Tensor, int]:
    """Sample latents; return them and the number of skipped blocks."""
    recorder = None if threshold is None else RecordingCache(FirstBlockCache(threshold=threshold))
    found = pipeline(family, recorder, **how).latents(
        network(family), PROMPTS, noise(), fps=8.0, given=given(family, len(PROMPTS))
    )
    return found, 0 if recorder is None else recorder.counts()[0]


@pytest.mark.parametrize("family", list(FAMILIES))
def test_threshold_0_gives_the_bits_of_no_cache(family: str) -> None:
    found, skipped = latents(family, 0.0)
    assert skipped == 0
    assert torch.equal(found, latents(family, None)[0])
    loops = [module._block_loop for module in network(family).modules() if hasattr(module, "_block_loop")]
    assert loops and all(loop is None for loop in loops), "the model must be restored"


@pytest.mark.parametrize("family", ["dit", "wan"])
def test_a_higher_threshold_skips_more_blocks_and_changes_the_video(family: str) -> None:
    exact, _ = latents(family, None)
    found = [latents(family, threshold) for threshold in (0.5, 1.0, 100.0)]
    skipped = [count for _, count in found]
    assert skipped == sorted(skipped) and skipped[-1] == 3 * 4, "all steps but the first and the first guided one"
    assert difference(found[-1][0], exact) > 0.1


class CountingBlock(nn.Module):
    """A block that adds the context's values to the tokens and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x_BSD: Tensor, context: Sequence[float]) -> Tensor:
        self.calls += 1
        return x_BSD + torch.tensor(context)[:, None, None]


class ThreeBlocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block_loop: BlockLoop | None = None
        self.blocks = nn.ModuleList(CountingBlock() for _ in range(3))

    def use_block_loop(self, loop: BlockLoop | None) -> None:
        self.block_loop = loop

    def run(self, added: Sequence[float]) -> list[float]:
        assert self.block_loop is not None
        out: Tensor = self.block_loop(self.blocks, torch.zeros(len(added), 2, 2), added)
        return out[:, 0, 0].tolist()

    def others(self) -> int:
        calls: Any = self.blocks[2].calls
        return int(calls)


def test_the_change_is_measured_against_the_last_full_step() -> None:
    model = ThreeBlocks()
    steps = CachedSteps([model], threshold=0.15)
    for added, out, others in ((1.0, 3.0, 1), (1.1, 3.1, 1), (1.14, 3.14, 1), (1.2, 3.6, 2), (1.3, 3.7, 2)):
        with steps.call(["cond"]):
            assert model.run([added]) == pytest.approx([out])
        assert model.others() == others, "small changes must accumulate"
    assert steps.counts() == (15, 6)


def test_one_changed_row_makes_the_whole_batch_compute() -> None:
    model = ThreeBlocks()
    steps = CachedSteps([model], threshold=0.15)
    for added in ([1.0, 1.0, 5.0, 5.0], [1.0, 1.0, 5.0, 6.0]):
        with steps.call(["cond", "uncond"]):
            assert model.run(added) == pytest.approx([3 * one for one in added])


def test_each_branch_has_its_own_cache_and_idle_rows_have_none() -> None:
    model = ThreeBlocks()
    steps = CachedSteps([model], threshold=0.15)
    for branches, added, out in (
        (["cond", "uncond"], [1.0, 5.0], [3.0, 15.0]),
        (["cond"], [1.1], [3.1]),  # outside the interval of guidance
        (["uncond"], [5.5], [15.5]),
        ([IDLE], [99.0], [99.0]),
        (["cond", "uncond"], [1.1, 5.5], [3.1, 15.5]),
    ):
        with steps.call(branches):
            assert model.run(added) == pytest.approx(out)
    assert model.others() == 1


@pytest.mark.parametrize("threshold", [0.0, 100.0])
def test_the_reported_error_is_the_difference_to_sampling_without_the_cache(threshold: float) -> None:
    request = VideoRequest(prompts=PROMPTS, num_frames=3, height=16, width=32, fps=8.0, seed=1)
    batches = [small(step_cache, request) for step_cache in (FirstBlockCache(threshold=threshold, measure=True), None)]
    cached, exact = (one.pixels_BTHWC.double() for one in batches)
    for index, error in enumerate(batches[0].errors):
        mse = float((cached[index] - exact[index]).square().mean())
        assert (error.latents == 0) == (threshold == 0)
        assert error.psnr_db == (pytest.approx(10 * torch.tensor(65025 / mse).log10().item()) if mse else float("inf"))
    assert len(batches[0].errors) == len(PROMPTS) and not batches[1].errors


def small(step_cache: FirstBlockCache | None, request: VideoRequest) -> GeneratedVideos:
    """Generate videos with a network whose channels match the codec's latents."""
    torch.manual_seed(5)
    small_pipeline = pipeline("dit", step_cache)
    channels = small_pipeline.codec.latent_shape(*request.size)[0]
    videos = small_pipeline.make(FAMILIES["dit"][0](in_channels=channels).eval(), request)
    assert videos is not None
    return videos


def test_a_model_without_a_block_loop_is_refused() -> None:
    with pytest.raises(UserError, match="Linear has no use_block_loop"):
        FirstBlockCache(threshold=0.1).begin(nn.Linear(1, 1))


def test_a_threshold_below_0_is_refused() -> None:
    with pytest.raises(ValueError, match="threshold must be at least 0, got -1"):
        FirstBlockCache(threshold=-1)
