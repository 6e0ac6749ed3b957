"""Tests that a Cosmos 1 in a checkpoint of NeMo is the network that diffusers has, and that others are refused."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch import Tensor, nn

from nemo_vfm.config import read_values
from nemo_vfm.core.errors import DataError
from nemo_vfm.models.convert.dcp_folder import DcpFolder
from nemo_vfm.models.convert.foreign import ForeignTensors, opened_tensors
from nemo_vfm.models.convert.tensor_source import UnreadTensor
from nemo_vfm.models.convert.video.native_weights import NativeWeights, is_cosmos
from nemo_vfm.models.convert.video.transformer_folder import load_video_model
from nemo_vfm.models.dit import DiT
from nemo_vfm.parallel.checkpoint.checkpoint_reader import fill
from tests.support.dcp_files import made as checkpoint
from tests.support.installed import skip_without
from tests.support.nemo_cosmos import nemo_state
from tests.support.recipe_folder import ROOT
from tests.support.video_peers import COSMOS, PEERS, Peer, called, inputs, made

skip_without("diffusers")
STRETCH = (2, 1, 1)
L = "decoder.layers."
LAYERS = f"module.{L}"


@pytest.fixture
def opened(tmp_path: Path):
    """The folder of a checkpoint, or tensors to be saved in one, in; its network out, open until the test ends."""
    with ExitStack() as stack:

        def read(state: dict[str, Tensor] | Path, **given: Any) -> NativeWeights:
            folder = state if isinstance(state, Path) else checkpoint(state, (2,)).write(tmp_path / "ckpt/weights")
            found = stack.enter_context(opened_tensors(folder))
            assert found is not None and is_cosmos(found.tensors)
            return NativeWeights(folder, found, **({"stretch": STRETCH} | given))

        yield read


def built(weights: NativeWeights) -> DiT:
    model = DiT(**weights.arguments)
    fill(model.state_dict(), weights)
    return model


def deviation(peer: Peer, theirs: nn.Module, model: DiT) -> float:
    given = inputs(peer)
    with torch.no_grad():
        output = model(**given)
    return float((output - called(peer, theirs, given)).abs().max() / output.std())


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("peer", ["cosmos 1", "cosmos 1 video"])
@pytest.mark.parametrize("stacked", [True, False], ids=["stacked", "numbered"])
def test_a_checkpoint_of_nemo_is_the_network_that_diffusers_has(
    opened, tmp_path: Path, peer: str, stacked: bool
) -> None:
    theirs = made(PEERS[peer])
    dcp.save(nemo_state(theirs, stacked=stacked), checkpoint_id=tmp_path / "weights", no_dist=True)
    model = built(opened(tmp_path))
    assert deviation(PEERS[peer], theirs, model) <= 1e-5
    theirs.save_pretrained(tmp_path / "folder")
    same = load_video_model(tmp_path / "folder").state_dict()
    assert all(torch.equal(tensor, same[name]) for name, tensor in model.state_dict().items())
    assert set(same) == set(model.state_dict())


def test_the_same_tensors_in_a_file_of_safetensors_are_the_same_network(opened, tmp_path: Path) -> None:
    state = nemo_state(made(PEERS["cosmos 1"]))
    save_file(state, tmp_path / "model.safetensors")
    weights, other = opened(state), opened(tmp_path / "model.safetensors")
    assert all(torch.equal(weights[name], other[name]) for name in other) and len(weights) == len(other)


def mixing() -> tuple[Peer, nn.Module]:
    """A network whose three parts of a block share the first matrix of their modulation, of rank 24, and whose output
    has rank 8: what NeMo's training makes of one of rank 8.
    """
    peer = Peer(COSMOS | {"adaln_lora_dim": 24}, fps=12)
    theirs = made(peer)
    with torch.no_grad():
        for block in theirs.transformer_blocks:  # type: ignore[union-attr]
            for norm in (block.norm2, block.norm3):
                norm.linear_1.weight.copy_(block.norm1.linear_1.weight)
        theirs.norm_out.linear_1.weight[8:] = 0  # type: ignore[union-attr,index,operator]
        theirs.norm_out.linear_2.weight[:, 8:] = 0  # type: ignore[union-attr,index,operator]
    return peer, theirs


def test_a_modulation_that_training_has_mixed_gets_three_times_the_rank(opened) -> None:
    peer, theirs = mixing()
    state = nemo_state(theirs)
    for name, span in (("1", (slice(8),)), ("2", (slice(None), slice(8)))):
        name = f"module.final_layer.adaLN_modulation.{name}.weight"
        state[name] = state[name][span].clone()
    weights = opened(state)
    assert weights.arguments["modulation_rank"] == 24 and "has the rank 24 instead of 8" in weights.note
    assert deviation(peer, theirs, built(weights)) <= 1e-5


def test_what_became_of_each_tensor_is_said_by_its_name(opened) -> None:
    state = nemo_state(made(PEERS["cosmos 1"]))
    trained = {f"optimizer.state.exp_avg.{name}": tensor for name, tensor in state.items() if "seq" not in name}
    weights = opened(state | trained)
    sources = weights.sources()
    assert sources["blocks.1.self_attention.qkv.weight"] == (f"{LAYERS}1.full_self_attention.linear_qkv.weight",)
    assert sources["blocks.1.modulation.up.2.weight"] == (f"{LAYERS}1.adaLN.adaLN_modulation.2.weight[288:432, 16:24]",)
    beside = ["module.logvar.0.freqs", "module.logvar.0.phases", "module.logvar.1.weight", "module.pos_embedder.seq"]
    assert weights.unused_names() == sorted([*beside, *trained])
    assert weights.num_values() == sum(theirs.numel() for theirs in made(PEERS["cosmos 1"]).parameters())


def test_only_the_chunks_of_one_layer_are_read_for_it(opened, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = opened(nemo_state(made(PEERS["cosmos 1"])))
    chunks: list[tuple[int, ...]] = []
    read = DcpFolder._chunk
    monkeypatch.setattr(DcpFolder, "_chunk", lambda s, n, t, c: chunks.append(c.offsets) or read(s, n, t, c))
    weights["blocks.1.mlp.up.weight"]
    assert chunks == [(1, 0, 0)]


def without(name: str) -> Callable[[dict[str, Tensor]], Any]:
    return lambda state: state.pop(f"module.{name}")


def having(name: str, tensor: Tensor) -> Callable[[dict[str, Tensor]], Any]:
    return lambda state: state.update({f"module.{name}": tensor})


FAULTS = [
    (without(f"{L}mlp.linear_fc2.weight"), "has no module.decoder.layers.0.mlp.linear_fc2.weight"),
    (without(f"{L}mlp.linear_fc1.weight"), "decoder.layers.0.mlp.linear_fc1.weight is missing; a Cosmos"),
    (without(f"{L}adaLN.adaLN_modulation.1.weight"), "0.adaLN.adaLN_modulation.1.weight is missing"),
    (without("affline_norm.weight"), "has no module.affline_norm.weight"),
    (having(f"{L}mlp.linear_fc1.bias", torch.ones(2, 192)), "not imply: module.decoder.layers.0.mlp.linear_fc1.bias"),
    (having(f"{L}input_layernorm.weight", torch.ones(2, 48)), "not imply: module.decoder.layers.0.input_layernorm"),
    (having("additional_timestamp_embedder.fps.1.linear_1.weight", torch.ones(4)), "not imply: module.additional_time"),
    (having("action_embedder.fc1.weight", torch.ones(4, 4)), "not imply: module.action_embedder"),
    (having(f"{L}cross_attention.linear_kv.weight", torch.ones(2, 95, 16)), r"shape \(95, 16\), and .* \(96, 16\)"),
    (having(f"{L}mlp.linear_fc2.weight", torch.ones(1, 48, 192)), "has no module.decoder.layers.1.mlp.linear_fc2"),
    (having(f"{L}mlp.linear_fc2.weight", torch.ones(3, 48, 192)), "layers.2.adaLN.adaLN_modulation.1.* is missing"),
    (having(f"{L}0.mlp.linear_fc2.weight", torch.ones(48, 192)), "alone and in the stack .*linear_fc2"),
    (having(f"{L}mlp.linear_fc2.weight", torch.tensor(1.0)), r"has shape \(\), and a stack of 1 to 10,000 layers"),
    (having(f"{L}adaLN.adaLN_modulation.2.weight", torch.ones(2, 432, 16)), r"\(432, 16\); .*\(432, 24\) was expected"),
    (having(f"{L}adaLN.adaLN_modulation.2.weight", torch.ones(2, 288, 24)), r"\(288, 24\); .*\(432, 24\) was expected"),
    (having("x_embedder.proj.1.weight", torch.ones(48, 48)), "takes 48 numbers of a patch and gives 4 channels"),
]


@pytest.mark.parametrize(("change", "said"), FAULTS, ids=[said[:40] for _, said in FAULTS])
def test_a_checkpoint_that_is_no_whole_cosmos_is_refused_in_a_sentence(opened, change, said: str) -> None:
    state = nemo_state(made(PEERS["cosmos 1"]))
    change(state)
    with pytest.raises(DataError, match=said):
        opened(state)


def test_another_network_of_nemo_is_not_taken_for_a_cosmos() -> None:
    assert not is_cosmos(["module.x_embedder.weight", f"{LAYERS}full_self_attention.linear_qkv.weight",
                          f"{LAYERS}adaLN.adaLN_modulation.1.weight", "module.final_layer_linear.weight"])  # fmt: skip
    assert not is_cosmos([f"optimizer.state.exp_avg.{LAYERS}adaLN.adaLN_modulation.2.weight"])


@pytest.mark.parametrize(("name", "width", "depth", "inputs"), [("cosmos_7b", 4096, 28, 17),
                                                                ("cosmos_14b_video", 5120, 36, 18)])  # fmt: skip
def test_a_published_network_is_known_by_the_shapes_that_nemo_gives_it(
    monkeypatch: pytest.MonkeyPatch, name: str, width: int, depth: int, inputs: int
) -> None:
    monkeypatch.setattr("nemo_vfm.models.convert.video.native_weights.is_mixed", lambda *_: False)  # reads 28 matrices
    shapes = {
        "decoder.layers.full_self_attention.linear_qkv": (3 * width, width),
        "decoder.layers.full_self_attention.linear_proj": (width, width),
        "decoder.layers.full_self_attention.q_layernorm": (128,),
        "decoder.layers.full_self_attention.k_layernorm": (128,),
        "decoder.layers.cross_attention.linear_q": (width, width),
        "decoder.layers.cross_attention.linear_kv": (2 * width, 1024),
        "decoder.layers.cross_attention.linear_proj": (width, width),
        "decoder.layers.cross_attention.q_layernorm": (128,), "decoder.layers.cross_attention.k_layernorm": (128,),
        "decoder.layers.mlp.linear_fc1": (4 * width, width), "decoder.layers.mlp.linear_fc2": (width, 4 * width),
        "decoder.layers.adaLN.adaLN_modulation.1": (768, width),
        "decoder.layers.adaLN.adaLN_modulation.2": (9 * width, 768),
        "x_embedder.proj.1": (width, 4 * inputs), "affline_norm": (width,), "t_embedder.1.linear_1": (width, width),
        "t_embedder.1.linear_2": (3 * width, width), "final_layer.linear": (64, width),
        "final_layer.adaLN_modulation.1": (256, width), "final_layer.adaLN_modulation.2": (2 * width, 256),
    }  # fmt: skip
    tensors = {f"module.{key}.weight": (depth, *shape) if key.startswith("decoder") else shape
               for key, shape in shapes.items()}  # fmt: skip
    for axis, most in (("t", 128), ("h", 120), ("w", 120)):
        tensors[f"module.extra_pos_embedder.pos_emb_{axis}"] = (most, width)
    stored = {name: UnreadTensor("BF16", shape, pytest.fail) for name, shape in tensors.items()}  # nothing is read
    weights = NativeWeights(Path("nemo"), ForeignTensors("distcp", stored, ()))
    told = {key: tuple(value) if isinstance(value, list) else value
            for key, value in read_values((ROOT / f"conf/model/{name}.yaml").read_text(), name).items()
            if key != "_target_"}  # fmt: skip
    assert {key: weights.arguments[key] for key in told} == told
