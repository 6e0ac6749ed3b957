"""Tests attention in FP8 against attention in float32, and models that sample with it."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nemo_vfm.core.fp8 import Fp8
from nemo_vfm.models.dit import DiT
from nemo_vfm.parallel.engine.inference_model import SamplingRanks, build_for_inference
from nemo_vfm.parallel.fp8 import fp8_attention
from nemo_vfm.parallel.fp8.quantise import dequantise, quantise
from nemo_vfm.parallel.layers import parallel_attention


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def operands(queries: int = 24, keys: int = 40) -> tuple[Tensor, Tensor, Tensor]:
    return drawn(2, 3, queries, 16), drawn(2, 3, keys, 16, seed=1), drawn(2, 3, keys, 16, seed=2)


MASKS = [None, torch.arange(40)[None, None, None] < torch.tensor([30, 7])[:, None, None, None],
         (drawn(2, 1, 24, 40, seed=3) > -1) | (torch.arange(40) == 0)]  # fmt: skip


@pytest.mark.parametrize("mask", MASKS, ids=["none", "keys", "pairs"])
def test_it_is_near_attention_in_float32_and_no_nearer_than_fp8_can_be(mask: Tensor | None) -> None:
    q, k, v = operands()
    exact = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    error = (fp8_attention.fp8_attention(q, k, v, mask) - exact).norm() / exact.norm()
    assert 0.005 < error < 0.06


@pytest.mark.parametrize("mask", MASKS, ids=["none", "keys", "pairs"])
def test_queries_in_groups_give_the_same_bits(mask: Tensor | None, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = operands()
    whole = fp8_attention.fp8_attention(q, k, v, mask)
    monkeypatch.setattr(fp8_attention, "_SCORES", 7 * 2 * 3 * 40)
    torch.testing.assert_close(fp8_attention.fp8_attention(q, k, v, mask), whole, rtol=1e-6, atol=1e-6)


def test_queries_and_keys_are_rounded_and_probabilities_too() -> None:
    q, k, _ = operands(4, 4)
    v = torch.eye(4).expand(2, 3, 4, 4)  # its own elements are exact, so the output is the probabilities
    q, k = q[..., :4], k[..., :4]
    found = fp8_attention.fp8_attention(q, k, v)
    rounded = [dequantise(quantise(x, "tensor")) for x in (q, k)]
    scores = rounded[0] @ rounded[1].transpose(2, 3) / 2
    shares = torch.exp(scores - scores.amax(3, keepdim=True))
    expected = (shares * 448).to(torch.float8_e4m3fn).float() / 448 / shares.sum(3, keepdim=True)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
    assert (found - torch.softmax(scores, 3)).abs().max() > 1e-3


def output(spec: Fp8 | None) -> Tensor:
    model = partial(DiT, in_channels=4, width=64, depth=2, heads=4, text_dim=16, patch=(1, 2, 2))
    built = build_for_inference(model, 0, SamplingRanks(), lambda _: None, init_weights=True, fp8=spec)
    nn.init.normal_(built.out.weight, std=0.1, generator=torch.Generator().manual_seed(0))
    for name, parameter in built.named_parameters():
        if "modulation" in name:
            parameter.normal_(std=0.1, generator=torch.Generator().manual_seed(1))
    given = {"latents_BCTHW": drawn(1, 4, 2, 8, 8), "noise_B": torch.tensor([0.5]), "fps_B": torch.tensor([8.0])}
    text = {"text_BLD": drawn(1, 5, 16), "text_mask_BL": torch.ones(1, 5, dtype=torch.bool)}
    found: Tensor = built(**given, **text)
    return found


def test_a_network_samples_with_its_linears_in_fp8_and_attention_if_asked() -> None:
    exact, linears, both = output(None), output(Fp8(recipe="rowwise")), output(Fp8(recipe="rowwise", attention=True))
    errors = [float((one - exact).norm() / exact.norm()) for one in (linears, both)]
    assert 1e-4 < errors[0] < 0.05 and 1e-4 < errors[1] < 0.05 and not torch.equal(linears, both)
    assert not parallel_attention._FUNCTIONS
