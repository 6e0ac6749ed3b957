"""Tests that no layout is forgotten, right ones are equal, and wrong ones are reported by name."""

import itertools
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.task import ModelInputs
from nemo_vfm.models.autoencoder import CausalAutoencoder
from nemo_vfm.models.dit import DiT
from nemo_vfm.models.wan import Wan
from nemo_vfm.parallel.apply import apply_parallelism
from nemo_vfm.parallel.plan.layout_cases import LayoutCase, all_layouts, selection
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.verify import parity
from nemo_vfm.parallel.verify.rank_pool import RankFailed
from nemo_vfm.parallel.verify.tiny_training import SAMPLES, TinyTraining, rehearsal_of
from tests.support.combinations import cases
from tests.support.layouts import FromBatch
from tests.support.ranks import POOL, on_ranks

pytestmark = pytest.mark.cluster  # several ranks

small = partial(DiT, in_channels=4, text_dim=16, width=48, depth=4, heads=4, text_in_modulation=True)
adamw = partial(torch.optim.AdamW, lr=1e-3)


@pytest.fixture(scope="module")
def rehearsal() -> TinyTraining:
    return rehearsal_of(small, FromBatch(), adamw, seed=3)[0]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_every_layout_uses_every_rank_and_cuts_the_samples_evenly(ranks: int):
    found = all_layouts(ranks, samples=24, stages=8)
    assert len({str(one) for one in found}) == len(found) > 1
    assert all(one.plan().world == ranks for one in found)
    for axis in ("pipeline", "replicate", "shard", "context", "tensor"):
        assert any(getattr(one.plan(), axis) == ranks for one in found)


@pytest.mark.parametrize("ranks", [2, 4])
def test_in_a_selection_every_two_choices_meet_that_can(ranks: int):
    every = all_layouts(ranks, samples=SAMPLES, stages=4)
    chosen = selection(every, together=2)

    def pairs(layouts: list[LayoutCase]) -> set[frozenset[Any]]:
        return {frozenset(two) for one in layouts for two in itertools.combinations(one.choices(), 2)}

    assert pairs(chosen) == pairs(every) and len(chosen) < len(every)
    once = selection(every, together=1)
    assert len(once) < len(chosen) and set().union(*map(LayoutCase.choices, once)) == set().union(
        *map(LayoutCase.choices, every)
    )


