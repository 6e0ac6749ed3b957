# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Tests that this DiT as Cosmos 1.0 has the parameters and outputs of diffusers."""

import math
from collections import Counter

import pytest
import torch
import yaml

from nemo_vfm.models.dit import DiT
from tests.support.repository import ROOT

diffusers = pytest.importorskip("diffusers", reason="needs the extra diffusers")
transformer_cosmos = pytest.importorskip("diffusers.models.transformers.transformer_cosmos")


class Torchvision:
    """The one function of torchvision that the peer calls: its wheel does not load beside torch for CPUs."""

    class functional:
        """As torchvision names it."""

        class InterpolationMode:
            """As torchvision names it."""

            NEAREST = "nearest"

        @staticmethod
        def resize(mask, size, interpolation):
            """A mask at another size."""
            return torch.nn.functional.interpolate(mask.float(), size=list(size), mode="nearest")

    InterpolationMode = functional.InterpolationMode


@pytest.mark.parametrize(("name", "scale"), [("cosmos_7b", (2.0, 1.0, 1.0)), ("cosmos_14b", (2.0, 2.0, 2.0))])
def test_a_cosmos_size_has_the_parameters_of_its_model_in_diffusers(name, scale):
    preset = yaml.safe_load((ROOT / f"conf/model/{name}.yaml").read_text())
    assert preset.pop("_target_") == f"{DiT.__module__}.{DiT.__qualname__}"
    with torch.device("meta"):
        ours = DiT(**preset)
        theirs = diffusers.CosmosTransformer3DModel(
            num_layers=ours.depth, num_attention_heads=ours.heads, rope_scale=scale
        )
    assert ours.rope.scale == scale
    assert numbers(ours) == numbers(theirs)


def numbers(model):
    """Parameters in tensors of each size; the projections of attention, which theirs has apart, as one."""
    found = Counter()
    for name, parameter in model.named_parameters():
        part = name.removesuffix(".weight").split(".")[-1]
        place = "attention" if part in ("qkv", "q", "kv", "to_q", "to_k", "to_v") else math.prod(parameter.shape)
        found[place] += parameter.numel()
    return found


def tiny_cosmos(**other):
    """A model without zeros."""
    torch.manual_seed(3)
    settings = {
        "in_channels": 4, "text_dim": 16, "width": 48, "depth": 2, "heads": 2, "modulation_rank": 8,
        "learned_positions": (4, 4, 4), "padding_mask": True, "bias": False, "rope_scale": (2.0, 1.0, 1.0),
        "gelu": "exact", "noise_scale": 1.0, "text_as_given": True,
    }  # fmt: skip
    model = DiT(**settings | other)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def inputs():
    """Two samples at levels of EDM, ln(sigma) / 4; the text of the second ends early."""
    text, mask = torch.randn(2, 5, 16), torch.ones(2, 5, dtype=torch.bool)
    mask[1, 3:] = False
    return {
        "latents_BCTHW": torch.randn(2, 4, 2, 4, 6), "noise_B": torch.tensor([-1.5, 1.1]), "text_BLD": text,
        "text_mask_BL": mask, "fps_B": torch.full((2,), 12.0),
    }  # fmt: skip


def test_the_network_of_cosmos_gives_the_numbers_of_diffusers(monkeypatch):
    monkeypatch.setattr(transformer_cosmos, "transforms", Torchvision, raising=False)
    ours, given = tiny_cosmos(), inputs()
    theirs = diffusers.CosmosTransformer3DModel(
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=24, num_layers=2, text_embed_dim=16,
        adaln_lora_dim=8, max_size=(4, 8, 8),
    )  # fmt: skip
    theirs.load_state_dict(in_diffusers(ours))
    text = given["text_BLD"] * given["text_mask_BL"][..., None]  # as its pipelines do
    expected = theirs(
        given["latents_BCTHW"], given["noise_B"], text, fps=12, padding_mask=torch.zeros(1, 1, 32, 48)
    ).sample
    difference = (ours(**given) - expected).abs().max() / expected.std()
    assert difference < 1e-5
    for other in ({"gelu": "tanh"}, {"noise_scale": 1000.0}, {"text_as_given": False}):
        assert (tiny_cosmos(**other)(**given) - expected).abs().max() / expected.std() > 1e-4


def in_diffusers(model):
    """The weights of a model like Cosmos under the names of diffusers."""
    own = {name: value.detach() for name, value in model.state_dict().items()}
    given = {
        "patch_embed.proj.weight": own["patch_embedding.proj.weight"],
        "time_embed.norm.weight": own["noise_embedding.norm.weight"],
        "time_embed.t_embedder.linear_1.weight": own["noise_embedding.hidden.weight"],
        "time_embed.t_embedder.linear_2.weight": own["noise_embedding.shared.weight"],
        "norm_out.linear_1.weight": own["modulation.down.0.weight"],
        "norm_out.linear_2.weight": own["modulation.up.0.weight"],
        "proj_out.weight": proj_out(own["out.weight"]),
    }
    tables = {"t": "frames", "h": "rows", "w": "columns"}
    given |= {f"learnable_pos_embed.pos_emb_{axis}": own[f"learned_positions.{name}"] for axis, name in tables.items()}
    for number in range(model.depth):
        given |= block_in_diffusers(own, f"blocks.{number}", f"transformer_blocks.{number}", model.rope.head_dim)
    return given


def proj_out(weight):
    """Diffusers has a patch's channel fastest."""
    return weight.reshape(-1, 4, weight.shape[1]).transpose(0, 1).flatten(0, 1)


def block_in_diffusers(own, here, there, head_dim):
    qkv = own[f"{here}.self_attention.qkv.weight"].unflatten(0, (-1, 3, head_dim))
    kv = own[f"{here}.cross_attention.kv.weight"].unflatten(0, (-1, 2, head_dim))
    roles = {"attn1.to_q": qkv[:, 0], "attn1.to_k": qkv[:, 1], "attn1.to_v": qkv[:, 2]}
    roles |= {"attn2.to_k": kv[:, 0], "attn2.to_v": kv[:, 1]}
    given = {f"{there}.{name}.weight": rows.flatten(0, 1) for name, rows in roles.items()}
    given[f"{there}.attn2.to_q.weight"] = own[f"{here}.cross_attention.q.weight"]
    for theirs, ours in (("attn1", "self_attention"), ("attn2", "cross_attention")):
        given[f"{there}.{theirs}.to_out.0.weight"] = own[f"{here}.{ours}.out.weight"]
        given |= {f"{there}.{theirs}.norm_{x}.weight": own[f"{here}.{ours}.{x}_norm.weight"] for x in "qk"}
    given[f"{there}.ff.net.0.proj.weight"] = own[f"{here}.mlp.up.weight"]
    given[f"{there}.ff.net.2.weight"] = own[f"{here}.mlp.down.weight"]
    for part in range(3):
        given[f"{there}.norm{part + 1}.linear_1.weight"] = own[f"{here}.modulation.down.{part}.weight"]
        given[f"{there}.norm{part + 1}.linear_2.weight"] = own[f"{here}.modulation.up.{part}.weight"]
    return given
