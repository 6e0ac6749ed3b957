# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Tests that a Wan under its own names or ComfyUI's is the network that diffusers has, in FP8, too."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from nemo_vfm.core.errors import DataError, NemoVfmError, UserError
from nemo_vfm.models.convert.foreign import opened_tensors
from nemo_vfm.models.convert.video.native_weights import write_native
from nemo_vfm.models.convert.video.transformer_folder import load_video_model
from nemo_vfm.models.convert.video.wan_native import COMFYUI, WanWeights, is_wan
from nemo_vfm.models.wan import Wan
from nemo_vfm.parallel.engine.engine import load_weights_into
from nemo_vfm.train.warm_start import WarmStart
from tests.support.video_peers import PEERS, Peer, called, inputs, made

pytest.importorskip("diffusers", reason="needs the extra diffusers")

WANS = [name for name in PEERS if name.startswith("wan")]


def wide(name: str) -> Peer:
    """A peer with heads as wide as all published ones have them."""
    peer = PEERS[name]
    more = {"added_kv_proj_dim": 256} if "image_dim" in peer.config else {}
    return replace(peer, config=peer.config | {"num_attention_heads": 2, "attention_head_dim": 128} | more)


def written(theirs: torch.nn.Module, folder: Path, *, comfyui: bool = False) -> Path:
    """A network of diffusers as a file under Wan's own names, written by us."""
    theirs.save_pretrained(folder / "theirs")
    model = load_video_model(folder / "theirs")
    return write_native(model, dict(model.named_parameters()), folder / "native", comfyui=comfyui)


def read(file: Path, **given: int | str) -> Wan:
    """The model of a file."""
    with opened_tensors(file) as found:
        assert found is not None and is_wan(found.source.keys())
        weights = WanWeights(file, dict.fromkeys(found.source.keys(), found.source), **given)
        model = Wan(**weights.arguments)
        load_weights_into(model, weights)
    return model


@pytest.mark.parametrize("comfyui", [False, True])
@pytest.mark.parametrize("name", WANS)
def test_a_file_under_its_own_names_is_the_network_that_diffusers_has(tmp_path: Path, name: str, comfyui: bool) -> None:
    from diffusers.loaders.single_file_utils import convert_wan_transformer_to_diffusers

    peer = wide(name)
    theirs, given = made(peer), inputs(peer)
    file = written(theirs, tmp_path, comfyui=comfyui)
    state = load_file(file)
    assert all(key.startswith(COMFYUI) == comfyui for key in state)
    back = convert_wan_transformer_to_diffusers(dict(state))  # diffusers' own reading of what we wrote
    back = {
        key.replace("img_emb.emb_pos", "condition_embedder.image_embedder.pos_embed"): one for key, one in back.items()
    }
    assert {key: torch.equal(one, back[key]) for key, one in theirs.state_dict().items()} == dict.fromkeys(back, True)
    with torch.no_grad():
        output = read(file)(**given)
    assert (output - called(peer, theirs, given)).abs().max() / output.std() <= 1e-5


#: Of a block of Wan 2.1 with images, as its own program has it.
BLOCK = {
    "modulation", "norm3.weight", "norm3.bias", "self_attn.norm_q.weight", "self_attn.norm_k.weight",
    "cross_attn.norm_q.weight", "cross_attn.norm_k.weight", "cross_attn.norm_k_img.weight",
    *(f"self_attn.{x}.{kind}" for x in "qkvo" for kind in ("weight", "bias")),
    *(f"cross_attn.{x}.{kind}" for x in ("q", "k", "v", "o", "k_img", "v_img") for kind in ("weight", "bias")),
    *(f"ffn.{n}.{kind}" for n in (0, 2) for kind in ("weight", "bias")),
}  # fmt: skip
OUTSIDE = {
    "head.modulation",
    *(f"{name}.{kind}" for name in (
        "patch_embedding", "text_embedding.0", "text_embedding.2", "time_embedding.0", "time_embedding.2",
        "time_projection.1", "head.head", *(f"img_emb.proj.{n}" for n in (0, 1, 3, 4)),
    ) for kind in ("weight", "bias")),
}  # fmt: skip


