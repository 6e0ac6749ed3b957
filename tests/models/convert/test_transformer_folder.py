"""Tests that folders of diffusers are read and written bit by bit as the same network, and that damage is refused."""

import inspect
import io
import json
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.models.convert.video import cosmos_family, wan_family
from nemo_vfm.models.convert.video.other_library import is_other_librarys, opened_folder
from nemo_vfm.models.convert.video.transformer_folder import (
    TransformerFolder,
    copy_pipeline,
    load_video_model,
    transformer_in,
    write_transformer,
)
from nemo_vfm.models.dit import DiT
from nemo_vfm.models.st_dit import STDiT
from nemo_vfm.train.warm_start import WarmStart
from tests.support.video_peers import PEERS, called, inputs, made

diffusers = pytest.importorskip("diffusers", reason="needs the extra diffusers")

FILE = "diffusion_pytorch_model.safetensors"
INDEX = f"{FILE}.index.json"


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The parts of pipelines that a conversion looks at: a Cosmos 2 in several files, a Wan in one."""
    folder = tmp_path_factory.mktemp("pipelines")
    for name, peer, size in (("cosmos", "cosmos 2", "40KB"), ("wan", "wan 2.1 image", "1GB")):
        made(PEERS[peer]).save_pretrained(folder / name / "transformer", max_shard_size=size)
        (folder / name / "scheduler").mkdir()
        (folder / name / "scheduler/scheduler_config.json").write_text('{"shift": 3.0}')
        parts = {"scheduler": ["diffusers", "S"], "transformer": ["diffusers", "T"], "safety_checker": [None, None]}
        (folder / name / "model_index.json").write_text(json.dumps({"_class_name": "P", **parts}))
    return folder


@pytest.fixture
def copied(pipelines: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pipelines, tmp_path / "copied"))


@pytest.mark.parametrize(("name", "peer"), [("cosmos", "cosmos 2"), ("wan", "wan 2.1 image")])
def test_a_pipelines_folder_gives_its_network_and_goes_out_bit_by_bit(
    pipelines: Path, tmp_path: Path, name: str, peer: str
):
    assert is_other_librarys(pipelines / name) and is_other_librarys(pipelines / name / "transformer")
    model, given = load_video_model(pipelines / name), inputs(PEERS[peer])
    with torch.no_grad():
        found = model(**given)
    theirs = made(PEERS[peer])
    assert (found - called(PEERS[peer], theirs, given)).abs().max() / found.std() < 1e-5
    write_transformer(model, dict(model.named_parameters()), tmp_path / "out", file_bytes=60_000)
    assert (tmp_path / "out" / INDEX).is_file()
    again = type(theirs).from_pretrained(tmp_path / "out")
    assert all(torch.equal(tensor, theirs.state_dict()[name]) for name, tensor in again.state_dict().items())
    assert len(again.state_dict()) == len(theirs.state_dict())
    config, own = (json.loads((folder / "config.json").read_text())
                   for folder in (pipelines / name / "transformer", tmp_path / "out"))  # fmt: skip
    ignored = {"_diffusers_version", "_name_or_path", "max_size", "img_context_num_tokens", "img_context_dim_out"}
    assert {k: v for k, v in config.items() if k not in ignored} == {k: v for k, v in own.items() if k not in ignored}


def test_tensors_are_read_one_by_one_and_in_their_own_dtype(pipelines: Path, tmp_path: Path):
    made(PEERS["wan 2.1 text"]).to(torch.bfloat16).save_pretrained(tmp_path / "half")
    with opened_folder(tmp_path / "half") as weights:
        assert {weights.dtype(name) for name in weights} == {torch.bfloat16}
        name = "blocks.0.self_attention.qkv.weight"
        assert weights[name].dtype == torch.bfloat16 and weights[name].nbytes == 2 * 48 * 144
        assert weights.sources()[name] == tuple(f"blocks.0.attn1.to_{x}.weight" for x in "qkv")
        assert weights.unused_names() == [] and "nothing" not in weights and len(weights) == len(dict(weights.items()))
    with torch.device("meta"), TransformerFolder(tmp_path / "half") as weights:
        model = weights.model
    assert write_transformer(model, load_video_model(tmp_path / "half").state_dict(), tmp_path / "wide",
                             dtype=torch.float32) is None  # fmt: skip
    assert {tensor.dtype for tensor in load_file(tmp_path / "wide" / FILE).values()} == {torch.float32}


def test_a_file_of_several_dtypes_holds_each_tensor_where_its_header_says(pipelines: Path, tmp_path: Path):
    model = load_video_model(pipelines / "wan")
    kinds = (torch.bfloat16, torch.float32, torch.float16, torch.float64)
    mixed = {name: tensor.to(kinds[place % 4]) for place, (name, tensor) in enumerate(model.state_dict().items())}
    write_transformer(model, mixed, tmp_path / "mixed")
    with TransformerFolder(tmp_path / "mixed") as weights:
        assert all(torch.equal(weights[name], tensor) for name, tensor in mixed.items())
        assert all(weights.dtype(name) == tensor.dtype for name, tensor in mixed.items())


def with_config(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text()) | changes
        (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v != "gone"}))

    return change


def with_weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        weights = load_file(folder / FILE)
        change(weights)
        save_file(weights, folder / FILE)

    return changed


WRONG_WAN = [
    (with_config(num_layers=10**4), "says num_layers: 10000, and its files hold 2"),
    (with_config(num_layers=10**5), "num_layers: 100000; it must be a whole number from 1 to 10,000"),
    (with_config(num_layers=1), "weights that config.json does not imply: blocks.1"),
    (with_config(ffn_dim=10**6), r"blocks.0.ffn.net.0.proj.weight has shape \(96, 48\), and .* \(1000000, 48\)"),
    (with_config(num_attention_heads=7, added_kv_proj_dim=168), "has shape"),
    (with_config(ffn_dim=True), "ffn_dim: true; it must be a whole number from 1"),
    (with_config(ffn_dim=10**30), "ffn_dim: 1000"),
    (with_config(qk_norm="rms_norm"), 'qk_norm: "rms_norm"; it must be "rms_norm_across_heads"'),
    (with_config(cross_attn_norm=False), "cross_attn_norm: false; it must be true"),
    (with_config(added_kv_proj_dim=None), "added_kv_proj_dim: null; it must be the model's width, 48"),
    (with_config(patch_size=[1, 2]), r"patch_size: \[1, 2\]; it must be 3 whole numbers"),
    (with_config(patch_size=[1, 2, float("nan")]), "patch_size"),
    (with_config(in_channels=3), "in_channels: 3; it must be at least out_channels, 4"),
    (with_config(freq_dim=31), "freq_dim: 31; it must be even"),
    (with_config(attention_head_dim=4, num_attention_heads=12), "impossible model|has shape"),
    (with_config(vace_layers=[0]), "has vace_layers, which is not known here"),
    (with_config(_class_name="FluxTransformer2DModel"), "of the class FluxTransformer2DModel; read are Cosmos"),
    (with_weights(lambda w: w.pop("proj_out.bias")), "has no proj_out.bias, which config.json implies"),
    (with_weights(lambda w: w.update(extra=torch.zeros(1))), "does not imply: extra"),
    (with_weights(lambda w: w.update({"proj_out.bias": torch.zeros(16, dtype=torch.int8)})), "of the kind I8"),
    (lambda folder: (folder / "config.json").write_text("[" * 10**5), "cannot be read"),
    (lambda folder: (folder / FILE).write_bytes((folder / FILE).read_bytes()[:-4]), "is damaged"),
    (lambda folder: (folder / FILE).write_bytes(b"\xff" * 64), "is damaged"),
    (lambda folder: (folder / FILE).rename(folder / "model.safetensors"), "has neither diffusion_pytorch_model"),
]


@pytest.mark.parametrize("family", [wan_family, cosmos_family], ids=["wan", "cosmos"])
def test_what_config_json_leaves_out_is_what_diffusers_takes(family: Any):
    signature = inspect.signature(getattr(diffusers, family.CLASS).__init__).parameters
    theirs = json.loads(json.dumps({name: one.default for name, one in signature.items() if name != "self"}))
    assert family.arguments_of({}) == family.arguments_of(theirs)


def test_a_wan_without_a_number_of_outputs_has_as_many_as_inputs():
    found = wan_family.arguments_of({"in_channels": 20, "out_channels": None})
    assert (found["in_channels"], found["condition_channels"]) == (20, 0)


@pytest.mark.parametrize(("change", "said"), WRONG_WAN, ids=[said[:40] for _, said in WRONG_WAN])
def test_a_folder_that_is_not_what_its_config_says_is_refused_in_a_sentence(
    copied: Path, change: Callable[[Path], object], said: str
):
    change(copied / "wan/transformer")
    with pytest.raises(DataError, match=said):
        TransformerFolder(copied / "wan/transformer")


@pytest.mark.parametrize(("changes", "said"), [
    ({"img_context_dim_in": 1152}, "img_context_dim_in: 1152; it must be null"),
    ({"controlnet_block_every_n": 7}, "controlnet_block_every_n: 7"),
    ({"extra_pos_embed_type": "sincos"}, "null or learnable"), ({"rope_scale": [1, 3, 0]}, "rope_scale"),
    ({"use_crossattn_projection": True}, "encoder_hidden_states_channels: 1024; it must be text_embed_dim, 16"),
    ({"mlp_ratio": -1}, "mlp_ratio: -1; it must be a number above zero"),
    ({"in_channels": 3}, "in_channels: 3; it must be at least out_channels, 4"),
])  # fmt: skip
def test_a_cosmos_that_is_another_is_refused_in_a_sentence(copied: Path, changes: dict[str, Any], said: str):
    with_config(**changes)(copied / "cosmos/transformer")
    with pytest.raises(DataError, match=said):
        TransformerFolder(copied / "cosmos")


def test_pickles_are_not_read_whatever_they_are_called(copied: Path):
    folder = copied / "wan/transformer"
    (folder / FILE).rename(folder / "diffusion_pytorch_model.bin")
    with pytest.raises(UserError, match=r"no weights as safetensors, only diffusion_pytorch_model.bin"):
        TransformerFolder(folder)


class Canary:
    """Leaves a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("write", [
    lambda canary: pickle.dumps(canary), lambda canary: zipped(canary), lambda canary: b"x" * 8 + pickle.dumps(canary),
], ids=["bare", "torch", "after 8 bytes"])  # fmt: skip
def test_a_pickle_that_is_called_safetensors_is_not_run(copied: Path, tmp_path: Path, write: Callable[[Any], bytes]):
    (copied / "wan/transformer" / FILE).write_bytes(write(Canary(tmp_path / "canary")))
    with pytest.raises(DataError, match="is damaged"):
        load_video_model(copied / "wan")
    assert not (tmp_path / "canary").exists()
    pickle.loads(pickle.dumps(Canary(tmp_path / "canary")))
    assert (tmp_path / "canary").exists()


