"""Tests that a DiT as Cosmos 1, 2 and 2.5, and a Wan, have the parameters and outputs of diffusers, packed too."""

import json
from dataclasses import replace

import pytest
import torch
import yaml
from torch.utils.flop_counter import FlopCounterMode

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.latent_rows import pack_latents, unpack_latents
from nemo_vfm.core.types.task import ModelInputs
from nemo_vfm.models.blocks.layers import RMSNormAcrossHeads
from nemo_vfm.models.convert.video import cosmos_family, wan_family
from nemo_vfm.models.dit import DiT
from nemo_vfm.models.wan import Wan
from nemo_vfm.parallel.plan.sharding_spec import match_modules
from tests.support.repository import ROOT
from tests.support.video_peers import FRAMES, HEIGHT, PEERS, WIDTH, called, inputs, made

diffusers = pytest.importorskip("diffusers", reason="needs the extra diffusers")

COSMOS_7B, COSMOS_14B = {"num_layers": 28}, {"num_layers": 36, "num_attention_heads": 40}
COSMOS_2B = {"num_layers": 28, "num_attention_heads": 16}
FIRST_14B, VIDEO = {**COSMOS_14B, "rope_scale": [2.0, 2.0, 2.0]}, {"in_channels": 17}
SECOND = {"extra_pos_embed_type": None}
IMAGE, MIDDLE = {**SECOND, "rope_scale": [1.0, 4.0, 4.0]}, {**SECOND, **VIDEO, "rope_scale": [1.0, 3.0, 3.0]}
QWEN = {**MIDDLE, "use_crossattn_projection": True, "crossattn_proj_in_channels": 100352}
WAN_14B, IN_CHANNELS = {}, {"in_channels": 36}
#: Sizes as they were published for diffusers, by the name of ours.
PUBLISHED = {
    "cosmos_7b": COSMOS_7B, "cosmos_14b": FIRST_14B, "cosmos_7b_video": COSMOS_7B | VIDEO,
    "cosmos_14b_video": FIRST_14B | VIDEO, "cosmos2_2b_image": COSMOS_2B | IMAGE,
    "cosmos2_14b_image": COSMOS_14B | IMAGE, "cosmos2_2b": COSMOS_2B | MIDDLE,
    "cosmos2_14b": COSMOS_14B | MIDDLE | {"rope_scale": [20 / 24, 2.0, 2.0]}, "cosmos25_2b": COSMOS_2B | QWEN,
    "cosmos25_14b": COSMOS_14B | QWEN,
    "wan21_t2v_1_3b": {"num_attention_heads": 12, "num_layers": 30, "ffn_dim": 8960}, "wan21_t2v_14b": WAN_14B,
    "wan21_i2v_14b": IN_CHANNELS | {"image_dim": 1280, "added_kv_proj_dim": 5120}, "wan22_i2v_14b": IN_CHANNELS,
    "wan22_ti2v_5b": {"num_attention_heads": 24, "num_layers": 30, "ffn_dim": 14336, "in_channels": 48,
                      "out_channels": 48},
}  # fmt: skip


def family_of(name):
    return (wan_family, Wan) if name.startswith("wan") else (cosmos_family, DiT)


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.slow
def test_a_preset_is_the_published_model_tensor_by_tensor(name):
    family, kind = family_of(name)
    preset = yaml.safe_load((ROOT / f"conf/model/{name}.yaml").read_text())
    assert preset.pop("_target_") == f"{kind.__module__}.{kind.__qualname__}"
    with torch.device("meta"):
        ours, theirs = kind(**preset), getattr(diffusers, family.CLASS)(**PUBLISHED[name])
    maps = family.tensors_of(ours)
    found = {
        target: part.shape
        for own, parameter in ours.named_parameters()
        for target, part in zip(maps[own].names, maps[own].split(parameter), strict=True)
    }
    assert found == {own: tensor.shape for own, tensor in theirs.state_dict().items()}
    wanted = json.loads(json.dumps(dict(theirs.config)))
    said = family.config_of(ours)
    assert {key: wanted.get(key) for key in said if key != "_class_name"} == {
        key: value for key, value in said.items() if key != "_class_name"
    }
    again = family.arguments_of(said)
    assert {key: again[key] for key in preset if key not in ("patch", "rope_scale", "learned_positions")} == {
        key: value for key, value in preset.items() if key not in ("patch", "rope_scale", "learned_positions")
    }


def ours_of(name, theirs):
    """The same model here, with the weights of theirs, all of which are taken and come back as they were."""
    family, kind = family_of(name)
    weights, config = theirs.state_dict(), json.loads(json.dumps(dict(theirs.config)))
    config.pop("_use_default_values", None)
    model, taken = kind(**family.arguments_of(config)), []
    maps = family.tensors_of(model)
    with torch.no_grad():
        for own, parameter in model.named_parameters():
            parameter.copy_(maps[own].join([weights[target] for target in maps[own].names]))
            taken += maps[own].names
            for target, part in zip(maps[own].names, maps[own].split(parameter), strict=True):
                assert torch.equal(part, weights[target]) and part.shape == weights[target].shape
    assert sorted(taken) == sorted(weights)
    return model


@pytest.mark.parametrize("name", PEERS)
def test_a_network_gives_the_numbers_of_diffusers(name):
    peer = PEERS[name]
    theirs, given = made(peer), inputs(peer)
    expected = called(peer, theirs, given)
    ours = ours_of(name, theirs)
    with torch.no_grad():
        found = ours(**given)
    assert (found - expected).abs().max() / expected.std() < 1e-5
    # A measure that sees: a noise level that is off by a hundredth is another output.
    with torch.no_grad():
        other = ours(**given | {"noise_B": given["noise_B"] + 0.01})
    assert (other - expected).abs().max() / expected.std() > 1e-3


