"""Tests what `check --gpus` says of recipes, and that `plan` says the same."""

import argparse
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_vfm.cli.arguments import NETWORK
from nemo_vfm.cli.main import main
from nemo_vfm.cli.planning.gpu_check import plan_sentences
from nemo_vfm.cli.planning.layout_words import binary, gib
from nemo_vfm.config import build, compose
from nemo_vfm.core.types.job import HasNeeds
from nemo_vfm.parallel.plan.static_memory import state_of
from nemo_vfm.perf.planner import Planner, PlanResult
from nemo_vfm.train.job import Train
from nemo_vfm.workflow import Workflow
from tests.support.recipe_folder import ROOT, WIDE

XL = str(ROOT / "recipes/diffusion/dit_xl.yaml")
SMALL = str(ROOT / "recipes/diffusion/train_small.yaml")
ASKED = {"gpu": "h100", "network": NETWORK, "latents": None, "tokens": None, "conf": [], "trust": []}
#: Recipes whose own layout is of several GPUs: they name an ingredient for it. Two of each kind of model.
SPREAD = [path for path in sorted(ROOT.glob("recipes/**/*.yaml")) if "- {parallel: " in path.read_text()
          and path.stem in ("nemotron4_1b", "nemotron4_340b", "dit_7b_8k", "dit_28b_64k")]  # fmt: skip
assert len(SPREAD) == 4


def model() -> torch.nn.Module:
    """133 numbers, 3 of which do not learn, and a buffer."""
    built = torch.nn.Sequential(torch.nn.Linear(12, 10), torch.nn.BatchNorm1d(3))
    built[1].bias.requires_grad_(False)
    return built


def test_the_bytes_are_those_of_a_real_step():
    count, states = state_of(model, torch.optim.AdamW)
    real = model()
    optimizer = torch.optim.AdamW(real.parameters())
    for parameter in real.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    optimizer.step()
    kept = [value for state in optimizer.state.values() for value in state.values()]
    assert count == sum(parameter.numel() for parameter in real.parameters()) == 136
    assert states["optimizer"] == sum(tensor.numel() * tensor.element_size() for tensor in kept)
    assert states["gradients"] == 4 * 133
    assert states["weights"] == sum(t.numel() * t.element_size() for t in real.state_dict().values())


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (lambda parameters: torch.optim.SGD(parameters, lr=0.1), 0),
        (lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9), 4 * 133),
        (lambda parameters: torch.optim.AdamW(parameters, fused=True), 8 * 133 + 4 * 3),
        (lambda parameters: torch.optim.AdamW(parameters, amsgrad=True), 12 * 133 + 4 * 3),
    ],
)
def test_an_optimizer_keeps_what_it_keeps(optimizer, expected):
    assert state_of(model, optimizer)[1]["optimizer"] == expected


def test_no_memory_is_taken_and_no_weight_is_drawn():
    devices = []

    def huge() -> torch.nn.Module:
        built = torch.nn.Linear(1 << 20, 1 << 20, bias=False)
        devices.append(built.weight.device.type)
        return built

    count, states = state_of(huge, torch.optim.AdamW)
    assert devices == ["meta"] and count == 1 << 40 and states["weights"] == 1 << 42