def zipped(canary: Any) -> bytes:
    """As torch.save writes it."""
    file = io.BytesIO()
    torch.save({"state_dict": canary}, file)
    return file.getvalue()


def test_a_file_cut_anywhere_or_with_another_header_is_refused_or_is_the_same_network(copied: Path):
    """300 seeded faults, from a file of nothing to eight changed bytes."""
    expected, passed = load_video_model(copied / "wan").state_dict(), 0
    path, numbers = copied / "wan/transformer" / FILE, random.Random(5)
    whole = path.read_bytes()
    header = int.from_bytes(whole[:8], "little") + 8
    cuts = [0, 1, 7, 8, 9, header - 1, header, header + 1, len(whole) - 1]
    for cut in [*cuts, *(numbers.randrange(len(whole)) for _ in range(41))]:
        path.write_bytes(whole[:cut])
        with pytest.raises(DataError):
            load_video_model(copied / "wan")
    for _ in range(250):
        changed = bytearray(whole)
        for _ in range(numbers.choice((1, 1, 2, 8))):
            changed[numbers.randrange(header)] = numbers.randrange(256)
        path.write_bytes(changed)
        try:
            found = load_video_model(copied / "wan").state_dict()
        except DataError:
            continue
        # Nothing but the header's metadata, which is not read, may have changed.
        assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())
        passed += 1
    assert passed < 25


