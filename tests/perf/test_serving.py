"""Tests that Nemotron-4 340B is served by one DGX H100 in FP8 alone, as its report says."""

from functools import cache

import pytest
import torch

from nemo_vfm.config import ingredient
from nemo_vfm.core.errors import UserError
from nemo_vfm.models.gpt import GPT
from nemo_vfm.perf.gpu_specs import gpu_named
from nemo_vfm.perf.model_work import ModelWork, work_of
from nemo_vfm.perf.network import Network
from nemo_vfm.perf.serving import BYTES, fewest_gpus, fits, plan_serving
from tests.perf.test_step_time import dit, nemotron

NETWORK, GPU = ingredient("network", "dgx_h100", Network), gpu_named("h100")


@cache
def small(groups: int) -> ModelWork:
    with torch.device("meta"):
        model = GPT(vocab=100, width=64, depth=4, heads=8, groups=groups, mlp_hidden=128)
    return work_of(model, {"tokens_BS": (1, 32)}, 32)


def test_one_dgx_h100_serves_nemotron_in_fp8_and_not_in_bf16():
    quick, wide = (plan_serving(nemotron(), 8, NETWORK, precision) for precision in ("fp8", "bf16"))
    assert quick.weights == pytest.approx(42.6e9, abs=0.05e9) and fits(quick, GPU)
    assert wide.weights == pytest.approx(85.3e9, abs=0.05e9) and wide.weights > GPU.usable_bytes
    assert fewest_gpus(nemotron(), GPU, NETWORK, "bf16") == 16 and fewest_gpus(nemotron(), GPU, NETWORK, "fp8") == 8


def test_a_cache_of_nemotron_is_1_21_gb_for_each_4096_tokens():
    assert 8 * plan_serving(nemotron(), 8, NETWORK, "fp8").cache == pytest.approx(1.21e9, rel=0.005)
    many = plan_serving(nemotron(), 8, NETWORK, "bf16", sequences=10)
    assert 8 * many.cache == pytest.approx(24.2e9, rel=0.005)


@pytest.mark.parametrize("precision", BYTES)
@pytest.mark.parametrize("sequences", [1, 1000])
def test_the_fewest_gpus_are_the_first_on_which_all_sequences_fit(precision, sequences):
    fewest = fewest_gpus(nemotron(), GPU, NETWORK, precision, sequences=sequences)
    numbers = [1, 2, 4, 8, *range(16, 200, 8)]
    fitting = (n for n in numbers if fits(plan_serving(nemotron(), n, NETWORK, precision, sequences=sequences), GPU))
    assert fewest == next(fitting)
    assert (sequences == 1) == (fewest == fewest_gpus(nemotron(), GPU, NETWORK, precision))


def test_ranks_that_share_a_head_of_keys_each_keep_it():
    of_two, of_eight = (plan_serving(small(groups), 8, NETWORK, "bf16").cache for groups in (2, 8))
    assert of_two == of_eight == 2 * 4 * 8 * 32 * 2  # one head of 8 in 4 blocks
    assert plan_serving(small(8), 16, NETWORK, "bf16").cache == of_eight / 2


def test_what_cannot_be_served_is_said():
    with pytest.raises(UserError, match="whole machines of 8; got 12"):
        plan_serving(small(2), 12, NETWORK, "fp8")
    with pytest.raises(UserError, match="4 blocks cannot be divided over tensor 8 and pipeline 5"):
        plan_serving(small(2), 40, NETWORK, "fp8")
    with pytest.raises(UserError, match="no causal attention"):
        plan_serving(dit(4096, 28, 32, (32, 32, 32)), 8, NETWORK, "fp8")
