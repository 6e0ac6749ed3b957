"""Tests the page, the JSON and the ingredient that `nemo-vfm plan` writes for a small recipe."""

import argparse
import itertools
import json
import re
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import yaml

from nemo_vfm.cli.main import main
from nemo_vfm.cli.planning import plan_formats, plan_page
from nemo_vfm.cli.planning.plan_request import PlannedSample, PlanRequest, parse_request, sample_of
from nemo_vfm.cli.verbs import plan
from nemo_vfm.cli.verbs.plan import with_cluster
from nemo_vfm.core.errors import UserError
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.perf.planner import LayoutChoice, Planner, PlanResult
from tests.support.recipe_folder import ROOT

SMALL = str(ROOT / "recipes/diffusion/train_small.yaml")
SAMPLE = ("--latents", "4,8,8")


@pytest.fixture
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")


def test_a_plan_is_written_and_a_recipe_that_takes_it_checks(kitchen, capsys, wide):
    words = ["plan", "--gpus", "4", *SAMPLE, "--write", "conf/parallel/mine.yaml", SMALL, "parallel={context: 4}"]
    assert kitchen.main(*words) == 0
    shown = capsys.readouterr()
    assert "The recipe's own layout (context 4 ring)" in shown.out and "Recommended" in shown.out
    assert "Predicted, not measured" in shown.out and "by the command line" in shown.out
    recommended = shown.out.partition("\nRecommended\n")[2].strip().partition(":")[0]
    assert any(re.match(rf" 1  {re.escape(recommended)}  ", line) for line in shown.out.splitlines())
    text = (kitchen.folder / "conf/parallel/mine.yaml").read_text()
    assert text.startswith("# ") and "_target_: nemo_vfm.parallel.plan.plan.ParallelPlan\n" in text
    assert kitchen.main("check", SMALL, "parallel=mine", "data.shards=x", "--gpus", "4") == 0
    said = capsys.readouterr().out
    assert "idle" not in said and "would not start" not in said and "cannot be divided" not in said
    (command,) = [line.strip() for line in shown.out.splitlines() if line.strip().startswith("nemo-vfm run")]
    assert "parallel={" in command
    assert kitchen.main(*words) == 2  # nothing is ever overwritten
    assert "mine.yaml" in capsys.readouterr().err


def test_json_has_what_a_launcher_asks(kitchen, capsys):
    assert kitchen.main("plan", SMALL, "--gpus", "16", "--network", "dgx_a100", "--gpu", "a100", *SAMPLE, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["nodes"], found["gpus_per_node"], found["gpus"]) == (2, 8, 16)
    best = found["ranked"][0]
    seconds = sum(best["seconds"].values())
    assert best["fits"] and best["step_s"] == pytest.approx(seconds)
    assert best["memory_bytes"]["total"] < found["gpu"]["usable_bytes"]
    assert best["days"] == pytest.approx(seconds * found["steps"] / 86_400)
    assert best["gpu_hours"] == pytest.approx(best["days"] * 24 * 16)
    assert found["checkpoint_bytes"] > 12 * found["model"]["parameters"] and found["checkpoints_kept"] >= 1
    assert "causal attention counted whole" in found["mfu"] and found["own"] is None
    assert {group["about"] for group in found["refused"]} >= {"tensor", "pipeline"}


@pytest.mark.parametrize(("words", "machine"), [
    (("cluster=dgx_h100", "nodes=2"), (16, "h100", "dgx_h100")),
    (("cluster=dgx_a100", "gpus=4"), (4, "a100", "dgx_a100")),
    (("cluster=dgx_gb200", "nodes=3"), (12, "gb200", "gb200_nvl72")),
    (("cluster=dgx_h200", "nodes=1", "cluster.gpus_per_node=4", "~cluster.node_check"), (4, "h200", "dgx_h100")),
    (("cluster=cpu_slurm", "cluster.gpu=a100", "cluster.gpus_per_node=2", "nodes=3"), (6, "a100", "dgx_h100")),
    (("cluster=dgx_a100", "nodes=2", "--gpus=3", "--gpu=h200", "--network=pcie_box"), (3, "h200", "pcie_box")),
    (("gpus=5",), (5, "h100", "dgx_h100")),
])  # fmt: skip
def test_a_cluster_is_named_as_when_submitting_and_says_what_options_leave_open(words, machine):
    parser = argparse.ArgumentParser()
    plan.add_arguments(parser)
    found = with_cluster(parser.parse_args(["r", "seed=3", *words]))
    assert (found.gpus, found.gpu, found.network) == machine and found.overrides == ["seed=3"]


