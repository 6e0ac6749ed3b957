"""Tests that `convert` reads diffusers' folders of video models and writes whole pipelines that diffusers loads."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from nemo_vfm.cli.conversion import convert_child
from nemo_vfm.cli.conversion.adapter import merged_weights
from nemo_vfm.config import build, compose
from nemo_vfm.core.storage.files import sha256_file
from nemo_vfm.models.adapters.adapter_file import write_adapter
from nemo_vfm.models.adapters.load_adapters import AdapterFile, load_adapters
from nemo_vfm.models.adapters.low_rank_adapter import TRAINED, AdaptedModel, AdapterTarget, LowRankAdapter
from nemo_vfm.models.adapters.matrices import extract_adapter
from nemo_vfm.models.convert.video.transformer_folder import load_video_model
from nemo_vfm.parallel.checkpoint import checkpoint
from nemo_vfm.train.warm_start import WarmStart

diffusers = pytest.importorskip("diffusers", reason="needs the extra diffusers")
from tests.support.dcp_files import made as distributed  # noqa: E402
from tests.support.native_cosmos import native_state  # noqa: E402
from tests.support.nemo_cosmos import nemo_state  # noqa: E402
from tests.support.video_peers import PEERS, called, inputs, made  # noqa: E402

RECIPE = """
_target_: nemo_vfm.train.job.Train
data: {_target_: nemo_vfm.data.sources.shard_data.ShardData, shards: shards, batch_size: 1}
task:
  _target_: nemo_vfm.diffusion.denoising_task.Denoise
  objective: {_target_: nemo_vfm.diffusion.objective.FlowMatching}
  codec: {_target_: nemo_vfm.models.codec.WaveletCodec}
  text_encoder: {_target_: nemo_vfm.models.text_encoder.HashedNgrams, dim: 16}
optimizer: {_target_: torch.optim.AdamW, lr: 1e-3}
loop:
  duration: 2 steps
  checkpoint: {_target_: nemo_vfm.train.callbacks.checkpointing.SaveCheckpoints, every_steps: 2}
"""


def pipeline(folder: Path, name: str) -> Path:
    """A pipeline's folder, as far as a conversion looks at it."""
    made(PEERS[name]).save_pretrained(folder / "transformer")
    diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0).save_pretrained(folder / "scheduler")
    parts = {"scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"], "transformer": ["diffusers", "T"]}
    (folder / "model_index.json").write_text(json.dumps({"_class_name": "WanPipeline", **parts}))
    return folder


@pytest.mark.parametrize("name", ["cosmos 2.5", "wan 2.1 image"])
def test_a_pipeline_comes_in_and_goes_out_whole_and_bit_by_bit(kitchen, capfd, name: str) -> None:
    pipeline(kitchen.folder / "theirs", name)
    assert kitchen.main("convert", "theirs", "ours") == 0
    first, second, third = capfd.readouterr().out.splitlines()
    theirs = made(PEERS[name])
    count = sum(parameter.numel() for parameter in theirs.parameters())
    assert first == f"a {type(theirs).__name__}: {count:,} parameters, conf/model/converted.yaml"
    assert second.startswith(f"{len(theirs.state_dict())} tensors taken: ") and third == "ours"
    assert second.endswith("; 0 left, 0 missing")
    told = json.loads((kitchen.folder / "ours/convert.json").read_text())
    joined = told["tensors"]["joined"]["blocks.1.self_attention.qkv.weight"]
    assert [place.split(".")[-2] for place in joined] == ["to_q", "to_k", "to_v"]
    assert told["source"]["format"] == "diffusers" and told["tensors"]["left"] == told["tensors"]["missing"] == []

    recipe = kitchen.write("recipe.yaml", f"defaults: [{{model: converted}}]\n{RECIPE}")
    model = build(compose(recipe, [], [kitchen.folder / "ours/conf"])).model()
    assert WarmStart(path=kitchen.folder / "ours").load_into(model)["not_taken"] == []
    given = inputs(PEERS[name])
    with torch.no_grad():
        difference = (model(**given) - called(PEERS[name], theirs, given)).abs().max()
    assert difference / called(PEERS[name], theirs, given).std() < 1e-5

    assert kitchen.main("convert", "ours", "back", "--to", "diffusers", "--pipeline", "theirs") == 0
    assert "copied scheduler from theirs" in capfd.readouterr().out
    again = type(theirs).from_pretrained(kitchen.folder / "back", subfolder="transformer")
    expected = theirs.state_dict()
    assert {own: torch.equal(tensor, expected[own]) for own, tensor in again.state_dict().items()} == dict.fromkeys(
        expected, True
    )
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler.from_pretrained(kitchen.folder / "back/scheduler")
    assert scheduler.config.shift == 3.0 and (kitchen.folder / "back/model_index.json").is_file()


