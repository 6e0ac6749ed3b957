"""Tests that a Cosmos under NVIDIA's names is the network that diffusers has, and that other files are refused."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_vfm.config import read_values
from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.models.convert.foreign import ForeignTensors, opened_tensors
from nemo_vfm.models.convert.tensor_source import UnreadTensor
from nemo_vfm.models.convert.video.native_weights import NativeWeights, is_cosmos, native_maps, write_native
from nemo_vfm.models.convert.video.transformer_folder import load_video_model
from nemo_vfm.models.dit import DiT
from nemo_vfm.parallel.checkpoint.checkpoint_reader import fill
from nemo_vfm.train.warm_start import WarmStart
from tests.support.installed import skip_without
from tests.support.native_cosmos import native_state
from tests.support.recipe_folder import ROOT
from tests.support.video_peers import PEERS, called, inputs, made

skip_without("diffusers")

FAMILIES = [name for name in PEERS if name.startswith("cosmos")]
STRETCH = {"cosmos 1": (2, 1, 1), "cosmos 1 video": (2, 1, 1)}


@pytest.fixture
def opened(tmp_path: Path):
    """A state dict in, its network out; the file stays open until the test ends."""
    with ExitStack() as stack:

        def read(state: dict[str, Any], *, key: str | None = None, stretch: Any = (1, 3, 3)) -> NativeWeights:
            torch.save(state, tmp_path / "model.pt")
            given = stack.enter_context(opened_tensors(tmp_path / "model.pt"))
            assert given is not None and is_cosmos(given.tensors)
            return NativeWeights(tmp_path / "model.pt", given, key=key, stretch=stretch)

        yield read


def state(peer: str = "cosmos 2") -> dict[str, Any]:
    return native_state(made(PEERS[peer]).state_dict())


@pytest.mark.parametrize("peer", FAMILIES)
def test_a_native_file_is_the_network_that_diffusers_has(opened, tmp_path: Path, peer: str) -> None:
    theirs, given = made(PEERS[peer]), inputs(PEERS[peer])
    weights = opened(native_state(theirs.state_dict()), stretch=STRETCH.get(peer, (1, 3, 3)))
    model = DiT(**weights.arguments)
    fill(model.state_dict(), weights)
    with torch.no_grad():
        output = model(**given)
    assert (output - called(PEERS[peer], theirs, given)).abs().max() / output.std() <= 1e-5
    theirs.save_pretrained(tmp_path / "folder")
    same = load_video_model(tmp_path / "folder").state_dict()
    assert all(torch.equal(tensor, same[name]) for name, tensor in model.state_dict().items())


class Kept(dict[str, torch.Tensor]):
    """Keeps what is popped: diffusers 0.42.1 looks for the key of Cosmos 1 in a mapping that it has emptied before."""

    def pop(self, key: str) -> torch.Tensor:  # type: ignore[override]
        return self[key]


@pytest.mark.parametrize("peer", FAMILIES)
def test_diffusers_takes_what_is_written_for_its_own_network(opened, tmp_path: Path, peer: str) -> None:
    from diffusers.loaders import single_file_utils as theirs_own
    from safetensors.torch import load_file

    expected = dict(made(PEERS[peer]).state_dict())
    weights = opened(native_state(expected), stretch=STRETCH.get(peer, (1, 3, 3)))
    file = write_native(weights.model, dict(weights.items()), tmp_path / "out")
    written, kind = load_file(file), "cosmos-1.0" if peer.startswith("cosmos 1") else "cosmos-2.0"
    assert all(key in written for key in theirs_own.CHECKPOINT_KEY_NAMES[kind])
    for source in (written, native_state(expected)):
        back = theirs_own.convert_cosmos_transformer_checkpoint_to_diffusers(Kept(source))
        assert all(torch.equal(back.pop(name), tensor) for name, tensor in expected.items()) and not back
    half = write_native(weights.model, dict(weights.items()), tmp_path / "half", dtype=torch.bfloat16)
    assert {t.dtype for name, t in load_file(half).items() if "pos_embedder." not in name or "extra" in name} == {
        torch.bfloat16
    }
    with opened_tensors(file) as given:
        assert given is not None and given.format == "safetensors"
        again = NativeWeights(file, given, stretch=STRETCH.get(peer, (1, 3, 3)))
        assert all(torch.equal(again[name], weights[name]) for name in weights)


PUBLISHED = [f"cosmos{version}" for version in ("_7b", "_7b_video", "_14b", "_14b_video", "2_2b", "2_2b_image", "2_14b",
                                                "2_14b_image", "25_2b", "25_14b")]  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.slow
def test_every_published_network_is_known_by_its_shapes(name: str) -> None:
    told = {key: tuple(value) if isinstance(value, list) else value
            for key, value in read_values((ROOT / f"conf/model/{name}.yaml").read_text(), name).items()
            if key != "_target_"}  # fmt: skip
    with torch.device("meta"):
        model = DiT(**told)  # type: ignore[arg-type]
    maps = native_maps(model, "1" if model.learned_positions is not None else "2", "net.")
    shapes = {there: tuple(part.shape) for own, found in maps.items()
              for there, part in zip(found.names, found.split(model.get_parameter(own)), strict=True)}  # fmt: skip
    tensors = {name: UnreadTensor("BF16", shape, pytest.fail) for name, shape in shapes.items()}  # nothing is read
    weights = NativeWeights(Path("model.pt"), ForeignTensors("torch", tensors, ()))
    assert {key: weights.arguments[key] for key in told} == told


def test_what_is_not_part_of_the_network_is_named_and_left_out(opened) -> None:
    left = opened(state()).unused_names()
    assert "net.blocks.0.self_attn.q_norm._extra_state" in left and "net.accum_iteration" in left
    assert "net.blocks.0.cross_attn.attn_op._extra_state" in left and "net.pos_embedder.dim_spatial_range" in left
    assert opened(state("cosmos 1"), stretch=(2, 1, 1)).unused_names() == [
        "logvar.0.freqs", "logvar.0.phases", "logvar.1.weight", "net.pos_embedder.seq"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "nest", [lambda s: s, lambda s: {"model": s, "iteration": 3, "optimizer": {"a": torch.ones(3)}}]
)
def test_the_averaged_network_is_taken_unless_another_is_asked_for(opened, nest: Callable[[Any], Any]) -> None:
    raw, averaged = made(PEERS["cosmos 2"]).state_dict(), made(PEERS["cosmos 2"], seed=5).state_dict()
    both = nest(native_state(raw) | native_state(averaged, "net_ema."))
    name = "cross_attention.out.weight"
    for key, expected in ((None, averaged), ("net_ema", averaged), ("net", raw)):
        weights = opened(both, key=key)
        assert torch.equal(weights[f"blocks.1.{name}"], expected["transformer_blocks.1.attn2.to_out.0.weight"])
        other = "net." if expected is averaged else "net_ema."
        assert any(f".{left}".endswith(f".{other}final_layer.linear.weight") for left in weights.unused_names())
    with pytest.raises(UserError, match=r"holds the networks .*net, .*net_ema; say with --key"):
        opened(both, key="ema")


def without(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda s: s.pop(f"net.{name}")


def having(name: str, tensor: torch.Tensor) -> Callable[[dict[str, Any]], Any]:
    return lambda s: s.update({f"net.{name}": tensor})


FAULTS = [
    (without("blocks.1.mlp.layer2.weight"), "has no net.blocks.1.mlp.layer2.weight, which a Cosmos"),
    (without("final_layer.linear.weight"), "final_layer.linear.weight is missing; a Cosmos has it"),
    (without("x_embedder.proj.1.weight"), "x_embedder.proj.1.weight is missing"),
    (having("blocks.1.mlp.layer3.weight", torch.ones(3)), "does not imply: net.blocks.1.mlp.layer3.weight"),
    (having("view_embeddings.weight", torch.ones(3)), "does not imply: net.view_embeddings.weight"),
    (having("blocks.1.self_attn.q_proj.lora_A.default.weight", torch.ones(3)), "does not imply: .*lora_A"),
    (having("blocks.1.self_attn.q_proj.weight", torch.ones(48, 47)), r"has shape \(48, 47\), and .* \(48, 48\)"),
    (having("blocks.1.self_attn.q_norm.weight", torch.ones(24, dtype=torch.int8)), "of the kind I8"),
    (having("blocks.1.self_attn.q_norm.weight", torch.ones(24).to(torch.float8_e4m3fn)), "of the kind F8_E4M3"),
    (having("blocks.0.self_attn.q_norm.weight", torch.ones(23)), "in heads of 23 of 48"),
    (having("blocks.0.self_attn.q_norm.weight", torch.ones(0)), r"is \(0,\); a Cosmos has it, with 1 dimensions"),
    (having("blocks.3.self_attn.q_proj.weight", torch.ones(3)), "not numbered from 0 without gaps"),
    (having("x_embedder.proj.1.weight", torch.ones(48, 40)), "takes 40 numbers of a patch and gives 4 channels"),
    (having("x_embedder.proj.1.weight", torch.ones(48, 23)), "23 channels of the input are not those of patches"),
    (having("logvar.0.other", torch.ones(3)), None),
]


@pytest.mark.parametrize(("change", "said"), FAULTS, ids=[str(said)[:40] for _, said in FAULTS])
def test_a_file_that_is_no_whole_cosmos_is_refused_in_a_sentence(opened, change, said: str | None) -> None:
    given = state()
    change(given)
    if said is None:
        assert "net.logvar.0.other" in opened(given).unused_names()
        return
    with pytest.raises(DataError, match=said):
        opened(given)


def test_a_network_of_no_published_size_needs_the_stretch_of_its_positions(opened) -> None:
    with pytest.raises(UserError, match="no published Cosmos has width 48 and 2 blocks; give --rope-scale T,H,W"):
        opened(state(), stretch=None)
    assert opened(state(), stretch=(1, 2, 4)).model.rope.scale == (1, 2, 4)


def test_two_names_for_one_tensor_are_refused(opened) -> None:
    with pytest.raises(DataError, match=r"two things in the file are called 'net.final_layer.linear.weight'"):
        opened(state() | {"net": {"final_layer.linear.weight": torch.ones(16, 48)}})


def test_start_from_says_how_to_convert_what_it_does_not_read(tmp_path: Path, opened) -> None:
    weights = opened(state())
    file = write_native(weights.model, dict(weights.items()), tmp_path / "out")
    (tmp_path / "dcp").mkdir()
    (tmp_path / "dcp/.metadata").write_bytes(b"")
    what_is = {tmp_path / "model.pt": "a file of another program", file: "a Cosmos under the names of NVIDIA",
               tmp_path / "dcp": "a distributed checkpoint of torch"}  # fmt: skip
    for path, what in what_is.items():
        with pytest.raises(UserError, match=f"{what}.*`nemo-vfm convert {path} OUT`, then weights.start_from=OUT"):
            WarmStart(path=path).load_into(weights.model)