def test_the_plan_of_a_recipe_is_told_before_its_data_are_given(kitchen, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert kitchen.main("check", "--gpus", "1", XL) == 0
    shown = capsys.readouterr().out
    assert "1 GPU: 882,538,752 parameters; on one device the fullest GPU needs" in shown
    assert "of the 73.6 GiB that one h100 has to fill: it fits" in shown
    assert "1 value for you to give" in shown and "idle" not in shown
    assert sorted(kitchen.folder.iterdir()) == []


def test_gpus_that_would_stand_idle_are_said_and_the_recipe_is_right_all_the_same(kitchen, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert kitchen.main("check", "--gpus", "3", SMALL, "data.shards=x") == 0
    shown = capsys.readouterr().out
    assert "2 of 3 GPUs would be idle" in shown and "cannot be divided" not in shown


def test_a_plan_is_held_against_the_gpus_and_the_batch(kitchen, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert kitchen.main("check", "--gpus", "3", SMALL, "data.shards=x", "parallel.shard=3") == 2
    shown = "".join(capsys.readouterr())
    assert "batch_size 8 cannot be divided among 3 data ranks" in shown and "6 or 9 would fit" in shown
    assert kitchen.main("check", "--gpus", "3", SMALL, "data.shards=x", "parallel.shard=4") == 0
    shown = capsys.readouterr().out
    assert "the plan is for 4 devices (shard 4), but there are 3" in shown and "cannot be divided" not in shown


def test_each_gpu_keeps_its_part_of_a_plan_and_a_model_that_it_cannot_cut_is_told(kitchen, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert kitchen.main("check", "--gpus", "8", XL, "data.shards=x", "parallel.shard=8", "~callbacks.ema") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        "needs 5.2 GiB at the last block's backward (weights 420.8 MiB, gradients 420.8 MiB, " in shown
        and "cuBLAS's workspaces 64.0 MiB)" in shown and "not start" not in shown
    )  # fmt: skip
    offload = "engine={_target_: nemo_vfm.parallel.engine.torch_engine.TorchEngine, offload_optimizer: true}"
    assert kitchen.main("check", "--gpus", "2", XL, "data.shards=x", "parallel.shard=2", offload) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "GB for each GPU are in host memory" in shown and "(weights" in shown and "optimizer 4" not in shown
    assert kitchen.main("check", "--gpus", "3", XL, "data.shards=x", "parallel.tensor=3") == 2
    assert "16 attention heads cannot be divided by 3" in " ".join("".join(capsys.readouterr()).split())


def test_a_buckets_own_batch_size_is_looked_at_too(kitchen, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    change = "data.buckets.buckets.square.batch_size=6"
    assert kitchen.main("check", XL, "data.shards=x", "parallel.shard=4", change) == 2
    shown = "".join(capsys.readouterr())
    assert "buckets.square.batch_size 6 cannot be divided among 4 data ranks" in shown and "4 or 8 would fit" in shown


def test_an_overlay_counts(kitchen, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert kitchen.main("check", "--gpus", "1", XL, "--overlay", "smoke") == 0
    assert " (weights 1.5 MiB" in " ".join(capsys.readouterr().out.split())


def test_each_step_of_a_workflow_has_its_plan():
    composed = compose(ROOT / "recipes/quickstart.yaml")
    job = build(composed)
    assert isinstance(job, Workflow) and isinstance(job.steps["train"], HasNeeds)
    said = plan_sentences(job, [], composed.path, argparse.Namespace(**ASKED, gpus=2))
    steps = [text.removeprefix("2 GPUs, step ").partition(":")[0] for text in said]
    assert steps == ["train", "train", "sample", "sample", "baseline", "baseline"]
    assert "each GPU that works keeps 41.3 MiB" in said[0] and "give their latents' frames, rows and col" in said[0]
    said = plan_sentences(job, [], composed.path, argparse.Namespace(**{**ASKED, "latents": "4,8,8"}, gpus=2))
    assert "on one device the fullest GPU needs" in said[0] and "it fits" in said[0]


def test_a_gpu_that_nobody_knows_is_compared_with_nothing(kitchen, capsys):
    assert kitchen.main("check", "--gpus", "1", "--gpu", "h10", XL, "data.shards=x") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "no GPU called 'h10' is known here" in shown and "it fits" not in shown and "h100?" in shown


def planned(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    main(["plan", *words, "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[] if path.stem == "nemotron4_1b" else [pytest.mark.slow])
        for path in SPREAD
    ],
)
def test_check_and_plan_say_one_number_and_one_verdict_of_every_recipe_on_several_gpus(path, capsys, monkeypatch):
    monkeypatch.setattr(
        Planner, "answer", lambda self, gpus: PlanResult(gpus, (), (), None)
    )  # own layout alone matters
    (gpus, *_) = re.findall(r"--gpus (\d+)", path.read_text())
    words = [str(path), "--gpus", gpus]
    found = planned(words, capsys)
    assert main(["check", *words]) == 0
    needs, room, verdict = re.findall(
        r"the fullest GPU needs ([\d.]+ [GM]iB) .* of the ([\d.]+) GiB that one h100 .*: it (fits|does not fit)",
        " ".join(capsys.readouterr().out.split()),
    )[0]
    own = found["own"]
    assert needs == binary(own["memory_bytes"]["total"]) and room == gib(found["gpu"]["usable_bytes"])
    assert (verdict == "fits") == own["fits"]


UMT5_XXL = {"model_type": "umt5", "d_model": 4096, "d_ff": 10240, "num_layers": 24, "num_heads": 64,
            "vocab_size": 256384, "feed_forward_proj": "gated-gelu", "is_encoder_decoder": True}  # fmt: skip
ADAPTER = ["world_model/lora", "model=wan21_t2v_14b", "data.path=x"]


def pipeline_without_weights(folder: Path) -> Path:
    """What stands beside Wan 2.1, by its sizes alone."""
    kind = pytest.importorskip("diffusers", reason="needs the extra diffusers").AutoencoderKLWan
    with torch.device("meta"):
        vae = dict(kind().config)
    parts = {"text_encoder": UMT5_XXL, "vae": {"_class_name": "AutoencoderKLWan", **vae},
             "transformer": {"_class_name": "WanTransformer3DModel"}}  # fmt: skip
    for part, config in parts.items():
        (folder / part).mkdir(parents=True)
        (folder / part / "config.json").write_text(json.dumps(config))
        (folder / part / "model.safetensors").touch()
    (folder / "model_index.json").write_text("{}")
    return folder


@pytest.mark.slow  # imports diffusers
def test_encoders_and_codecs_beside_the_model_count_where_they_stand_on_its_gpu(tmp_path, capsys):
    def told(*words: str) -> str:
        assert main(["check", *words, "--gpus", "1"]) == 0
        return " ".join(capsys.readouterr().out.split())

    base = f"base={pipeline_without_weights(tmp_path / 'base')}"
    found = planned([*ADAPTER, base, "--gpus", "1"], capsys)
    own = found["own"]["memory_bytes"]
    assert sorted(round(size / 2**30, 1) for size in found["beside_bytes"].values()) == [0.5, 10.6]
    assert own["beside"] == sum(found["beside_bytes"].values()) and not found["own"]["fits"]
    assert own["total"] - own["beside"] < found["gpu"]["usable_bytes"], "alone, the network would fit"
    shown = told(*ADAPTER, base)
    assert "encoders and codecs 11.1 GiB" in shown and "it does not fit" in shown
    assert f"needs {binary(own['total'])} " in shown, "check and plan say the same"

    shown = told(*ADAPTER, "base=later")
    assert "it fits, leaving out" in shown and "task.pipeline" in shown and "of unknown size: later" in shown
    sample = ["world_model/sample_pretrained", "model=wan21_t2v_14b", base]
    assert "(weights 53.2 GiB, encoders and codecs 11.1 GiB)" in told(*sample)
    assert "keeps 53.2 GiB (weights 53.2 GiB)" in told(*sample, "pipeline.offload=true"), "each takes its turn"


@pytest.mark.parametrize(("changes", "expected"), [
    ([], {"autoencoder", "text"}), (["data.buckets=wan_480p"], {"autoencoder", "text"}),
    (["data.buckets=null"], {"text"}), (["data.buckets=null", "task.text_dropout=0"], set()),
])  # fmt: skip
def test_of_cached_latents_only_what_is_still_used_is_held(changes, expected, tmp_path):
    base = pipeline_without_weights(tmp_path / "base")
    words = [f"base={base}", "model=wan21_t2v_14b", "data=shards", "data.shards=x", *changes]
    job = build(compose(ROOT / "recipes/world_model/lora.yaml", words))
    assert isinstance(job, Train)
    drawn, job.callbacks = job.held_beside(), {}
    assert {name.partition(" ")[0] for name in drawn.weights} == {"autoencoder", "text"}, "previews use both"
    assert {name.partition(" ")[0] for name in job.held_beside().weights} == expected


def test_a_value_that_decides_the_size_must_be_given_first(kitchen, capsys):
    assert kitchen.main("check", "--gpus", "2", SMALL, "model.width=???") == 0
    assert "it cannot be checked before you give" in capsys.readouterr().out


def test_nothing_is_planned_for_a_recipe_that_is_wrong(kitchen, capsys):
    kitchen.write("r.yaml", WIDE + "conut: 1\n")
    assert kitchen.main("check", "r.yaml", "--gpus", "2") == 2
    assert "GPUs" not in capsys.readouterr().out


def test_a_sampling_says_its_weights_by_device_and_what_would_not_start(capsys):
    def told(*words: str) -> str:
        assert main(["check", "diffusion/sample", "checkpoint=null", *words]) == 0
        return " ".join(capsys.readouterr().out.split())

    assert "2 GPUs: this recipe samples on one device, so 1 of 2 GPUs would be idle" in told("--gpus", "2")
    whole, shared = (told("--gpus", "2", *words) for words in (["parallel.replicate=2"], ["parallel.shard=2"]))
    found = [float(re.findall(r"keeps ([\d.]+) MiB \(weights", text)[0]) for text in (whole, shared)]
    assert found[1] == pytest.approx(found[0] / 2, rel=0.05)
    said = told("--gpus", "5", "parallel.tensor=5")
    assert "it would not start" in said and "cannot be divided by 5" in said
    base = ["check", "world_model/sample_pretrained", "base=nowhere", "--gpus", "2", "parallel.context=2"]
    assert main(base) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "2 GPUs: the model's size is unknown, because the folder that describes it cannot be read yet" in said
    assert "0 parameters" not in said