def test_of_two_networks_the_one_that_is_named_is_replaced_and_none_is_guessed(kitchen, capfd) -> None:
    pipeline(kitchen.folder / "theirs", "wan 2.1 text")
    path = kitchen.folder / "theirs/model_index.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"transformer_2": ["diffusers", "T"]}))
    low = made(PEERS["wan 2.1 text"], seed=7)
    low.save_pretrained(kitchen.folder / "theirs/transformer_2")
    assert kitchen.main("convert", "theirs/transformer_2", "ours") == 0
    words = ("convert", "ours", "back", "--to", "diffusers", "--pipeline", "theirs")
    assert kitchen.main(*words) == 2 and "say which is replaced" in capfd.readouterr().err
    assert kitchen.main(*words, "--replaces", "transformer_2") == 0
    for part, expected in (("transformer", made(PEERS["wan 2.1 text"])), ("transformer_2", low)):
        again = type(low).from_pretrained(kitchen.folder / "back", subfolder=part).state_dict()
        assert all(torch.equal(tensor, again[name]) for name, tensor in expected.state_dict().items())


@pytest.mark.slow
def test_a_cosmos_of_nvidia_comes_in_as_a_model_to_start_from_and_goes_out_bit_by_bit(kitchen, capfd) -> None:
    theirs = native_state(made(PEERS["cosmos 2.5"]).state_dict())
    torch.save(theirs, kitchen.folder / "model.pt")
    assert kitchen.main("convert", "model.pt", "ours", "--rope-scale", "1,3,3") == 0
    first, second, third, _ = capfd.readouterr().out.splitlines()
    assert first == "net, a Cosmos: 89,984 parameters, conf/model/converted.yaml"
    assert second == "49 tensors taken: 39 renamed, 10 joined into 4; 11 left, 0 missing"
    assert third.startswith("left: net.accum_iteration, net.accum_video_sample_counter, net.blocks.0.cross_attn")
    told = json.loads((kitchen.folder / "ours/convert.json").read_text())
    assert told["source"]["sha256"] == sha256_file(kitchen.folder / "model.pt")
    assert len(told["tensors"]["left"]) == 11 and told["tensors"]["missing"] == []

    recipe = kitchen.write("recipe.yaml", f"defaults: [{{model: converted}}]\n{RECIPE}")
    model = build(compose(recipe, [], [kitchen.folder / "ours/conf"])).model()
    assert WarmStart(path=kitchen.folder / "ours").load_into(model)["not_taken"] == []
    assert kitchen.main("convert", "ours", "back", "--to", "native") == 0
    back = load_file(kitchen.folder / "back/model.safetensors")
    weights = [name for name in back if "pos_embedder" not in name]
    assert len(weights) == 49 and all(torch.equal(back[name], theirs[name]) for name in weights)


def test_a_checkpoint_of_nemo_comes_in_as_a_model_to_start_from(kitchen) -> None:
    theirs = made(PEERS["cosmos 1"])
    state = nemo_state(theirs) | {"optimizer.state.exp_avg.module.affline_norm.weight": torch.ones(48)}
    source = distributed(state, (2,), {"module.decoder.layers.mlp.linear_fc1._extra_state/shard_0_2": b"x"})
    source.write(kitchen.folder / "step/weights")
    (kitchen.folder / "ours").mkdir()
    said = convert_child.convert(  # what the process that the command starts does
        kitchen.folder / "step", kitchen.folder / "ours", key=None, leave_out=False, stretch=(2, 1, 1)
    )
    first, second, left = said.splitlines()
    count = sum(parameter.numel() for parameter in theirs.parameters())
    assert first == f"module, a Cosmos: {count:,} parameters, conf/model/converted.yaml"
    assert second == "44 tensors taken: 44 renamed, 0 joined into 0; 6 left, 0 missing"
    assert left.startswith("left: module.decoder.layers.mlp.linear_fc1._extra_state/shard_0_2, module.logvar.0.freqs")
    told = json.loads((kitchen.folder / "ours/convert.json").read_text())["tensors"]
    assert told["renamed"]["module.decoder.layers.1.mlp.linear_fc2.weight"] == "blocks.1.mlp.down.weight"
    recipe = kitchen.write("recipe.yaml", f"defaults: [{{model: converted}}]\n{RECIPE}")
    model = build(compose(recipe, [], [kitchen.folder / "ours/conf"])).model()
    assert WarmStart(path=kitchen.folder / "ours").load_into(model)["not_taken"] == []