@pytest.mark.parametrize(("words", "said"), [
    ((), "for how many GPUs"), (("cluster=dgx_h100",), "for how many GPUs"), (("nodes=2",), "for how many GPUs"),
    (("cluster=dgx_h10", "nodes=2"), "did you mean dgx_h100"), (("gpus=many",), "whole number"),
    (("cluster=dgx_h100", "nodes=2", "gpus=3"), "two sizes"), (("cluster=cpu_slurm", "nodes=2"), "names no GPUs"),
    (("cluster=local", "gpus=2"), "names no GPUs"),
])  # fmt: skip
def test_a_cluster_that_does_not_say_the_machine_is_refused_with_what_to_give(words, said, kitchen, capsys):
    assert kitchen.main("plan", SMALL, *SAMPLE, *words) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_cluster_and_the_options_that_say_the_same_give_one_plan(kitchen, capsys):
    options = ("--gpus", "16", "--gpu", "a100", "--network", "dgx_a100")
    pages = []
    for words in (("cluster=dgx_a100", "nodes=2"), options):
        assert kitchen.main("plan", SMALL, *SAMPLE, "--json", *words) == 0
        pages.append(capsys.readouterr().out)
    assert pages[0] == pages[1]


@pytest.mark.parametrize(("words", "said"), [
    (("--gpu", "h10"), "did you mean h100"), (("--network", "dgx_h10"), "did you mean dgx_h100"),
    (("--gpus", "0", *SAMPLE), "at least one GPU"), ((), "give their latents' frames, rows and columns"),
    (("--latents", "4x8x8"), "such as 32,96,96"), (("--phase", "one", *SAMPLE), "has no phases"),
])  # fmt: skip
def test_a_question_that_cannot_be_answered_is_told_what_is_missing(words, said, kitchen, capsys):
    gpus = () if "--gpus" in words else ("--gpus", "2")
    assert kitchen.main("plan", SMALL, *gpus, *words) == 2
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("sizes", [(), ("--latents", "4,4,4")])
def test_a_model_without_blocks_is_never_asked_for_videos_and_plan_says_what_each_gpu_keeps(sizes, kitchen, capsys):
    recipe = str(ROOT / "recipes/recommendation/dlrm_teacher.yaml")
    assert kitchen.main("plan", recipe, "--gpus", "4", *sizes) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith("DLRM declares no blocks") and "tables 4.2 MiB" in said and "videos" not in said
    assert kitchen.main("check", recipe, "--gpus", "4", *sizes) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "tables 4.2 MiB" in said and "DLRM declares no blocks" in said and "videos" not in said


LARGE = ["model.width=2048", "model.depth=20", "model.heads=16", "data.batch_size=8"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpus", "given"), [(1, ["data.batch_size=2"]), (2, ["parallel.replicate=2"]), (4, ["parallel.replicate=4"])]
)
def test_a_remedy_that_is_applied_makes_the_plan_say_that_it_fits(gpus, given, kitchen, capsys, monkeypatch):
    """Every line of the page, as a command line takes it."""
    lines: list[tuple[list[str], LayoutChoice]] = []
    drawn = plan_page.words
    monkeypatch.setattr(plan_page, "words", lambda asked, one: lines.append((drawn(asked, one), one.choice)) or [])
    words = ["plan", SMALL, "--gpus", str(gpus), "--gpu", "l4", *SAMPLE, *LARGE, *given]
    kitchen.main(*words)
    assert lines and "What would make it fit\n" in capsys.readouterr().out
    monkeypatch.setattr(
        Planner, "answer", lambda self, gpus: PlanResult(gpus, (), (), None)
    )  # own layout alone matters
    for changes, choice in lines:
        kitchen.main(*words, *changes, "--json")
        own = json.loads(capsys.readouterr().out)["own"]
        assert own["fits"] and own["memory_bytes"]["total"] == choice.memory.total
        assert own["step_s"] == choice.time.total


