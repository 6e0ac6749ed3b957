"""Tests that every argument of a network changes what the network computes."""

import inspect
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nemo_vfm.models.autoencoder import CausalAutoencoder
from nemo_vfm.models.blocks.text.experts import Experts
from nemo_vfm.models.blocks.text.sliding_window import SlidingWindow
from nemo_vfm.models.blocks.text_rope import TextRope
from nemo_vfm.models.dit import DiT
from nemo_vfm.models.gpt import GPT
from nemo_vfm.models.st_dit import STDiT
from nemo_vfm.models.wan import Wan

_DIT: dict[str, Any] = {"in_channels": 4, "text_dim": 6, "width": 48, "depth": 2, "heads": 2}
_OTHER_DIT: dict[str, Any] = {
    "in_channels": 3, "text_dim": 5, "width": 24, "depth": 1, "heads": 4, "patch": (2, 1, 2), "rope_theta": 50.0,
}  # fmt: skip
_MORE_DIT: dict[str, Any] = {
    "mlp_ratio": 2.0, "text_in_modulation": True, "modulation_rank": 4, "learned_positions": (4, 8, 8),
    "uncertainty": True, "base_fps": 12.0, "rope_scale": (1.0, 2.0, 1.0),
}  # fmt: skip
#: A network -> arguments that make a small one, and another value of each argument.
NETWORKS: dict[type[nn.Module], tuple[dict[str, Any], dict[str, Any]]] = {
    DiT: (_DIT, _OTHER_DIT | _MORE_DIT | {
        "position_embedding": True, "condition_channels": 1, "padding_mask": True, "qk_norm_eps": 1.0, "gelu": "exact",
        "noise_scale": 1.0, "text_projection": 7, "text_as_given": True, "bias": False,
    }),
    STDiT: (_DIT | {"modulation_rank": None}, _OTHER_DIT | _MORE_DIT | {"reaches": ("temporal", "full", "spatial")}),
    Wan: (_DIT | {"mlp_hidden": 24, "image_dim": 5}, _OTHER_DIT | {
        "mlp_hidden": 36, "condition_channels": 1, "image_dim": 4, "image_positions": 3, "num_frequencies": 8,
        "noise_scale": 1.0,
    }),
    GPT: ({"vocab": 11, "width": 48, "depth": 2, "heads": 4, "mlp_hidden": 24}, {
        "vocab": 12, "width": 24, "depth": 1, "heads": 6, "mlp_hidden": 20, "groups": 2, "head_dim": 8,
        "activation": "gelu", "norm": "layernorm1p", "eps": 1.0, "rope": TextRope(share=0.5), "tied": True,
        "qkv_bias": True, "qk_norm": True, "init_std": 1.0, "post_norm": True, "query_scalar": 5,
        "scale_embedding": True, "window": SlidingWindow(3), "experts": Experts(3, per_token=2, hidden=8),
    }),
    CausalAutoencoder: ({"width": 32, "blocks": 1, "widest": 32, "attention": "space_time"}, {
        "latent_channels": 8, "space": 16, "time": 4, "width": 16, "widest": 64, "blocks": 2, "wavelet_space": 1,
        "wavelet_time": 1, "attention": "space", "window": 2, "variational": True,
    }),
}  # fmt: skip


def inputs_of(model: nn.Module) -> dict[str, Tensor]:
    """Small random ones that the network takes."""
    if isinstance(model, GPT):
        return {"tokens_BS": torch.arange(22).view(2, 11) % 11, "labels_BS": torch.arange(1, 23).view(2, 11) % 11}
    if isinstance(model, CausalAutoencoder):
        return {"video_BCTHW": torch.rand(1, 3, 17, 16, 16), "seeds_B": torch.tensor([3])}
    assert isinstance(model, DiT)
    image = {"image_BLD": torch.randn(2, 3, model.image_dim)} if isinstance(model, Wan) and model.image_dim else {}
    text_mask = torch.tensor([[True, True, False], [True, False, False]])
    return image | {
        "latents_BCTHW": torch.randn(2, model.in_channels, 4, 8, 8), "noise_B": torch.tensor([0.3, 0.9]),
        "text_BLD": torch.randn(2, 3, model.text_dim), "text_mask_BL": text_mask, "fps_B": torch.tensor([8.0, 30.0]),
    }  # fmt: skip


@torch.no_grad()
def computed(network: type[nn.Module], arguments: Mapping[str, Any]) -> list[Tensor]:
    """The weights as they begin, and what the network computes with others that are all but zero."""
    torch.manual_seed(0)
    model = network(**arguments).eval()
    begun = [parameter.clone() for parameter in model.parameters()]
    torch.manual_seed(1)
    for parameter in model.parameters():
        parameter.copy_(0.3 * torch.randn_like(parameter))
    return [*begun, model(**inputs_of(model))]


@pytest.mark.parametrize("network", NETWORKS)
def test_every_argument_of_a_network_changes_what_it_computes(network: type[nn.Module]) -> None:
    base, others = NETWORKS[network]
    assert set(others) == set(inspect.signature(network).parameters), "give a new argument another value"
    plain, again = computed(network, base), computed(network, base)
    assert all(map(torch.equal, plain, again))
    for name, value in others.items():
        found = computed(network, base | {name: value})
        is_same = len(found) == len(plain) and all(map(torch.equal, found, plain))
        assert not is_same, f"{network.__name__}: {name} {value} changes nothing"