def test_start_from_takes_the_folder_and_refuses_another_function(pipelines: Path):
    folder = pipelines / "cosmos"
    with TransformerFolder(folder) as given:
        arguments = given.arguments
    model = DiT(**arguments)
    taken = WarmStart(path=folder).load_into(model)
    assert taken["not_taken"] == [] and taken["path"] == str(folder / "transformer")
    given = inputs(PEERS["cosmos 2"])
    with torch.no_grad():
        assert torch.equal(model(**given), load_video_model(folder)(**given))
    with pytest.raises(UserError, match=r"gelu is exact there and tanh here. .nemo-vfm convert"):
        WarmStart(path=folder).load_into(DiT(**arguments | {"gelu": "tanh"}))
    with pytest.raises(UserError, match="heads is 2 there and 4 here"):
        WarmStart(path=folder).load_into(DiT(**arguments | {"heads": 4}))
    with pytest.raises(UserError, match="is a Wan, but the model to be initialised has none"):
        WarmStart(path=pipelines / "wan").load_into(model)
    with pytest.raises(UserError, match="no averaged weights"):
        WarmStart(path=folder, weights="ema").load_into(model)


def test_a_network_that_diffusers_has_not_is_not_written(tmp_path: Path, pipelines: Path):
    with pytest.raises(DataError, match="no network like this STDiT"):
        write_transformer(STDiT(in_channels=4, text_dim=8, width=48, depth=1, heads=2), {}, tmp_path / "out")
    with pytest.raises(DataError, match="is not a Cosmos, by its gelu, "):
        write_transformer(DiT(in_channels=4, text_dim=8, width=48, depth=1, heads=2), {}, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    model = load_video_model(pipelines / "wan")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine").write_text("")
    with pytest.raises(UserError, match="is not empty"):
        write_transformer(model, model.state_dict(), tmp_path / "full")


def test_the_other_parts_of_a_pipeline_are_copied_and_no_link_is_followed(copied: Path, tmp_path: Path, capsys):
    (copied / "wan/vae").symlink_to(tmp_path)
    index = json.loads((copied / "wan/model_index.json").read_text()) | {"vae": ["diffusers", "V"]}
    (copied / "wan/model_index.json").write_text(json.dumps(index))
    assert copy_pipeline(copied / "wan", tmp_path / "out") == ["scheduler"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["model_index.json", "scheduler"]
    assert "names vae, which" in capsys.readouterr().err
    with pytest.raises(UserError, match="is not a pipeline's folder"):
        copy_pipeline(copied / "wan/scheduler", tmp_path / "other")


def test_weights_of_a_variant_are_refused_with_what_to_do(tmp_path: Path):
    made(PEERS["wan 2.1 text"]).save_pretrained(tmp_path, variant="fp16", max_shard_size="60KB")
    with pytest.raises(DataError, match="it has the variant fp16: load and save it without `variant`, or rename"):
        TransformerFolder(tmp_path)


def test_what_is_no_video_model_is_none(tmp_path: Path):
    assert transformer_in(tmp_path) is None
    for text in ("[]", "{", '{"_class_name": 3}', "[" * 10**5):
        (tmp_path / "config.json").write_text(text)
        assert transformer_in(tmp_path) is None
