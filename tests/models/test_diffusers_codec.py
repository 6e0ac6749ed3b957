"""Tests that Wan's and Cosmos' autoencoders give the latents and pixels that diffusers' pipelines work with."""

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.precision import PrecisionName
from nemo_vfm.core.types.encoders import Codec
from nemo_vfm.models import diffusers_codec
from nemo_vfm.models.diffusers_codec import DiffusersCodec

diffusers = pytest.importorskip("diffusers", reason="needs the extra diffusers")

WAN = {
    "base_dim": 8, "z_dim": 4, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1, "latents_mean": [0.1, -0.2, 0.3, 0.4],
    "latents_std": [1.0, 2.0, 0.5, 1.5],
}  # fmt: skip
WAN_22 = WAN | {
    "decoder_base_dim": 8, "is_residual": True, "in_channels": 12, "out_channels": 12, "patch_size": 2,
    "scale_factor_spatial": 16,
}  # fmt: skip
NARROW = (8, 8, 8, 8)
COSMOS = {
    "latent_channels": 4, "encoder_block_out_channels": NARROW, "decode_block_out_channels": NARROW,
    "attention_resolutions": (8,), "resolution": 64, "num_layers": 1,
    "latents_mean": [0.1 * place for place in range(4 * 3)], "latents_std": [1 + 0.1 * place for place in range(4 * 3)],
}  # fmt: skip
#: Class, config, frames that one latent frame after the first stands for, pixels along its side.
KINDS: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "wan 2.1": ("AutoencoderKLWan", WAN, 4, 8), "wan 2.2": ("AutoencoderKLWan", WAN_22, 4, 16),
    "cosmos": ("AutoencoderKLCosmos", COSMOS, 8, 8),
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random autoencoders, as diffusers saves them."""
    folder = tmp_path_factory.mktemp("vae")
    for name, (kind, config, _, _) in KINDS.items():
        torch.manual_seed(1)
        getattr(diffusers, kind)(**config).save_pretrained(folder / name)
    return folder


@pytest.fixture
def wan(folders: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folders / "wan 2.1", tmp_path / "wan"))


def video(frames: int = 17, height: int = 32, width: int = 48) -> torch.Tensor:
    torch.manual_seed(2)
    return torch.rand(2, 3, frames, height, width) * 2 - 1


def expected(folder: Path, name: str, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Latents before any scaling, and what they decode to, by diffusers."""
    model = getattr(diffusers, KINDS[name][0]).from_pretrained(folder / name).eval()
    with torch.no_grad():
        latents = model.encode(pixels).latent_dist.mode()
        return latents, model.decode(latents).sample