def test_samples_differ_on_every_rank_and_are_the_same_for_every_layout(rehearsal: TinyTraining):
    whole = rehearsal.batch(1)
    for plan in (ParallelPlan(shard=4), ParallelPlan(replicate=2, tensor=2)):
        parts = [rehearsal.rank_batch(plan, rank, 1) for rank in range(4)]
        first = {plan.data_rank(rank): part for rank, part in enumerate(parts)}
        keys = [key for rank in range(plan.data) for key in first[rank].keys]
        assert tuple(keys) == whole.keys
        assert torch.equal(torch.cat([first[rank].latents_BCTHW for rank in range(plan.data)]), whole.latents_BCTHW)
    assert len({float(one.sum()) for one in whole.latents_BCTHW}) == SAMPLES
    widths = [width for _, _, width in rehearsal.batch(1, packed=True).sizes_THW]
    assert widths == [whole.latents_BCTHW.shape[4] * times for times in (1, 2)] * (SAMPLES // 2), "in turns"


QUICK = [
    LayoutCase({"microbatches": 2}),
    LayoutCase({"pipeline": 2, "microbatches": 2, "schedule": "zero_bubble", "virtual": 2}),
    LayoutCase({"shard": 2, "tensor": 2, "sequence": True}),
    LayoutCase({"context": 2, "replicate": 2, "attention": "ulysses"}),
]


@pytest.mark.parametrize("layout", cases(QUICK, QUICK[1:3]), ids=str)
def test_a_layout_that_is_right_is_equal_to_one_device(rehearsal: TinyTraining, layout: LayoutCase):
    found = parity.row(POOL, rehearsal, layout)
    assert found.verdict == "equal", found
    assert found.loss is not None and found.gradient is not None and found.gradient < parity.GRADIENT / 10


def test_a_part_that_no_input_reaches_is_no_difference():
    """Stages of a pipeline add up zeros for it; one device has no gradient at all."""
    wan = partial(Wan, in_channels=4, text_dim=16, width=48, depth=2, heads=4, mlp_hidden=64, image_dim=12)
    ready = rehearsal_of(wan, FromBatch(), adamw, seed=3)[0]
    found = parity.row(POOL, ready, LayoutCase({"pipeline": 2, "microbatches": 2}))
    assert found.verdict == "equal", found


def test_no_parameter_is_left_out_and_none_is_asleep(rehearsal: TinyTraining):
    layout = LayoutCase({"pipeline": 2, "microbatches": 2})
    found = on_ranks(2, parity.differences, rehearsal, layout)
    names = {name for _, by_name in found for name in by_name} - {"the norm of all"}
    assert names == {name for name, _ in small().named_parameters()}
    norms = on_ranks(1, norms_of, rehearsal)[0]
    assert min(norms.values()) > 1e-3 * max(norms.values()), norms


def norms_of(rank: int, rehearsal: TinyTraining) -> dict[str, float]:
    engine = rehearsal.start(ParallelPlan())
    engine.step([rehearsal.batch(0)])
    return {name: float(one.grad.norm()) for name, one in engine.model.named_parameters() if one.grad is not None}


@pytest.mark.parametrize("is_cut", [True, False])
def test_the_control_is_seen(rehearsal: TinyTraining, is_cut: bool):
    found = parity.control(POOL, rehearsal, 2, is_cut=is_cut)
    assert found.verdict == "seen" and found.gradient is not None and found.gradient > 0.01


def test_a_control_that_is_not_seen_is_not_as_it_should_be(rehearsal: TinyTraining, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(parity, "without_a_sum", parity.differences)
    found = parity.control(POOL, rehearsal, 2, is_cut=True)
    assert found.verdict == "not seen" and not found.is_good


def off_by_a_little(rank: int, rehearsal: TinyTraining, layout: LayoutCase, steps: int = 2) -> Any:
    """One linear's weights differ on one tensor rank by a thousandth."""
    kept = apply_parallelism.split_linears

    def mistaken(model: torch.nn.Module, mesh: Any) -> None:
        kept(model, mesh)
        if rank == 1:
            model.get_submodule("blocks.2.mlp").register_forward_hook(lambda _, inputs, output: 1.001 * output)

    with patch.object(apply_parallelism, "split_linears", mistaken):
        return parity.differences(rank, rehearsal, layout, steps)


def test_a_thousandth_on_one_rank_is_seen(rehearsal: TinyTraining, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(parity, "differences", off_by_a_little)
    found = parity.row(POOL, rehearsal, LayoutCase({"tensor": 2}))
    assert found.verdict == "differs" and found.gradient is not None and found.gradient > parity.GRADIENT


def test_a_layout_that_the_model_cannot_take_is_refused_with_the_reason():
    odd = rehearsal_of(partial(small, width=36, heads=3), FromBatch(), adamw, seed=3)[0]
    found = parity.row(POOL, odd, LayoutCase({"tensor": 2}))
    assert found.verdict == "refused" and found.is_good and "3 attention heads cannot be divided by 2" in found.reason


def dies(rank: int, rehearsal: TinyTraining, layout: LayoutCase, steps: int = 2) -> Any:
    if rank == 1:
        raise RuntimeError("out of order")
    return parity.differences(rank, rehearsal, layout, steps)


def test_a_rank_that_raises_fails_its_row_with_its_words_and_the_next_row_is_measured(
    rehearsal: TinyTraining, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as changed:
        changed.setattr(parity, "differences", dies)
        found = parity.row(POOL, rehearsal, LayoutCase({"shard": 2}))
    assert found.verdict == "failed" and found.reason == "rank 1: RuntimeError: out of order"
    assert parity.row(POOL, rehearsal, LayoutCase({"shard": 2})).verdict == "equal"


def test_a_model_that_does_not_say_what_it_takes_is_refused():
    with pytest.raises(UserError, match=r"Linear has no small_inputs\(\)"):
        rehearsal_of(partial(torch.nn.Linear, 2, 2), FromBatch(), adamw, seed=3)


def test_the_cause_of_a_failure_is_told_and_not_that_others_waited():
    waited = RankFailed({0: "Traceback\nnemo_vfm.core.errors.LostRank: waited", 1: "Traceback\nKeyError: 3"})
    assert waited.first_cause() == "rank 1: KeyError: 3"
    assert RankFailed({0: "did not answer in time"}).first_cause() == "rank 0: did not answer in time"


def test_a_model_of_pixels_is_given_pixels_and_is_tried_as_far_as_it_can_be_cut():
    autoencoder = partial(CausalAutoencoder, latent_channels=4, space=8, time=4, width=8, widest=8, blocks=1)
    pixels, model = rehearsal_of(autoencoder, Repeating(), adamw, seed=3)
    video = pixels.batch(0).video_BCTHW
    assert video is not None and video.dtype == torch.uint8 and video.shape[0] == SAMPLES and video.float().std() > 30
    assert not parity.is_cut(model) and parity.blocks(model) == 1
    assert parity.row(POOL, pixels, LayoutCase({"shard": 2})).verdict == "equal"
    assert "has no plan()" in parity.row(POOL, pixels, LayoutCase({"tensor": 2})).reason


class Repeating:
    """An autoencoder's task without its terms: the output as it comes."""

    def prepare(self, batch: Batch, *, seed: int, training: bool) -> ModelInputs:
        assert batch.video_BCTHW is not None
        return ModelInputs({"video_BCTHW": batch.video_BCTHW.float() / 127.5 - 1}, {}, batch.weight_B)

    def losses(self, output: torch.Tensor, prepared: ModelInputs) -> torch.Tensor:
        return output.square().flatten(1).mean(1)