def test_names_are_those_of_wans_own_program(tmp_path: Path) -> None:
    names = set(load_file(written(made(wide("wan 2.1 image")), tmp_path)))
    assert names == OUTSIDE | {f"blocks.{number}.{name}" for number in range(2) for name in BLOCK}


def fp8(state: Mapping[str, Tensor], scale: str) -> dict[str, Tensor]:
    """As ComfyUI keeps it: linears of blocks in FP8, each with a scale."""
    found: dict[str, Tensor] = {}
    for name, one in state.items():
        found[name] = one
        if ".blocks." in name and name.endswith(".weight") and one.ndim == 2:
            factor = one.abs().max() / 448
            found[name] = (one / factor).to(torch.float8_e4m3fn)
            found[name.replace(".weight", scale)] = factor.reshape(1) if scale == ".weight_scale" else factor
            found[name.replace(".weight", ".scale_input")] = torch.ones(())
    return found


@pytest.mark.parametrize("scale", [".scale_weight", ".weight_scale"])
def test_weights_in_fp8_are_multiplied_by_their_scales(tmp_path: Path, scale: str) -> None:
    state = load_file(written(made(wide("wan 2.1 text")), tmp_path, comfyui=True))
    small = fp8(state, scale)
    save_file(small | {f"{COMFYUI}scaled_fp8": torch.zeros(2).to(torch.float8_e4m3fn)}, tmp_path / "fp8.safetensors")
    whole = {
        name: one.float() * small[name.replace(".weight", scale)] if one.dtype == torch.float8_e4m3fn else one
        for name, one in small.items()
        if not name.endswith((scale, ".scale_input"))
    }
    save_file(whole, tmp_path / "fp32.safetensors")
    ours, expected = read(tmp_path / "fp8.safetensors"), read(tmp_path / "fp32.safetensors")
    assert all(torch.equal(one, expected.state_dict()[name]) for name, one in ours.state_dict().items())
    near = [(one - state[name]).abs().max() / one.abs().max() for name, one in whole.items()]
    assert 0 < max(near) < 0.07, "as exact as FP8 is"


def test_a_file_of_another_network_or_of_two_is_refused_by_what_it_is(tmp_path: Path) -> None:
    state = load_file(written(made(wide("wan 2.1 text")), tmp_path))
    two = {f"{name}.{key}": one.clone() for name in ("high", "low") for key, one in state.items()}
    without = {key: one for key, one in state.items() if key != "blocks.1.ffn.2.bias"}
    cases: dict[str, tuple[dict[str, Tensor], type[NemoVfmError], str]] = {
        "vace": (state | {"vace_blocks.0.after_proj.bias": torch.ones(3)}, DataError, "vace_blocks.0.after_proj.bias"),
        "short": (without, DataError, r"blocks\.1\.ffn\.2\.bias"),
        "two": (two, UserError, "high, low; name one"),
    }
    for name, (tensors, error, words) in cases.items():
        save_file(tensors, tmp_path / f"{name}.safetensors")
        with pytest.raises(error, match=words):
            read(tmp_path / f"{name}.safetensors")
    assert read(tmp_path / "two.safetensors", key="low").state_dict().keys()
    narrow = written(made(PEERS["wan 2.1 text"]), tmp_path / "narrow")
    with pytest.raises(UserError, match="--heads N"):
        read(narrow)
    assert read(narrow, heads=2).heads == 2
    with pytest.raises(UserError, match="converted first"):
        WarmStart(path=narrow).load_into(torch.nn.Linear(1, 1))


def test_a_folder_of_wans_own_programs_is_read_with_its_number_of_heads(tmp_path: Path) -> None:
    theirs = made(PEERS["wan 2.2 ti2v"])
    file = written(theirs, tmp_path)
    folder = tmp_path / "own"
    folder.mkdir()
    file.rename(folder / "diffusion_pytorch_model.safetensors")
    (folder / "config.json").write_text(json.dumps({"_class_name": "WanModel", "num_heads": 2, "dim": 48}))
    with WanWeights.of_folder(folder) as weights:
        model = Wan(**weights.arguments)
        load_weights_into(model, weights)
    expected = load_video_model(tmp_path / "theirs").state_dict()
    assert all(torch.equal(one, expected[name]) for name, one in model.state_dict().items())