@pytest.mark.parametrize("name", KINDS)
def test_latents_and_pixels_are_those_of_diffusers_with_mean_and_deviation_applied(folders: Path, name: str):
    codec, pixels = DiffusersCodec(folder=folders / name, scale=0.5), video()
    assert isinstance(codec, Codec)
    found, (raw, decoded) = codec.encode(pixels), expected(folders, name, pixels)
    _, _, time, space = KINDS[name]
    assert found.shape[1:] == codec.latent_shape(17, 32, 48) == (4, 1 + 16 // time, 32 // space, 48 // space)
    mean, std = (torch.tensor(KINDS[name][1][key]).view(1, 4, -1, 1, 1) for key in ("latents_mean", "latents_std"))
    frames = slice(found.shape[2])
    torch.testing.assert_close(found, 0.5 * (raw - mean[:, :, frames]) / std[:, :, frames])
    torch.testing.assert_close(codec.decode(found), decoded, rtol=1e-4, atol=1e-5)


def test_a_pipelines_folder_means_its_autoencoder_and_settings_alone_travel(folders: Path, tmp_path: Path):
    shutil.copytree(folders / "wan 2.1", tmp_path / "pipeline/vae")
    (tmp_path / "pipeline/model_index.json").write_text("{}")
    codec = DiffusersCodec(folder=tmp_path / "pipeline")
    assert codec.fingerprint() == DiffusersCodec(folder=folders / "wan 2.1").fingerprint()
    again = pickle.loads(pickle.dumps(codec))
    assert torch.equal(again.encode(video(5)), codec.encode(video(5))) and len(pickle.dumps(codec)) < 1000
    others = [DiffusersCodec(folder=tmp_path / "pipeline", **other)
              for other in ({"scale": 0.5}, {"tile": 32}, {"precision": "bf16"})]  # fmt: skip
    assert len({codec.fingerprint(), *(other.fingerprint() for other in others)}) == 4


def test_a_weight_that_changes_changes_the_fingerprint_and_the_model(wan: Path):
    before, latents = DiffusersCodec(folder=wan).fingerprint(), DiffusersCodec(folder=wan).encode(video(1))
    path = wan / "diffusion_pytorch_model.safetensors"
    save_file({name: 2 * tensor for name, tensor in load_file(path).items()}, path)
    after = DiffusersCodec(folder=wan)
    assert after.fingerprint() != before and not torch.equal(after.encode(video(1)), latents)


@pytest.mark.parametrize("name", ["wan 2.1", "wan 2.2"])
def test_tiles_are_those_of_diffusers_and_no_latent_is_lost(folders: Path, name: str):
    """Its attention looks at a whole tile, so that every latent changes, here by a few hundredths at most."""
    space = KINDS[name][3]
    pixels = video(1, 16 * space, 4 * space)
    whole = DiffusersCodec(folder=folders / name).encode(pixels)
    tiled = DiffusersCodec(folder=folders / name, tile=8 * space)
    found = tiled.encode(pixels)
    assert found.shape == whole.shape and 0 < (found - whole).abs().max() < 0.2
    assert tiled.decode(whole).shape == pixels.shape
    with pytest.raises(ValueError, match=f"expected a multiple of {4 * space}: use {4 * space}"):
        DiffusersCodec(folder=folders / name, tile=5 * space).encode(pixels)


def test_tiles_of_cosmos_which_diffusers_would_ignore_are_refused(folders: Path):
    with pytest.raises(ValueError, match="ignores tiling when it encodes with Cosmos; leave tile out"):
        DiffusersCodec(folder=folders / "cosmos", tile=32).encode(video(1))


@pytest.mark.parametrize(("size", "said"), [
    ((16, 32, 32), "16 frames do not fit .* use 13 or 17"),
    ((5, 30, 32), "height 30 does not fit .* multiples of 8; use 24 or 32"),
    ((5, 32, 0), "width 0 does not fit .* multiples of 8; use 8 or 16"),
])  # fmt: skip
def test_a_size_that_does_not_fit_is_refused_with_those_that_do(folders: Path, size: tuple[int, ...], said: str):
    with pytest.raises(ValueError, match=said):
        DiffusersCodec(folder=folders / "wan 2.1").latent_shape(*size)


def test_more_frames_than_there_are_means_for_are_refused(folders: Path):
    with pytest.raises(ValueError, match="has means for 3 latent frames, got 4; use at most 17 frames"):
        DiffusersCodec(folder=folders / "cosmos").encode(video(25))


@pytest.mark.parametrize(("changes", "said"), [
    ({"_class_name": "AutoencoderKL"}, "supported are AutoencoderKLWan, AutoencoderKLCosmos"),
    ({"z_dim": 0}, "z_dim: 0; it must be a whole number"),
    ({"latents_mean": [1.0] * 5}, "one latents_mean per channel"),
    ({"latents_mean": [float("nan")] * 4}, "one latents_mean per channel"),
    ({"latents_std": None}, "has 4 latents_mean and 0 latents_std"),
    ({"latents_std": [1, 0, 1, 1]}, "of which none may be 0"),
])  # fmt: skip
def test_a_config_that_says_something_else_is_refused_before_weights_are_read(
    wan: Path, changes: dict[str, Any], said: str
):
    path = wan / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(DataError, match=said):
        DiffusersCodec(folder=wan).encode(video(1))


def test_a_weight_that_is_missing_or_too_many_or_truncated_is_refused(wan: Path):
    path = wan / "diffusion_pytorch_model.safetensors"
    whole = load_file(path)
    save_file({name: tensor for name, tensor in whole.items() if name != "quant_conv.bias"}, path)
    with pytest.raises(DataError, match=r"quant_conv\.bias"):
        DiffusersCodec(folder=wan).encode(video(1))
    save_file({**whole, "extra.weight": torch.zeros(1)}, path)
    with pytest.raises(DataError, match=r"extra.weight"):
        DiffusersCodec(folder=wan).encode(video(1))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match="wan cannot be loaded"):
        DiffusersCodec(folder=wan).encode(video(1))


def test_a_folder_without_safetensors_is_refused(wan: Path, tmp_path: Path):
    (wan / "diffusion_pytorch_model.safetensors").rename(wan / "diffusion_pytorch_model.bin")
    with pytest.raises(UserError, match=r"no weights as safetensors, only diffusion_pytorch_model\.bin"):
        DiffusersCodec(folder=wan).latent_shape(5, 32, 32)
    with pytest.raises(UserError, match="is not a folder"):
        DiffusersCodec(folder=tmp_path / "nowhere").fingerprint()


@pytest.mark.parametrize("wrong", [{"scale": 0}, {"scale": float("inf")}, {"tile": 0}], ids=str)
def test_settings_out_of_range_are_refused(wrong: dict[str, Any]):
    with pytest.raises(ValueError, match=r"scale must be above 0|tile must be at least 1"):
        DiffusersCodec(folder=Path("anything"), **wrong)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_weights_that_are_held_are_those_that_are_loaded(
    precision: PrecisionName, name: str, folders: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(diffusers_codec, "_LOADED", {})
    codec = DiffusersCodec(folder=folders / name, precision=precision)
    held = codec.held_weights()
    assert not diffusers_codec._LOADED, "no weight was read"
    assert held == DiffusersCodec(folder=folders / name, precision=precision, scale=0.5).held_weights()
    assert held.num_bytes == sum(parameter.nbytes for parameter in codec._load().parameters())


def test_a_model_is_loaded_once_a_process(folders: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(diffusers_codec, "_LOADED", {})
    one, other = (DiffusersCodec(folder=folders / "wan 2.1") for _ in range(2))
    one.encode(video(1))
    kept = dict(diffusers_codec._LOADED)
    other.decode(one.encode(video(1)))
    assert kept == diffusers_codec._LOADED and len(kept) == 1
