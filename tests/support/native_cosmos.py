"""Gives the tensors of diffusers' Cosmos the names that NVIDIA's programs write, apart from the package's own tables.

Each rule is one replacement in a name, in the order of diffusers' converter read backwards, so that a slip in the
package's tables is not made here, too. `diffusers` converts what comes out back to itself; see the test.
"""

import io
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_COMMON = (
    (r"^patch_embed\.proj\.", "x_embedder.proj.1."), (r"^time_embed\.t_embedder\.", "t_embedder.1."),
    (r"^proj_out\.", "final_layer.linear."),
)  # fmt: skip
_COSMOS_1 = (
    *_COMMON,
    (r"^time_embed\.norm\.", "affline_norm."), (r"^norm_out\.linear_", "final_layer.adaLN_modulation."),
    (r"^learnable_pos_embed\.", "extra_pos_embedder."), (r"^transformer_blocks\.", "blocks.block"),
    (r"\.attn1\.", ".blocks.0.block.attn."), (r"\.attn2\.", ".blocks.1.block.attn."),
    (r"\.to_([qkv])\.", r".to_\1.0."), (r"\.norm_([qk])\.", r".to_\1.1."),
    (r"\.ff\.net\.0\.proj\.", ".blocks.2.block.layer1."), (r"\.ff\.net\.2\.", ".blocks.2.block.layer2."),
    (r"\.norm1\.linear_", ".blocks.0.adaLN_modulation."), (r"\.norm2\.linear_", ".blocks.1.adaLN_modulation."),
    (r"\.norm3\.linear_", ".blocks.2.adaLN_modulation."),
)  # fmt: skip
_COSMOS_2 = (
    *_COMMON,
    (r"^time_embed\.norm\.", "t_embedding_norm."), (r"^norm_out\.linear_", "final_layer.adaln_modulation."),
    (r"^transformer_blocks\.", "blocks."), (r"\.attn1\.", ".self_attn."), (r"\.attn2\.", ".cross_attn."),
    (r"\.to_out\.0\.", ".output_proj."), (r"\.to_([qkv])\.", r".\1_proj."), (r"\.norm_([qk])\.", r".\1_norm."),
    (r"\.ff\.net\.0\.proj\.", ".mlp.layer1."), (r"\.ff\.net\.2\.", ".mlp.layer2."),
    (r"\.norm1\.linear_", ".adaln_modulation_self_attn."), (r"\.norm2\.linear_", ".adaln_modulation_cross_attn."),
    (r"\.norm3\.linear_", ".adaln_modulation_mlp."),
)  # fmt: skip


def native_state(theirs: Mapping[str, Tensor], prefix: str = "net.") -> dict[str, Any]:
    """The state dict of diffusers' transformer as NVIDIA's programs would save it, with what they keep beside it."""
    first = any(name.startswith("learnable_pos_embed") for name in theirs)
    found: dict[str, Any] = {}
    for name, tensor in theirs.items():
        for pattern, replacement in _COSMOS_1 if first else _COSMOS_2:
            name = re.sub(pattern, replacement, name)
        found[prefix + name] = tensor.detach().clone()
    return found | (_beside_1(prefix) if first else _beside_2(prefix))


def _beside_1(prefix: str) -> dict[str, Any]:
    return {
        f"{prefix}pos_embedder.seq": torch.arange(240.0), "logvar.0.freqs": torch.randn(128),
        "logvar.0.phases": torch.randn(128), "logvar.1.weight": torch.randn(1, 128),
    }  # fmt: skip


def _beside_2(prefix: str) -> dict[str, Any]:
    scales = {f"{prefix}blocks.{n}.self_attn.{x}_norm._extra_state": io.BytesIO(b"\x80scales") for n in (0, 1)
              for x in "qk"}  # fmt: skip
    return scales | {
        f"{prefix}t_embedding_norm._extra_state": io.BytesIO(),
        f"{prefix}blocks.0.cross_attn.attn_op._extra_state": None,
        f"{prefix}accum_iteration": torch.tensor(7), f"{prefix}accum_video_sample_counter": torch.tensor(7),
        f"{prefix}pos_embedder.seq": torch.arange(128.0),
        f"{prefix}pos_embedder.dim_spatial_range": torch.arange(0, 8, 2).float() / 8,
        f"{prefix}pos_embedder.dim_temporal_range": torch.arange(0, 8, 2).float() / 8,
    }  # fmt: skip