@pytest.mark.slow
def test_where_nothing_fits_the_number_of_gpus_is_told_that_would_do(kitchen, capsys, wide):
    given = ["--gpus", "1", "--gpu", "gb200", *SAMPLE, *LARGE, "model.width=8192", "model.depth=40"]
    assert kitchen.main("plan", SMALL, *given) == 2
    shown = " ".join(capsys.readouterr().out.split())
    assert "Nothing would make it fit on one GPU" in shown and "What would make it fit" not in shown
    (more,) = re.findall(r"it fits on (\d+) GPUs", shown)
    assert kitchen.main("plan", SMALL, "--gpus", more, *given[2:]) == 0


NARROW = ["model.width=64", "model.depth=2", "model.heads=4", "model.groups=2", "model.mlp_hidden=96"]


def asked(*changes: str, **options: object) -> PlanRequest:
    """What a narrow language model asks of the planner."""
    usual = {"gpus": 8, "phase": None, "gpu": "h100", "network": "dgx_h100", "latents": None, "tokens": None,
             "conf": [], "overlay": [], "trust": [], "allow_host": []}  # fmt: skip
    given = {**usual, **options, "recipe": "llm/nemotron4_1b", "overrides": [*NARROW, *changes]}
    return parse_request(argparse.Namespace(**given))


def test_a_phase_is_planned_with_its_own_layout_batch_and_steps():
    """Without a name, the longest of those for so many GPUs, or of all."""
    phase, plan = "_target_: nemo_vfm.train.phases.Phase", "_target_: nemo_vfm.parallel.plan.plan.ParallelPlan"
    phases = {"a": "duration: 20 steps", "b": f"duration: 30 steps, batch_size: 16, parallel: {{{plan}, shard: 2}}",
              "c": f"duration: 40 steps, parallel: {{{plan}, replicate: 2}}"}  # fmt: skip
    words = ", ".join(f"{name}: {{{phase}, {text}}}" for name, text in phases.items())
    found = {}
    for gpus, name in ((8, None), (2, None), (5, None), (2, "b"), (2, "a")):
        one = asked("loop.duration=null", f"loop.phases={{{words}}}", gpus=gpus, phase=name)
        found[gpus, name] = (one.phase, one.where, str(one.own), one.question.subject.batch, one.steps)
        assert one.written == (ParallelPlan() if one.phase == "a" else one.own), "changes are laid over this"
    a, b = ("a", "loop.phases.a.parallel", "shard 8", 256, 20), ("b", "loop.phases.b.parallel", "shard 2", 16, 30)
    c = ("c", "loop.phases.c.parallel", "replicate 2", 256, 40)
    assert found == {(8, None): a, (2, None): c, (5, None): c, (2, "b"): b, (2, "a"): a}