def test_a_run_goes_out_with_its_averaged_weights_in_the_dtype_that_is_asked_for(kitchen, capfd) -> None:
    made(PEERS["wan 2.1 text"]).save_pretrained(kitchen.folder / "theirs")
    assert kitchen.main("convert", "theirs", "ours") == 0
    model = (kitchen.folder / "ours/conf/model/converted.yaml").read_text()
    run = kitchen.folder / "run"
    (run / "checkpoints").mkdir(parents=True)
    indented = "".join(f"  {line}\n" for line in model.splitlines()[1:])
    (run / "recipe.yaml").write_text(f"model:\n{indented}{RECIPE.lstrip()}")
    made_model = build(compose(run / "recipe.yaml")).model()
    half = {weight: tensor / 2 for weight, tensor in made_model.state_dict().items()}
    checkpoint.save(run / "checkpoints", 2, {"ema": dict(made_model.state_dict()), "model": half}, {})
    capfd.readouterr()
    assert kitchen.main("convert", "run", "out", "--to", "diffusers", "--dtype", "bf16") == 0
    assert "the ema weights of step 2" in capfd.readouterr().out
    weights = diffusers.WanTransformer3DModel.from_pretrained(kitchen.folder / "out", torch_dtype=torch.bfloat16)
    theirs = weights.state_dict()["blocks.0.ffn.net.2.weight"]
    ours = made_model.state_dict()["blocks.0.mlp.down.weight"]
    assert theirs.dtype == torch.bfloat16 and torch.equal(theirs, ours.bfloat16())
    assert kitchen.main("convert", "run", "last", "--to", "diffusers", "--key", "model") == 0
    assert "the model weights of step 2" in capfd.readouterr().out
    last = diffusers.WanTransformer3DModel.from_pretrained(kitchen.folder / "last").state_dict()
    assert torch.equal(last["blocks.0.ffn.net.2.weight"], ours / 2)


@pytest.mark.parametrize(("words", "said"), [
    (("theirs", "out", "--to", "diffusers"), "is a diffusers folder already; leave --to out to convert it to ours"),
    (("theirs", "out", "--pipeline", "theirs"), "--pipeline needs --to diffusers"),
    (("theirs", "out", "--to", "diffusers", "--max-tokens", "3"), "--max-tokens needs --to transformers"),
    (("ours", "out", "--to", "diffusers", "--replaces", "transformer"), "a network of a pipeline; give --pipeline DIR"),
    (("theirs", "out", "--dtype", "bf16"), "--dtype needs --to transformers or --to diffusers"),
    (("ours", "out", "--to", "diffusers", "--pipeline", "ours"), "ours is not a pipeline's folder"),
    (("gpt", "out", "--to", "diffusers"), "is a nemo_vfm.models.gpt.GPT; only "),
])  # fmt: skip
def test_what_cannot_be_meant_is_a_sentence_and_leaves_nothing(kitchen, capfd, words, said) -> None:
    made(PEERS["cosmos 1"]).save_pretrained(kitchen.folder / "theirs")
    assert kitchen.main("convert", "theirs", "ours") == 0
    kitchen.write("gpt/conf/model/converted.yaml", "_target_: nemo_vfm.models.gpt.GPT\n")
    assert kitchen.main("convert", *words) == 2
    assert said in " ".join(capfd.readouterr().err.split()) and not (kitchen.folder / "out").exists()


def test_an_adapter_file_goes_out_in_every_style_with_the_alpha_that_is_typed(kitchen) -> None:
    made(PEERS["wan 2.1 text"]).save_pretrained(kitchen.folder / "theirs")
    targets = {"all": AdapterTarget(modules="blocks.*.self_attention.*", rank=4, alpha=4.0)}
    model = AdaptedModel(lambda: load_video_model(kitchen.folder / "theirs"), LowRankAdapter(targets=targets))()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1 * parameter.requires_grad)
    matrices = extract_adapter(model, TRAINED, our_names=False)
    file = write_adapter(kitchen.folder / "comfyui", "comfyui", matrices, model)
    save_file({name: one for name, one in load_file(file).items() if not name.endswith(".alpha")}, file)
    plain, adapted = load_video_model(kitchen.folder / "theirs").state_dict(), merged_weights(model)
    for style in ("ours", "peft", "diffusers", "comfyui"):
        words = ("--adapter", style, "--base", "theirs", "--alpha", "12")
        assert kitchen.main("convert", str(file), f"as/{style}", *words) == 0
        again = load_video_model(kitchen.folder / "theirs")
        load_adapters(again, {"style": AdapterFile(path=kitchen.folder / "as" / style)})
        for name, weight in merged_weights(again).items():
            assert torch.allclose(weight - plain[name], 3 * (adapted[name] - plain[name]), atol=1e-6), (style, name)


@pytest.mark.slow
def test_a_wan_of_comfyui_comes_in_as_a_model_to_start_from_and_goes_out_bit_by_bit(kitchen, capfd) -> None:
    peer = PEERS["wan 2.1 text"]
    theirs = made(replace(peer, config=peer.config | {"num_attention_heads": 1, "attention_head_dim": 128}))
    theirs.save_pretrained(kitchen.folder / "theirs")
    assert kitchen.main("convert", "theirs", "ours") == 0
    assert kitchen.main("convert", "ours", "comfy", "--to", "comfyui") == 0
    assert kitchen.main("convert", "comfy/model.safetensors", "again") == 0
    told = capfd.readouterr().out
    assert "under ComfyUI's names in model.safetensors" in told and "a Wan under its own names" in told
    one, other = (load_file(kitchen.folder / name / "model.safetensors") for name in ("ours", "again"))
    assert {name: torch.equal(tensor, other[name]) for name, tensor in one.items()} == dict.fromkeys(other, True)
    recipes = [
        (kitchen.folder / name / "conf/model/converted.yaml").read_text().splitlines()[1:] for name in ("ours", "again")
    ]
    assert recipes[0] == recipes[1]
