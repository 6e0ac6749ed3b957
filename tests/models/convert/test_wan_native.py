"""Tests that a Wan under its own names or ComfyUI's is the network that diffusers has, in FP8, too."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from nemo_vfm.cli.conversion import convert_child
from nemo_vfm.core.errors import DataError, NemoVfmError, UserError
from nemo_vfm.models.convert.foreign import opened_tensors
from nemo_vfm.models.convert.video.native_weights import write_native
from nemo_vfm.models.convert.video.transformer_folder import load_video_model
from nemo_vfm.models.convert.video.wan_native import COMFYUI, WanWeights, is_wan
from nemo_vfm.models.diffusers_codec import DiffusersCodec
from nemo_vfm.models.wan import Wan
from nemo_vfm.parallel.checkpoint.checkpoint_reader import fill
from nemo_vfm.train.warm_start import WarmStart
from tests.support.installed import skip_without
from tests.support.video_peers import PEERS, Peer, called, inputs, made

skip_without("diffusers")

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
    with opened_tensors(file) as found:
        assert found is not None and is_wan(found.tensors)
        weights = WanWeights(file, found.tensors, **given)
        model = Wan(**weights.arguments)
        fill(model.state_dict(), weights)
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
        fill(model.state_dict(), weights)
    expected = load_video_model(tmp_path / "theirs").state_dict()
    assert all(torch.equal(one, expected[name]) for name, one in model.state_dict().items())


def renamed(state: Mapping[str, Tensor], rules: Sequence[tuple[str, str]]) -> dict[str, Tensor]:
    """A state dict with replacements in its names, in order."""
    found = {}
    for name, one in state.items():
        for pattern, replacement in rules:
            name = re.sub(pattern, replacement, name)
        found[name] = one.clone()
    return found


#: From diffusers' names of an autoencoder to Wan's own.
RESIDUAL = [(r"norm1\.gamma", "residual.0.gamma"), (r"\.conv1\.", ".residual.2."), (r"\.conv2\.", ".residual.6."),
            (r"norm2\.gamma", "residual.3.gamma"), ("conv_shortcut", "shortcut")]  # fmt: skip
ENDS = [(r"mid_block\.resnets\.0", "middle.0"), (r"mid_block\.resnets\.1", "middle.2"),
        (r"mid_block\.attentions\.0", "middle.1"), (r"^quant_conv", "conv1"), (r"^post_quant_conv", "conv2"),
        (r"coder\.conv_in", "coder.conv1"), (r"norm_out", "head.0"), (r"conv_out", "head.2")]  # fmt: skip
UP = [(rf"up_blocks\.{stage}\.resnets\.{layer}", f"upsamples.{4 * stage + layer}") for stage in range(4)
      for layer in range(3)] + [(rf"up_blocks\.{stage}\.upsamplers\.0", f"upsamples.{4 * stage + 3}")
                                for stage in range(4)]  # fmt: skip
STAGES = [(r"down_blocks\.(\d)\.resnets\.(\d)", r"downsamples.\1.downsamples.\2"),
          (r"down_blocks\.(\d)\.downsampler", r"downsamples.\1.downsamples.2"),
          (r"up_blocks\.(\d)\.resnets\.(\d)", r"upsamples.\1.upsamples.\2"),
          (r"up_blocks\.(\d)\.upsampler", r"upsamples.\1.upsamples.3")]  # fmt: skip
VAES: dict[str, tuple[dict[str, Any], list[tuple[str, str]]]] = {
    "2.1": ({"z_dim": 16}, [*RESIDUAL, *ENDS, *UP, (r"down_blocks", "downsamples")]),
    "2.2": ({"z_dim": 48, "is_residual": True, "in_channels": 12, "out_channels": 12, "patch_size": 2,
             "scale_factor_spatial": 16, "decoder_base_dim": 16}, [*RESIDUAL, *ENDS, *STAGES]),
}  # fmt: skip


@pytest.mark.parametrize("kind", VAES)
def test_an_autoencoder_in_its_own_file_is_the_one_of_diffusers(tmp_path: Path, kind: str) -> None:
    import diffusers
    from diffusers.loaders.single_file_utils import convert_wan_vae_to_diffusers

    config, rules = VAES[kind]
    statistics = {"latents_mean": [0.0] * 48, "latents_std": [1.0] * 48} if kind == "2.2" else {}
    theirs = diffusers.AutoencoderKLWan(base_dim=8, **config, **statistics).eval()
    native = renamed(theirs.state_dict(), rules)
    if kind == "2.1":
        assert convert_wan_vae_to_diffusers(dict(native)).keys() == theirs.state_dict().keys()
    torch.save(native, tmp_path / "vae.pth")
    (tmp_path / "out").mkdir()
    said = convert_child.convert(tmp_path / "vae.pth", tmp_path / "out", key=None, leave_out=False)
    assert said.startswith(f"the autoencoder of Wan {kind}, for task.codec.folder: ")
    again = diffusers.AutoencoderKLWan.from_pretrained(tmp_path / "out")
    assert all(torch.equal(one, again.state_dict()[name]) for name, one in theirs.state_dict().items())
    told = {key: value for key, value in theirs.config.items() if not key.startswith(("_", "latents"))}
    assert {key: again.config[key] for key in told} == told
    found = DiffusersCodec(folder=tmp_path / "out").autoencoder_config()
    assert (found.channels, found.temporal_stride, found.spatial_stride) == (
        config["z_dim"],
        4,
        8 if kind == "2.1" else 16,
    )
    if kind == "2.1":
        assert again.config["latents_mean"] == theirs.config["latents_mean"]
        assert again.config["latents_std"] == theirs.config["latents_std"]


#: From transformers' names of a T5 to Wan's own.
TEXT = [(r"^shared", "token_embedding"), (r"^encoder\.final_layer_norm", "norm"), (r"^encoder\.block", "blocks"),
        (r"layer\.0\.layer_norm", "norm1"), (r"layer\.1\.layer_norm", "norm2"),
        (r"layer\.0\.SelfAttention\.relative_attention_bias", "pos_embedding.embedding"),
        (r"layer\.0\.SelfAttention", "attn"), (r"layer\.1\.DenseReluDense\.wi_0", "ffn.gate.0"),
        (r"layer\.1\.DenseReluDense\.wi_1", "ffn.fc1"), (r"layer\.1\.DenseReluDense\.wo", "ffn.fc2")]  # fmt: skip


@pytest.mark.parametrize("own", [True, False])
def test_a_text_encoder_in_its_own_file_or_comfyuis_is_the_one_of_transformers(tmp_path: Path, own: bool) -> None:
    import transformers

    size = {"vocab_size": 20, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
    theirs = transformers.UMT5EncoderModel(transformers.UMT5Config(**size)).eval()
    state = {name: one for name, one in theirs.state_dict().items() if name != "encoder.embed_tokens.weight"}
    file = tmp_path / ("t5.pth" if own else "t5.safetensors")
    if own:
        torch.save(renamed(state, TEXT), file)
    else:
        save_file(renamed(state, ()) | {"spiece_model": torch.zeros(9, dtype=torch.uint8)}, file)
    (tmp_path / "out").mkdir()
    said = convert_child.convert(file, tmp_path / "out", key=None, leave_out=False)
    assert said.startswith("a text encoder, T5, for task.text_encoder.folder") and ("spiece_model" in said) != own
    again = transformers.UMT5EncoderModel.from_pretrained(tmp_path / "out").eval()
    ids = torch.arange(12).reshape(2, 6)
    with torch.no_grad():
        difference = (again(ids).last_hidden_state - theirs(ids).last_hidden_state).abs().max()
    assert difference <= 1e-6
