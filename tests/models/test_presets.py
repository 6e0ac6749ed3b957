"""Tests that the sizes under conf/model are those of the papers, parameter by parameter."""

from pathlib import Path

import pytest
import torch
import yaml

from nemo_vfm.models.dit import DiT

CONF = Path(__file__).parents[2] / "conf" / "model"
SIZES = [
    ("dit_s", 12, 384, 6), ("dit_b", 12, 768, 12), ("dit_l", 24, 1024, 16), ("dit_xl", 28, 1152, 16),
    ("dit_7b", 28, 4096, 32), ("dit_14b", 36, 5120, 40), ("dit_28b", 48, 6144, 48),
    ("cosmos_7b", 28, 4096, 32), ("cosmos_14b", 36, 5120, 40),
]  # fmt: skip


def preset(name, **given):
    """The model of a preset, without memory; what a preset leaves to the codec and the text encoder is given."""
    numbers = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    assert numbers.pop("_target_") == f"{DiT.__module__}.{DiT.__qualname__}"
    left = {key: given.get(key, 16) for key, value in numbers.items() if value == "???"}
    assert set(left) == (set() if name.startswith("cosmos") else {"in_channels", "text_dim"})
    with torch.device("meta"):
        return DiT(**numbers | left)


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


def closed_form(channels, text, depth, h, heads, rank, *, tables=(), biases=True, extra=0, p=4):
    """Parameters of a DiT whose perceptrons are four times as wide as its tokens."""
    block = 14 * h * h + 2 * text * h + 4 * (h // heads)
    if rank is None:
        noise, modulations = (2 * 128 + 1) * h + (h + 1) * h, (9 * depth + 2) * h * h
    else:
        noise, modulations = h + 4 * h * h, (12 * depth + 3) * h * rank
    ends = ((channels + extra) * p + biases) * h + channels * p * (h + biases)
    return depth * block + noise + modulations + ends + sum(tables) * h


@pytest.mark.parametrize(("name", "depth", "width", "heads"), SIZES)
def test_a_preset_has_the_parameters_that_a_closed_form_gives(name, depth, width, heads):
    model = preset(name, text_dim=1024)
    assert (model.depth, model.width, model.rope.head_dim) == (depth, width, width // heads)
    rank = None if name in ("dit_s", "dit_b", "dit_l", "dit_xl") else 256
    more = {"tables": (128, 120, 120), "biases": False, "extra": 1} if name.startswith("cosmos") else {}
    assert count(model) == closed_form(16, 1024, depth, width, heads, rank, **more)


@pytest.mark.parametrize(("name", "billions"), [
    ("dit_7b", 7.2), ("dit_14b", 14.3), ("dit_28b", 27.0), ("cosmos_7b", 7.2), ("cosmos_14b", 14.3),
])  # fmt: skip
def test_a_size_says_its_billions(name, billions):
    assert count(preset(name, text_dim=1024)) / 1e9 == pytest.approx(billions, abs=0.1)


def test_modulations_of_low_rank_give_back_the_2_7_billion_that_the_paper_names():
    with torch.device("meta"):  # arXiv 2503.12964, 4.2: the 7B of 32 blocks, 3072 wide
        full, low = (
            DiT(in_channels=16, text_dim=1024, width=3072, depth=32, heads=24, modulation_rank=rank)
            for rank in (None, 256)
        )
    of_blocks = [
        sum(p.numel() for name, p in model.named_parameters() if "blocks." in name and ".modulation." in name)
        for model in (full, low)
    ]
    assert of_blocks == [32 * 9 * 3072**2, 32 * 12 * 3072 * 256]
    assert of_blocks[0] / 1e9 == pytest.approx(2.72, abs=0.01)