@pytest.mark.parametrize("name", ["cosmos 1", "wan 2.1 text"])
def test_a_patch_of_several_frames_comes_out_in_the_order_of_diffusers(name):
    peer = replace(PEERS[name], config=PEERS[name].config | {"patch_size": (FRAMES, 2, 2)})
    theirs, given = made(peer), inputs(peer)
    expected = called(peer, theirs, given)
    with torch.no_grad():
        assert (ours_of(name, theirs)(**given) - expected).abs().max() / expected.std() < 1e-5


def test_a_norm_over_heads_bounds_what_is_next_to_nothing():
    x_BSHD = torch.full((1, 1, 2, 4), 1e-3)
    expected = 1e-3 / (1e-6 + 1e-6) ** 0.5
    torch.testing.assert_close(RMSNormAcrossHeads(dim=8)(x_BSHD), torch.full_like(x_BSHD, expected))


@pytest.mark.parametrize(("name", "changes"), [
    ("cosmos 1", {"gelu": "tanh"}), ("cosmos 1", {"noise_scale": 1000.0}), ("cosmos 1", {"text_as_given": False}),
    ("cosmos 2", {"qk_norm_eps": 1e-6}), ("cosmos 2", {"base_fps": None}), ("cosmos 2", {"padding_mask": False}),
], ids=str)  # fmt: skip
def test_each_setting_of_cosmos_is_needed_and_none_is_exported_without_it(name, changes):
    peer = PEERS[name]
    theirs, given = made(peer), inputs(peer)
    given["text_mask_BL"][1, 3:] = False
    given["text_BLD"][1, 3:] = 0  # as its pipelines pad a text
    expected = called(peer, theirs, given)
    ours = ours_of(name, theirs)
    other = DiT(**cosmos_family.arguments_of(cosmos_family.config_of(ours)) | changes)
    fitting = {key: value for key, value in ours.state_dict().items() if value.shape == other.state_dict()[key].shape}
    other.load_state_dict(fitting, strict=False)
    with torch.no_grad():
        right, wrong = ((model(**given) - expected).abs().max() / expected.std() for model in (ours, other))
    assert right < 1e-5 and wrong > 3 * right
    if "padding_mask" not in changes:  # which a config.json can say
        with pytest.raises(DataError, match=next(iter(changes))):
            cosmos_family.config_of(other)


@pytest.mark.parametrize("name", ["cosmos 1 video", "cosmos 2", "cosmos 2.5", "wan 2.1 image", "wan 2.2 ti2v"])
def test_packed_samples_with_given_frames_get_what_they_get_alone(name):
    peer = PEERS[name]
    model, given = ours_of(name, made(peer)), inputs(peer)
    packed = {key: value for key, value in given.items() if not key.endswith("BCTHW")}
    packed["latents_XC"] = pack_latents(given["latents_BCTHW"])
    if peer.condition:
        packed["condition_XC"] = pack_latents(given["condition_BCTHW"])
    packed["noise_B"] = packed["noise_B"].flatten()
    sizes = [(FRAMES, HEIGHT, WIDTH)] * 2
    with torch.no_grad():
        found = torch.cat(unpack_latents(model(**packed, sizes_N3=torch.tensor(sizes)), sizes))
        torch.testing.assert_close(found, model(**given), rtol=1e-4, atol=1e-5)


def test_without_a_condition_its_channels_are_zeros():
    peer = PEERS["wan 2.1 image"]
    model, given = ours_of("wan 2.1 image", made(peer)), inputs(peer)
    zeros = torch.zeros_like(given.pop("condition_BCTHW"))
    with torch.no_grad():
        assert torch.equal(model(**given), model(**given, condition_BCTHW=zeros))


@pytest.mark.parametrize(("name", "changes", "said"), [
    ("cosmos 2", {"noise_B": torch.rand(2, 2)}, r"\(2, 2\); expected one per sample, \(2,\), or .* \(2, 3\)"),
    ("cosmos 2", {"condition_BCTHW": torch.zeros(2, 2, 3, 4, 6)}, "condition_channels is 1"),
    ("cosmos 2", {"image_BLD": torch.zeros(2, 7, 20)}, "does not attend to images"),
    ("wan 2.1 text", {"image_BLD": torch.zeros(2, 7, 20)}, "does not attend to images"),
    ("wan 2.1 image", {"image_BLD": torch.zeros(2, 7, 21)}, r"\(7, 21\); expected \(7, 20\)"),
    ("wan 2.1 first and last", {"image_BLD": torch.zeros(2, 7, 20)}, r"\(7, 20\); expected \(14, 20\)"),
])  # fmt: skip
def test_inputs_of_other_shapes_are_refused_with_both(name, changes, said):
    peer = PEERS[name]
    with pytest.raises(ValueError, match=said):
        ours_of(name, made(peer))(**inputs(peer) | changes)


@pytest.mark.parametrize("name", ["cosmos 2.5", "wan 2.1 image", "wan 2.2 ti2v"])
def test_declared_parts_are_there_and_the_declared_cost_is_the_counted_one(name):
    peer = PEERS[name]
    model, given = ours_of(name, made(peer)), inputs(peer)
    names = [module for module, _ in model.named_modules()]
    assert all(match_modules(pattern, names) for pattern in model.plan().patterns())
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(**given)
    linear = sum(op.flops for op in model.ops(ModelInputs(given, {}, torch.ones(2)).shapes()) if op.kind == "linear")
    assert linear == pytest.approx(counter.get_total_flops(), rel=1e-9), "torch counts no flash attention of a CPU"
