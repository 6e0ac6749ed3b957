"""Gives the tensors of diffusers' Cosmos 1 the names and the order of NeMo's, apart from the package's tables.

Rows of joined projections are written by head, as Megatron-Core views them: for each head its query, key and value.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

_ALONE = {
    "patch_embed.proj": "x_embedder.proj.1", "time_embed.norm": "affline_norm",
    "time_embed.t_embedder.linear_1": "t_embedder.1.linear_1",
    "time_embed.t_embedder.linear_2": "t_embedder.1.linear_2",
    "norm_out.linear_1": "final_layer.adaLN_modulation.1", "norm_out.linear_2": "final_layer.adaLN_modulation.2",
    "proj_out": "final_layer.linear",
}  # fmt: skip
_IN_A_LAYER = {
    "full_self_attention.linear_proj": "attn1.to_out.0", "full_self_attention.q_layernorm": "attn1.norm_q",
    "full_self_attention.k_layernorm": "attn1.norm_k", "cross_attention.linear_q": "attn2.to_q",
    "cross_attention.linear_proj": "attn2.to_out.0", "cross_attention.q_layernorm": "attn2.norm_q",
    "cross_attention.k_layernorm": "attn2.norm_k", "mlp.linear_fc1": "ff.net.0.proj", "mlp.linear_fc2": "ff.net.2",
}  # fmt: skip


def nemo_state(model: nn.Module, prefix: str = "module.", *, stacked: bool = True) -> dict[str, Tensor]:
    """The tensors of a checkpoint of NeMo, with those that it keeps beside the weights.

    Args:
        model: CosmosTransformer3DModel with learned positions.
        prefix: before the names.
        stacked: layers along a first axis, as Megatron-Core keeps them unless they differ; else numbered.
    """
    theirs = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    found = {f"{new}.weight": theirs[f"{old}.weight"] for old, new in _ALONE.items()}
    for axis in "thw":
        found[f"extra_pos_embedder.pos_emb_{axis}"] = theirs[f"learnable_pos_embed.pos_emb_{axis}"]
    layers = [_layer(theirs, n, model.config["attention_head_dim"]) for n in range(model.config["num_layers"])]  # type: ignore[index]
    for name in layers[0]:
        if stacked:
            found[f"decoder.layers.{name}.weight"] = torch.stack([layer[name] for layer in layers])
        else:
            found |= {f"decoder.layers.{n}.{name}.weight": layer[name] for n, layer in enumerate(layers)}
    found |= {"pos_embedder.seq": torch.arange(120.0), "logvar.0.freqs": torch.randn(128),
              "logvar.0.phases": torch.randn(128), "logvar.1.weight": torch.randn(1, 128)}  # fmt: skip
    return {prefix + name: tensor for name, tensor in found.items()}


def _layer(theirs: Mapping[str, Tensor], number: int, head_dim: int) -> dict[str, Tensor]:
    def own(name: str) -> Tensor:
        return theirs[f"transformer_blocks.{number}.{name}.weight"]

    found = {new: own(old) for new, old in _IN_A_LAYER.items()}
    for new, projections in {
        "full_self_attention.linear_qkv": ("attn1.to_q", "attn1.to_k", "attn1.to_v"),
        "cross_attention.linear_kv": ("attn2.to_k", "attn2.to_v"),
    }.items():
        heads = zip(*(own(name).split(head_dim) for name in projections), strict=True)
        found[new] = torch.cat([rows for head in heads for rows in head])
    downs, ups = ([own(f"norm{part}.linear_{n}") for part in (1, 2, 3)] for n in (1, 2))
    shared = all(torch.equal(down, downs[0]) for down in downs)
    found["adaLN.adaLN_modulation.1"] = downs[0] if shared else torch.cat(downs)
    found["adaLN.adaLN_modulation.2"] = torch.cat(ups) if shared else torch.block_diag(*ups)
    return found
