# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""The sizes under conf/model are those of the paper."""

from pathlib import Path

import pytest
import torch
import yaml

from nemo_vfm.models.dit import DiT

CONF = Path(__file__).parents[2] / "conf" / "model"


@pytest.mark.parametrize(("size", "depth", "width", "heads"), [
    ("s", 12, 384, 6), ("b", 12, 768, 12), ("l", 24, 1024, 16), ("xl", 28, 1152, 16),
])  # fmt: skip
def test_a_preset_builds_a_model_of_its_size(size, depth, width, heads):
    preset = yaml.safe_load((CONF / f"dit_{size}.yaml").read_text())
    assert preset.pop("_target_") == f"{DiT.__module__}.{DiT.__qualname__}"
    assert preset.pop("in_channels") == preset.pop("text_dim") == "???"
    with torch.device("meta"):
        model = DiT(in_channels=16, text_dim=64, **preset)
    assert (model.depth, model.width, model.rope.head_dim) == (depth, width, width // heads)
