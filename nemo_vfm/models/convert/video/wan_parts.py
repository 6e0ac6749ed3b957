"""Gives Wan's own autoencoders and text encoder the names and the config.json of diffusers and transformers."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import isqrt

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.convert.video.wan_native import Shape, require_dims

#: In every part of its kind and in nothing else that is known.
_VAE, _VAE_22 = "decoder.middle.0.residual.0.gamma", "encoder.downsamples.0.downsamples.0.residual.0.gamma"
_TEXT, _TEXT_THEIRS = "blocks.0.ffn.gate.0.weight", "encoder.block.0.layer.1.DenseReluDense.wi_0.weight"
_RESIDUAL = {"residual.0": "norm1", "residual.2": "conv1", "residual.3": "norm2", "residual.6": "conv2",
             "shortcut": "conv_shortcut"}  # fmt: skip
_ENDS = {"conv1": "conv_in", "head.0": "norm_out", "head.2": "conv_out"}
_T5 = {
    "norm1": "layer.0.layer_norm", "norm2": "layer.1.layer_norm",
    **{f"attn.{x}": f"layer.0.SelfAttention.{x}" for x in "qkvo"},
    "pos_embedding.embedding": "layer.0.SelfAttention.relative_attention_bias",
    "ffn.gate.0": "layer.1.DenseReluDense.wi_0", "ffn.fc1": "layer.1.DenseReluDense.wi_1",
    "ffn.fc2": "layer.1.DenseReluDense.wo",
}  # fmt: skip
_T5_OUTSIDE = {"token_embedding": "shared", "norm": "encoder.final_layer_norm"}
#: Mean and standard deviation of the latents of the published autoencoders, by their channels.
_STATISTICS: dict[int, tuple[list[float], list[float]]] = {
    16: (
        [-0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508, 0.4134, -0.0715, 0.5517, -0.3632, -0.1922,
         -0.9497, 0.2503, -0.2921],
        [2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743, 3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253,
         2.8251, 1.916],
    ),
    48: (
        [-0.2289, -0.0052, -0.1323, -0.2339, -0.2799, 0.0174, 0.1838, 0.1557, -0.1382, 0.0542, 0.2813, 0.0891, 0.157,
         -0.0098, 0.0375, -0.1825, -0.2246, -0.1207, -0.0698, 0.5109, 0.2665, -0.2108, -0.2158, 0.2502, -0.2055,
         -0.0322, 0.1109, 0.1567, -0.0729, 0.0899, -0.2799, -0.123, -0.0313, -0.1649, 0.0117, 0.0723, -0.2839, -0.2083,
         -0.052, 0.3748, 0.0152, 0.1957, 0.1433, -0.2944, 0.3573, -0.0548, -0.1681, -0.0667],
        [0.4765, 1.0364, 0.4514, 1.1677, 0.5313, 0.499, 0.4818, 0.5013, 0.8158, 1.0344, 0.5894, 1.0901, 0.6885, 0.6165,
         0.8454, 0.4978, 0.5759, 0.3523, 0.7135, 0.6804, 0.5833, 1.4146, 0.8986, 0.5659, 0.7069, 0.5338, 0.4889, 0.4917,
         0.4069, 0.4999, 0.6866, 0.4093, 0.5709, 0.6065, 0.6415, 0.4944, 0.5726, 1.2042, 0.5458, 1.6887, 0.3971, 1.06,
         0.3943, 0.5537, 0.5444, 0.4089, 0.7468, 0.7744],
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class WanPart:
    """A part of Wan's pipeline as another library has it."""

    what: str  #: it is, in words
    file: str  #: that the library loads
    config: dict[str, Json]  #: its config.json
    names: dict[str, str]  #: name there -> name here, of every tensor


def is_part(names: Collection[str]) -> bool:
    """Whether these are the names of an autoencoder of Wan's or of its text encoder."""
    return bool({_VAE, _TEXT, _TEXT_THEIRS} & set(names))


def part_of(shapes: Mapping[str, Shape]) -> WanPart:
    """The part that tensors of these names and shapes are of.

    A text encoder is under its own names or transformers': a UMT5 has positions in every block, a T5 in the first.
    """
    if _VAE in shapes:
        kind = "2.2" if _VAE_22 in shapes else "2.1"
        return WanPart(f"the autoencoder of Wan {kind}", "diffusion_pytorch_model.safetensors",
                       _vae_config(shapes), {_vae_name(name): name for name in shapes})  # fmt: skip
    names: dict[str, str] = {}
    for name in shapes:
        theirs = name
        if _TEXT_THEIRS not in shapes:
            stem, _, kind = name.rpartition(".")
            match = re.fullmatch(r"blocks\.(\d+)\.(.+)", stem)
            if match is not None and match[2] in _T5:
                theirs = f"encoder.block.{match[1]}.{_T5[match[2]]}.{kind}"
            elif stem in _T5_OUTSIDE:
                theirs = f"{_T5_OUTSIDE[stem]}.{kind}"
            else:
                raise DataError(f"{name[:200]} is not a tensor of a T5")
        names[theirs] = name
    first = "encoder.block.0.layer.0.SelfAttention"
    wanted = (f"{first}.relative_attention_bias.weight", "shared.weight", _TEXT_THEIRS, f"{first}.q.weight")
    (buckets, heads), (vocab, width), (hidden, _), (inner, _) = (
        _sizes(shapes, names.get(name, name), 2) for name in wanted
    )
    umt5 = "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight" in names
    config: dict[str, Json] = {
        "architectures": ["UMT5EncoderModel" if umt5 else "T5EncoderModel"], "model_type": "umt5" if umt5 else "t5",
        "vocab_size": vocab, "d_model": width, "d_ff": hidden, "d_kv": inner // heads, "num_heads": heads,
        "num_layers": len({name.split(".")[2] for name in names if name.startswith("encoder.block.")}),
        "relative_attention_num_buckets": buckets, "relative_attention_max_distance": 128,
        "feed_forward_proj": "gated-gelu", "layer_norm_epsilon": 1e-6, "is_encoder_decoder": False,
        "tie_word_embeddings": True, "dropout_rate": 0.0,
    }  # fmt: skip
    return WanPart("a text encoder, T5", "model.safetensors", config, names)