def test_each_setting_of_a_recipe_that_costs_time_or_memory_is_planned_with():
    plain = asked()
    parameters, about = plain.question.work.parameters, partial(pytest.approx, rel=1e-6)
    assert (plain.steps, plain.kept, plain.recompute) == (-(-100_000_000_000 // (256 * 4096)), 3, True)
    assert plain.checkpoint_bytes == about(12 * parameters), "weights and two moments in fp32"
    averaged = asked("callbacks.ema={_target_: nemo_vfm.train.ema.EMA}")
    assert averaged.question.average and averaged.checkpoint_bytes == about(16 * parameters)
    assert asked("optimizer={_target_: torch.optim.SGD, lr: 1.0}").checkpoint_bytes == about(4 * parameters)
    assert asked("engine.offload_optimizer=true").question.offload and not plain.question.offload
    assert not asked("engine.recompute=none").recompute
    assert (asked("precision=fp32").question.arithmetic, plain.question.arithmetic) == ("fp32", "bf16")
    assert asked("precision=fp8").question.fp8 is not None
    assert [asked(f"loop.checkpoint.keep_last={last}", "loop.checkpoint.keep_best=2").kept for last in (1, "null")] == [
        3,
        None,
    ]
    half = asked("data.batch_size=128", tokens=2048)
    assert (half.question.subject.batch, half.question.subject.tokens) == (128, 2048)
    assert half.steps == -(-100_000_000_000 // (128 * 2048))
    machine = asked(gpu="a100", network="dgx_a100").question.machine
    assert (machine.gpu.name, machine.network) != (plain.question.machine.gpu.name, plain.question.machine.network)


class Encoder:
    """Says the shape of its texts, or that nobody knows it yet."""

    def __init__(self, shape: tuple[int, int] | None) -> None:
        self.shape = shape

    def text_shape(self) -> tuple[int, int]:
        if self.shape is None:
            raise UserError("its folder is given later")
        return self.shape


class Video(SimpleNamespace):
    """Stands for a video model: patches of 1 x 2 x 2 of four channels."""

    in_channels, patch = 4, (1, 2, 2)


def test_a_sample_is_as_large_as_the_first_who_knows_says(tmp_path):
    """The command line, then the largest bucket, then the recipe's comment; texts as wide as the model takes them."""
    recipe = tmp_path / "r.yaml"
    recipe.write_text("# It trains on latents of 8 x\n# 6 x 5.\n")
    shapes = {"small": (9, 16, 16), "large": (17, 32, 64), "long": (33, 16, 16)}
    sizes = {name: SimpleNamespace(num_frames=t, height=h, width=w) for name, (t, h, w) in shapes.items()}
    codec = SimpleNamespace(latent_shape=lambda t, h, w: (4, 1 + t // 8, h // 4, w // 4))

    def sized(
        model: Video, latents: str | None = None, buckets: object = None, encoder: object = None
    ) -> PlannedSample:
        data = SimpleNamespace(buckets=SimpleNamespace(buckets=sizes) if buckets else None)
        job = SimpleNamespace(data=data, task=SimpleNamespace(codec=codec, text_encoder=encoder))
        return sample_of(job, model, recipe, latents=latents, tokens=None)

    found = [sized(Video(), "3,4,7", "given"), sized(Video(), None, "given"), sized(Video())]
    assert [one.inputs["latents_BCTHW"] for one in found] == [(1, 4, 3, 4, 7), (1, 4, 3, 8, 16), (1, 4, 8, 6, 5)]
    assert [(one.tokens, one.frames) for one in found] == [(3 * 2 * 3, 3), (3 * 4 * 8, 3), (8 * 3 * 2, 8)]
    assert [one.source.split()[1] for one in found] == ["command", "largest", "recipe's"]
    encoders = (None, Encoder(None), Encoder((77, 768)))
    texts = [
        sized(model, encoder=one).inputs["text_BLD"] for one in encoders for model in (Video(), Video(text_dim=96))
    ]
    assert texts == [(1, 512, 1024), (1, 512, 96)] * 2 + [(1, 77, 768), (1, 77, 96)]
    recipe.write_text("# It trains.\n")
    with pytest.raises(UserError, match="does not define the size"):
        sized(Video())


def test_the_changes_that_are_advised_make_the_recipes_layout_the_one_that_was_planned():
    """Of what does not matter nothing is changed: a schedule without a pipeline, a scheme without a context."""
    layouts = [
        ParallelPlan(), ParallelPlan(shard=8, microbatches=2), ParallelPlan(tensor=2, sequence=True, replicate=4),
        ParallelPlan(pipeline=2, virtual=2, microbatches=4, schedule="zero_bubble"),
        ParallelPlan(pipeline=2, microbatches=4, schedule="1f1b"),
        ParallelPlan(context=2, attention="ulysses"), ParallelPlan(context=4, attention="ring_ulysses", ulysses=2),
    ]  # fmt: skip
    request = asked()
    for own, wanted in itertools.product(layouts, layouts):
        for recompute in (True, False):
            choice, there = SimpleNamespace(plan=wanted, recompute=recompute), replace(request, written=own)
            words = dict(word.split("=", 1) for word in plan_formats.overrides(choice, there))
            made = replace(own, **yaml.safe_load(words.pop("parallel", "{}")))
            assert words == ({} if recompute else {"engine.recompute": "none"})
            assert made.sizes == wanted.sizes and made.sequence == wanted.sequence
            assert made.microbatches == wanted.microbatches
            assert made.schedule == (wanted if wanted.pipeline > 1 else own).schedule
            assert made.attention == (wanted if wanted.context > 1 else own).attention
            assert wanted.context == 1 or made.ulysses == wanted.ulysses


def test_a_blend_is_planned_for_its_largest_batch(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["data.sources.films.data.path=x", "data.sources.stills.data.path=x"]
    blend = ["plan", str(ROOT / "recipes/diffusion/train_blend.yaml"), *given, "--gpus", "2", *SAMPLE]
    assert main(blend) == 0
    assert "16 samples a step" in " ".join(capsys.readouterr().out.split())
