"""Tests that a model's stated FLOPs are those that torch counts, forward and backward."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from nemo_vfm.models.blocks.text.experts import Experts
from nemo_vfm.models.dit import DiT
from nemo_vfm.models.gpt import GPT
from nemo_vfm.models.st_dit import STDiT
from nemo_vfm.perf.flops import forward_flops, training_flops

VIDEO: dict[str, Any] = {"in_channels": 16, "text_dim": 64, "width": 192, "depth": 3, "heads": 4}
TEXT: dict[str, Any] = {"vocab": 1000, "width": 256, "depth": 3, "heads": 8, "groups": 2, "mlp_hidden": 512}
MODELS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "dit": (DiT, VIDEO),
    "dit with more": (DiT, VIDEO | {"modulation_rank": 16, "text_in_modulation": True, "padding_mask": True}),
    "dit with places": (DiT, VIDEO | {"position_embedding": True, "learned_positions": (3, 4, 6)}),
    "st_dit": (STDiT, VIDEO),
    "st_dit without full attention": (STDiT, VIDEO | {"reaches": ("temporal", "spatial"), "modulation_rank": None}),
    "gpt like llama": (GPT, TEXT),
    "gpt like nemotron": (GPT, TEXT | {"activation": "squared_relu", "norm": "layernorm1p"}),
    "gpt like gemma": (GPT, TEXT | {"activation": "geglu", "norm": "rmsnorm1p", "post_norm": True, "query_scalar": 8}),
    "gpt with experts": (GPT, TEXT | {"experts": Experts(4, per_token=2, hidden=96, dense_layers=(1,))}),
    "gpt with wide heads": (GPT, TEXT | {"head_dim": 48, "tied": True, "qk_norm": True, "qkv_bias": True}),
}  # fmt: skip


def inputs_of(model: nn.Module) -> dict[str, Tensor]:
    """Two samples; what carries data has a gradient, as it would above another layer."""
    if isinstance(model, GPT):
        return {name: torch.zeros(2, 64, dtype=torch.int64) for name in ("tokens_BS", "labels_BS")}
    text, mask = torch.zeros(2, 20, 64, requires_grad=True), torch.ones(2, 20, dtype=torch.bool)
    latents = torch.zeros(2, 16, 3, 8, 12, requires_grad=True)  # 3 x 4 x 6 tokens: no side is another's
    return {"latents_BCTHW": latents, "text_BLD": text, "text_mask_BL": mask, "noise_B": torch.zeros(2),
            "fps_B": torch.zeros(2)}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.slow
def test_a_model_costs_what_torch_counts(name: str):
    kind, sizes = MODELS[name]
    with torch.device("meta"):
        model = kind(**sizes)
        inputs = inputs_of(model)
    ops = model.ops({key: tuple(tensor.shape) for key, tensor in inputs.items()})
    # Attention without a kernel of its own is products like others.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        output = model(**inputs)
        forward = counter.get_total_flops()
        output.sum().backward()
    both = counter.get_total_flops()
    assert forward_flops(ops) == forward
    # What has no input with a gradient costs twice its forward and not thrice: frequencies of noise levels and places.
    assert training_flops(ops) >= both == pytest.approx(training_flops(ops), rel=5e-3 if "places" in name else 5e-4)


def test_packed_documents_cost_their_own_attention_and_no_other():
    lengths = (20, 44, 64)
    with torch.device("meta"):
        model = GPT(**TEXT)
    whole, packed = ({op.name: op.flops for op in model.ops({"tokens_BS": (2, 64)} | more)} for more in (
        {}, {"lengths_N": lengths}))  # fmt: skip
    alone = [{op.name: op.flops for op in model.ops({"tokens_BS": (1, length)})} for length in lengths]
    assert packed["causal attention"] == sum(one["causal attention"] for one in alone) < whole["causal attention"]
    assert all(packed[name] == whole[name] for name in whole if name != "causal attention")