def _sizes(shapes: Mapping[str, Shape], name: str, dims: int) -> Shape:
    return require_dims(shapes, name, dims, "it has")


def _vae_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in ("conv1", "conv2"):
        return f"{'quant_conv' if stem == 'conv1' else 'post_quant_conv'}.{kind}"
    side, _, inside = stem.partition(".")
    if side in ("encoder", "decoder"):
        if inside in _ENDS:
            return f"{side}.{_ENDS[inside]}.{kind}"
        if match := re.fullmatch(r"middle\.([02])\.(.+)", inside):
            return f"{side}.mid_block.resnets.{int(match[1]) // 2}.{_inside(match[2], name)}.{kind}"
        if match := re.fullmatch(r"middle\.1\.(norm|to_qkv|proj)", inside):
            return f"{side}.mid_block.attentions.0.{match[1]}.{kind}"
        if match := re.fullmatch(r"(?:down|up)samples\.(\d+)\.(?:(?:down|up)samples\.(\d+)\.)?(.+)", inside):
            number, inner, inside = int(match[1]), match[2], _inside(match[3], name)
            moves = inside in ("resample.1", "time_conv")
            blocks, move = ("down_blocks", "downsampler") if side == "encoder" else ("up_blocks", "upsampler")
            if inner is not None:  # 2.2 counts a layer within its stage, 2.1 through all stages
                return f"{side}.{blocks}.{number}.{move if moves else f'resnets.{inner}'}.{inside}.{kind}"
            if side == "encoder":
                return f"{side}.{blocks}.{number}.{inside}.{kind}"
            stage, layer = divmod(number, 4)
            return f"{side}.{blocks}.{stage}.{'upsamplers.0' if moves else f'resnets.{layer}'}.{inside}.{kind}"
    raise DataError(f"{name[:200]} is not a tensor of an autoencoder of Wan")


def _inside(words: str, name: str) -> str:
    if words in _RESIDUAL:
        return _RESIDUAL[words]
    if words in ("resample.1", "time_conv"):
        return words
    raise DataError(f"{name[:200]} is not a tensor of an autoencoder of Wan")


def _vae_config(shapes: Mapping[str, Shape]) -> dict[str, Json]:
    """Two layers and a halving in each stage but the last: of 2.1 counted through, of 2.2 within a stage."""
    is_nested, patch, more = _VAE_22 in shapes, 1, dict[str, Json]()

    def layer(stage: int, number: int) -> str:
        inside = f"{stage}.downsamples.{number}" if is_nested else f"{3 * stage + number}"
        return f"encoder.downsamples.{inside}"

    numbers = [int(match[1]) for name in shapes if (match := re.match(r"encoder\.downsamples\.(\d{1,3})\.", name))]
    stages = max(numbers) + 1 if is_nested else (max(numbers) + 2) // 3
    dims = [_sizes(shapes, f"{layer(stage, 1)}.residual.6.weight", 5)[0] for stage in range(stages)]
    times = [f"{layer(stage, 2)}.time_conv.weight" in shapes for stage in range(stages - 1)]
    if is_nested:  # on patches of pixels
        inputs, outputs = _sizes(shapes, "encoder.conv1.weight", 5)[1], _sizes(shapes, "decoder.head.2.weight", 5)[0]
        patch = isqrt(inputs // 3)
        more = {"is_residual": True, "in_channels": inputs, "out_channels": outputs, "patch_size": patch,
                "decoder_base_dim": _sizes(shapes, "decoder.head.0.gamma", 4)[0]}  # fmt: skip
    base, channels = _sizes(shapes, "encoder.conv1.weight", 5)[0], _sizes(shapes, "conv2.weight", 5)[0]
    if channels not in _STATISTICS or any(dim % base for dim in dims):
        raise DataError(f"it has {channels} channels of latents, whose mean and deviation are not known; the published "
                        f"autoencoders of Wan have {' or '.join(map(str, _STATISTICS))}")  # fmt: skip
    mean, deviation = _STATISTICS[channels]
    return {
        "_class_name": "AutoencoderKLWan", "base_dim": base, "z_dim": channels,
        "dim_mult": [dim // base for dim in dims], "num_res_blocks": 2, "attn_scales": [],
        "temperal_downsample": list(times), "dropout": 0.0, "latents_mean": list(mean), "latents_std": list(deviation),
        "scale_factor_temporal": 2 ** sum(times), "scale_factor_spatial": 2 ** (stages - 1) * patch, **more,
    }  # fmt: skip
