"""Tests that numbers which a constructor refuses, or that do not fit, are refused at their key before a run."""

import argparse
import json
import shutil
import sys
from pathlib import Path

import pytest
import torch

from nemo_vfm.cli.main import main
from nemo_vfm.cli.verbs import run
from nemo_vfm.core.errors import UserError
from nemo_vfm.data.shards.shard_files import ShardWriter
from nemo_vfm.models.convert.video.random_pipeline import write_random_pipeline
from nemo_vfm.parallel.checkpoint import checkpoint
from nemo_vfm.parallel.plan import static_memory
from nemo_vfm.runtime.sweep import _check_all
from nemo_vfm.runtime.sweep_points import sweep_plan
from tests.support import preloaded
from tests.support.repository import ROOT

QUICK, SMALL, FOLDER = "quickstart", "diffusion/train_small", "diffusion/train_folder"
STORIES, CODEC, CLIPS = "llm/stories", "diffusion/train_autoencoder", "curation/clips"
BLEND = "diffusion/train_blend"
BIG, SPACE_TIME, TEXTS, DRAW = "diffusion/dit_7b_8k", "diffusion/st_dit_7b_35k", "llm/llama3_8b", "diffusion/sample"
#: Recipe, the key that is wrong, its value, and a part of the sentence.
BROKEN = [
    (QUICK, "steps.train.model.heads", "7", "width 192 is not divisible by heads 7"),
    (QUICK, "steps.train.model.heads", "0", "at least 1, got 0"),
    (QUICK, "steps.train.model.width", "1000000000000", "at most 1,048,576, got 1,000,000,000,000"),
    (QUICK, "steps.train.model.depth", "100000", "at most 1,000"),
    (QUICK, "steps.train.model.mlp_ratio", "1e12", "at most"),
    (QUICK, "steps.train.model.patch", "[1, 0, 1]", "three sizes of 1 to 256"),
    (QUICK, "steps.train.model.rope_theta", "-1", "at least 1"),
    (QUICK, "steps.train.optimizer.lr", "-1", "Invalid learning rate: -1"),
    (QUICK, "steps.train.optimizer.betas", "[0.9, 1.5]", "Invalid beta parameter"),
    (QUICK, "steps.train.optimizer.weight_decay", "-0.5", "Invalid weight_decay"),
    (QUICK, "steps.train.schedule.final_fraction", "2", "in [0, 1]"),
    (QUICK, "steps.train.callbacks.ema.decay", "1", "decay must be in [0, 1)"),
    (QUICK, "steps.sample.pipeline.sampler.steps", "1000000", "at most 10,000"),
    (QUICK, "steps.encode.codec.levels_space", "-1", "must not be negative"),
    (QUICK, "steps.encode.text_encoder.dim", "1000000000000", "at most 1,048,576"),
    (QUICK, "steps.encode.text_encoder.max_tokens", "1000000000", "at most 131,072"),
    (QUICK, "steps.encode.text_encoder.ngram", "1000000000", "at most 1,000"),
    (QUICK, "steps.curate.max_frames", "-5", "at least 1"),
    (QUICK, "steps.curate.side_px", "1000000", "at most 16,384"),
    (QUICK, "steps.encode.buckets.buckets.square.num_frames", "1000000", "at most 100,000"),
    (QUICK, "steps.train.callbacks.preview.num_frames", "8", "8 frames do not fit a codec"),
    (QUICK, "steps.train.callbacks.preview.height_px", "50", "height 50 does not fit"),
    (QUICK, "steps.train.model.in_channels", "16", "latents have 384 channels, but the model was built for 16"),
    (QUICK, "steps.train.model.text_dim", "64", "tokens are 128 wide, but the model was built for 64"),
    (QUICK, "steps.train.model.patch", "[1, 4, 1]",
     "makes latents of 6, which the network cannot cut into patches of 4; use"),
    (QUICK, "steps.train.model.learned_positions", "[1, 6, 6]", "are (2, 6, 6) tokens"),
    (SMALL, "model.modulation_rank", "0", "modulation_rank must be at least 1"),
    (FOLDER, "data.buckets.buckets.square.width", "50", "width 50 does not fit"),
    (FOLDER, "data.batch_size", "0", "at least 1"),
    (STORIES, "steps.train.model.heads", "7", "width 128 is not divisible by 7 heads"),
    (STORIES, "steps.train.model.groups", "3", "4 heads cannot share 3 heads"),
    (STORIES, "steps.train.model.vocab", "1000000000000", "at most 67,108,864"),
    (STORIES, "steps.train.model.mlp_hidden", "0", "at least 1"),
    (STORIES, "steps.tokenizer.learner.vocab_size", "10", "vocab_size"),
    (CODEC, "steps.train.data.buckets.buckets.square.num_frames", "10", "10 frames do not fit"),
    (CLIPS, "samples_per_shard", "0", "at least 1"),
    (BIG, "model.width", "4095", "not divisible by heads"),
    (BIG, "model.in_channels", "16", "latents have 1536 channels"),
    (SPACE_TIME, "model.reaches", "[full, full]", "each at most once"),
    (TEXTS, "model.groups", "7", "heads cannot share 7"),
    (DRAW, "width_px", "50", "width 50 does not fit"),
    (DRAW, "given_frames", "10 pixel frames", "at most 9"),
    (QUICK, "steps.train.model.depth", "0", "depth must be at least 1, got 0"),
    (BLEND, "data.sources.stills.data.buckets.buckets.square.width", "50", "width 50 does not fit"),
    ("lightning/boring", "trainer.max_epochs", "-7", "max_epochs must be at least -1, got -7"),
]  # fmt: skip


@pytest.mark.parametrize(("recipe", "key", "value", "said"), BROKEN, ids=lambda one: str(one)[:40])
def test_a_number_that_cannot_be_is_refused_at_its_key(recipe, key, value, said, capsys):
    assert main(["check", str(ROOT / "recipes" / f"{recipe}.yaml"), f"{key}={value}"]) == 2
    told = "".join(capsys.readouterr())
    assert said in told and f"command line  {key}\n" in told


WAN_VAE = {"_class_name": "AutoencoderKLWan", "z_dim": 16, "scale_factor_temporal": 4, "scale_factor_spatial": 8}
PRETRAINED = [
    ("lora", "callbacks.preview.width_px", "833", "width 833 does not fit this autoencoder"),
    ("full", "callbacks.preview.num_frames", "80", "80 frames do not fit"),
    ("full", "data.buckets.buckets.wide.height", "481", "height 481 does not fit this autoencoder"),
    ("sample_pretrained", "num_frames", "82", "use 81 or 85"),
    ("video_to_world", "width_px", "1281", "use 1280 or 1288"),
]


@pytest.mark.parametrize(("recipe", "key", "value", "said"), PRETRAINED, ids=lambda one: str(one)[:40])
def test_sizes_that_the_autoencoder_of_a_pretrained_model_does_not_take_are_refused(
    recipe, key, value, said, tmp_path, capsys
):
    (tmp_path / "vae").mkdir()
    (tmp_path / "vae/config.json").write_text(json.dumps(WAN_VAE))
    (tmp_path / "vae/diffusion_pytorch_model.safetensors").touch()
    (tmp_path / "model_index.json").write_text("{}")
    (tmp_path / "transformer").mkdir()
    (tmp_path / "transformer/config.json").write_text(json.dumps({"_class_name": "WanTransformer3DModel"}))
    given = {"video_to_world": ["prompts.given=[a.mp4]"], "sample_pretrained": []}.get(recipe, ["data.path=a"])
    path = str(ROOT / f"recipes/world_model/{recipe}.yaml")
    words = ["check", path, f"base={tmp_path}", *given, f"{key}={value}"]
    assert main(words) == 2
    told = "".join(capsys.readouterr())
    assert said in told and f"command line  {key}\n" in told


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("diffusers", reason="needs the extra diffusers")
    folder = tmp_path_factory.mktemp("pretrained") / "base"
    write_random_pipeline(folder, "wan22_t2v")
    return folder


EXPERTS = ["model=pretrained_experts", "pipeline=wan22_t2v"]
ONE_NETWORK = ["data.path=a", "task.pipeline.network=transformer"]
HALF_PATCHES = [
    ("sample_pretrained", EXPERTS, "height_px", "488"),
    ("lora", ONE_NETWORK, "callbacks.preview.height_px", "488"),
    ("full", ONE_NETWORK, "data.buckets.buckets.wide.height", "488"),
]


@pytest.mark.parametrize(("recipe", "given", "key", "value"), HALF_PATCHES, ids=lambda one: str(one)[:40])
def test_sizes_that_a_pretrained_network_cannot_cut_are_refused_at_the_video(recipe, given, key, value, base, capsys):
    words = ["check", str(ROOT / f"recipes/world_model/{recipe}.yaml"), f"base={base}", *given]
    assert main(words) == 0, capsys.readouterr().out
    assert main([*words, f"{key}={value}"]) == 2
    told = "".join(capsys.readouterr())
    assert "height 488 makes latents of 61" in told and "patches of 2; use 480 or 496" in told
    assert f"command line  {key}\n" in told


@pytest.mark.parametrize(("recipe", "slot"), [
    ("lora", "task.pipeline"), ("full", "task.pipeline"), ("sample_pretrained", "pipeline"),
    ("video_to_world", "pipeline"),
])  # fmt: skip
def test_a_pipeline_for_another_family_than_the_folders_is_refused_with_both_names(recipe, slot, base, capsys):
    given = ["prompts.given=[a.mp4]"] if recipe == "video_to_world" else []
    given += ["model=pretrained_experts"] if "." not in slot else ["data.path=a"]
    words = ["check", str(ROOT / f"recipes/world_model/{recipe}.yaml"), f"base={base}", *given]
    assert main([*words, f"{slot}=cosmos2_video"]) == 2
    told = " ".join("".join(capsys.readouterr()).split())
    assert "this pipeline is for cosmos2_video" in told and "holds a wan22_t2v; choose auto" in told
    assert f"command line {slot} " in told


def test_one_network_of_two_does_not_sample_alone(base, capsys):
    assert main(["check", str(ROOT / "recipes/world_model/sample_pretrained.yaml"), f"base={base}"]) == 2
    assert "use model=pretrained_experts" in capsys.readouterr().out


def test_an_objective_that_the_folders_network_was_not_trained_with_is_said(tmp_path, capsys):
    pytest.importorskip("diffusers", reason="needs the extra diffusers")
    write_random_pipeline(tmp_path / "base", "cosmos1_text")
    words = ["check", str(ROOT / "recipes/diffusion/train_folder.yaml"), f"weights.start_from={tmp_path / 'base'}"]
    main([*words, "data.path=a"])
    assert "a cosmos1_text, was trained with EDM, but this training has FlowMatching" in capsys.readouterr().out
    main([*words, "data.path=a", "task.objective=edm"])
    assert "was trained with" not in capsys.readouterr().out


@pytest.mark.parametrize("recipe", ["lora", "full", "sample_pretrained", "video_to_world"])
def test_a_folder_that_says_no_family_is_refused_once_it_is_there(recipe, tmp_path, capsys):
    given = {"video_to_world": ["prompts.given=[a.mp4]"], "sample_pretrained": []}.get(recipe, ["data.path=a"])
    words = ["check", str(ROOT / f"recipes/world_model/{recipe}.yaml"), *given, "random_base=null"]
    assert main([*words, f"base={tmp_path / 'later'}"]) == 0, capsys.readouterr().out
    assert main([*words, f"base={tmp_path}"]) == 2
    assert "has no video model that can be read, so its pipeline is" in " ".join(capsys.readouterr().out.split())


def require_told(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`check` of a recipe of `world_model/` says ok, or else refuses it with these words."""
    recipe, *changes = words
    assert main(["check", str(ROOT / f"recipes/world_model/{recipe}.yaml"), *changes]) == (0 if said == "ok" else 2)
    assert said in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("given", "said"), [
    ("", "has two networks, which are trained separately; add network=transformer"),
    ("task.pipeline.network=transformer_2", "is for transformer_2 and starts from"),
    ("task.pipeline.network=transformer", "ok"),
    ("task.pipeline.network=transformer_2 weights.start_from={0}/transformer_2 model.folder={0}/transformer_2", "ok"),
])  # fmt: skip
def test_a_training_is_for_one_network_of_two_and_starts_from_it(given, said, base, capsys):
    require_told(["lora", f"base={base}", "data.path=a", *given.format(base).split()], said, capsys)


@pytest.mark.parametrize(("given", "said"), [
    ("adapters.a.path=x", "set network: transformer (high) or transformer_2 (low)"),
    ("adapters.a.path=x adapters.a.network=transformer_2", "ok"),
])  # fmt: skip
def test_an_adapter_says_which_network_of_two_it_is_for(given, said, base, capsys):
    require_told(["sample_pretrained", f"base={base}", "model=pretrained_experts", *given.split()], said, capsys)


@pytest.mark.parametrize(("given", "said"), [
    ("adapters.a.path=x adapters.a.network=transformer_2", "network is transformer_2, but this model has one network"),
    ("adapters.a.path=wan22_high_noise.safetensors", "calls itself an adapter for the high-noise network of Wan 2.2"),
])  # fmt: skip
def test_an_adapter_for_one_network_of_two_is_refused_as_that_where_there_is_one(given, said, tmp_path, capsys):
    write_random_pipeline(tmp_path / "base", "wan21_t2v")
    require_told(["sample_pretrained", f"base={tmp_path / 'base'}", *given.split()], said, capsys)


@pytest.mark.parametrize(("scheduler", "said"), [
    ({"_class_name": "UniPCMultistepScheduler", "flow_shift": 5.0}, "flow_shift 5.0, but this pipeline a shift of 3.0"),
    ({"_class_name": "LCMScheduler"}, "samples with LCMScheduler, but this pipeline with UniPCFlowSigmas"),
])  # fmt: skip
def test_a_folder_that_samples_otherwise_than_the_recipe_is_said(scheduler, said, base, tmp_path, capsys):
    shutil.copytree(base, tmp_path / "base")
    (tmp_path / "base/scheduler/scheduler_config.json").write_text(json.dumps(scheduler))
    words = ["check", str(ROOT / "recipes/world_model/sample_pretrained.yaml"), *EXPERTS]
    assert main([*words, f"base={tmp_path / 'base'}"]) == 0
    assert said in capsys.readouterr().out
    assert main([*words, f"base={base}"]) == 0
    assert "scheduler" not in capsys.readouterr().out


@pytest.mark.parametrize(("part", "key", "said"), [
    ("vae", "z_dim", "latents have 8 channels, but the model was built for 4"),
    ("text_encoder", "d_model", "tokens are 8 wide, but the model was built for 16"),
])  # fmt: skip
def test_parts_that_do_not_fit_a_pretrained_network_are_refused_at_its_folder(part, key, said, base, tmp_path, capsys):
    shutil.copytree(base, tmp_path / "base")
    path = tmp_path / "base" / part / "config.json"
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {key: 8, "latents_mean": [0] * 8, "latents_std": [1] * 8})
    )
    words = ["check", str(ROOT / "recipes/world_model/sample_pretrained.yaml"), f"base={tmp_path / 'base'}", *EXPERTS]
    assert main(words) == 2
    told = "".join(capsys.readouterr())
    assert said in told and "give the folder of a network that fits" in told and "  model.folder\n" in told


@pytest.fixture(scope="module")
def image_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("diffusers", reason="needs the extra diffusers")
    folder = tmp_path_factory.mktemp("image") / "base"
    write_random_pipeline(folder, "wan21_i2v")
    return folder


IMAGE, GIVEN = ["task.pipeline=wan21_i2v"], "callbacks.preview.given=[a.jpg]"
NO_IMAGE = "this network starts from an image, but the samples have none"
WITHOUT_IMAGE = [
    ("full", [*IMAGE, "data.path=a"], "callbacks.preview", NO_IMAGE),
    ("lora", [*IMAGE, "data.path=a"], "callbacks.preview", NO_IMAGE),
    ("sample_pretrained", ["pipeline=wan21_i2v"], "prompts", "set prompts.given to an image"),
    *(("sample_pretrained", ["pipeline=wan21_i2v", f"prompts={{_target_: nemo_vfm.synth.prompts.{source}}}"], "prompts",
       "set prompts.given") for source in ("HeldOutPrompts", "StoryPrompts")),
    ("sample_pretrained", ["pipeline=wan21_i2v", "pipeline.frame_conditioning=null", "prompts.given=[a.jpg]"],
     "prompts", "takes none"),
]  # fmt: skip
WITH_IMAGE = [
    ("full", [*IMAGE, GIVEN, "data.path=a"]), ("lora", [*IMAGE, GIVEN, "data.path=a"]),
    ("full", [*IMAGE, "data.path=a", "task.pipeline.frame_conditioning.none_given=0.1"]),
    ("sample_pretrained", ["pipeline=wan21_i2v", "prompts.given=[a.jpg]"]),
    ("sample_pretrained", ["pipeline=wan21_i2v", "prompts.given=[a.jpg]", "checkpoint=null"]),
]  # fmt: skip


@pytest.mark.parametrize(("recipe", "given", "key", "said"), WITHOUT_IMAGE, ids=lambda one: str(one)[:40])
def test_a_network_that_begins_with_an_image_is_refused_where_it_gets_none(
    recipe, given, key, said, image_base, capsys
):
    assert main(["check", str(ROOT / f"recipes/world_model/{recipe}.yaml"), f"base={image_base}", *given]) == 2
    told = "".join(capsys.readouterr())
    assert said in told and f"  {key}" in told, told


@pytest.mark.parametrize(("recipe", "given"), WITH_IMAGE, ids=lambda one: str(one)[:40])
def test_a_network_that_begins_with_an_image_is_right_where_it_gets_one(recipe, given, image_base, capsys):
    words = ["check", str(ROOT / f"recipes/world_model/{recipe}.yaml"), f"base={image_base}", *given]
    assert main(words) == 0, capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("family", ["cosmos2_video", "wan22_ti2v"])
def test_previews_from_text_alone_are_refused_where_every_training_sample_has_given_frames(family, tmp_path, capsys):
    pytest.importorskip("diffusers", reason="needs the extra diffusers")
    write_random_pipeline(tmp_path / "base", family)
    full, sample = ([str(ROOT / f"recipes/world_model/{name}.yaml"), f"base={tmp_path / 'base'}"]
                    for name in ("full", "sample_pretrained"))  # fmt: skip
    named = [*full, "data.path=a", f"task.pipeline={family}"]
    for words in ([*full, "data.path=a"], named):
        assert main(["check", *words]) == 2
        told = " ".join("".join(capsys.readouterr()).split())
        assert "every training sample starts with given frames" in told and f"task.pipeline={family}" in told
        assert " callbacks.preview" in told
    both = "task.pipeline.frame_conditioning.none_given=0.5"
    for words in ([*full, "data.path=a", GIVEN], [*named, both], [*named, "callbacks.preview.num_frames=1"], sample):
        assert main(["check", *words]) == 0, capsys.readouterr().out


def test_a_network_that_encodes_given_frames_is_refused_where_the_data_are_latents(image_base, tmp_path, capsys):
    for member in ("latents.safetensors", "mp4"):
        with ShardWriter(tmp_path / member) as writer:
            writer.write("0" * 32, {member: b"x"}, {"caption": "a"})
    words = ["check", str(ROOT / "recipes/world_model/full.yaml"), f"base={image_base}", *IMAGE, GIVEN, "data=shards"]
    for given in ([f"data.shards={tmp_path / 'latents.safetensors'}"], ["data.shards=later", "data.buckets=null"]):
        assert main([*words, *given]) == 2
        assert "this data yields cached latents" in " ".join("".join(capsys.readouterr()).split())
    for folder in (tmp_path / "mp4", "later"):
        assert main([*words, f"data.shards={folder}"]) == 0, capsys.readouterr().out


def test_a_training_of_two_networks_is_refused_with_a_folder_of_one(base, capsys):
    words = ["check", str(ROOT / "recipes/world_model/full.yaml"), f"base={base}", "data.path=a"]
    assert main([*words, "model=pretrained_experts", "task.pipeline.network=transformer"]) == 2
    assert "set model=pretrained model.folder=BASE/NAME weights.start_from=BASE/NAME" in "".join(capsys.readouterr())
    for one in ("transformer", "transformer_2"):
        of_one = [f"model.folder={base / one}", f"weights.start_from={base / one}", f"task.pipeline.network={one}"]
        assert main([*words, *of_one]) == 0, capsys.readouterr().out


def test_weights_that_are_adapters_alone_are_refused_with_the_way_to_merge_them(base, tmp_path, capsys):
    folder = tmp_path / "lora" / "checkpoints"
    for step, state in ((1, {}), (2, {"adapters": {"method": "lora"}})):
        checkpoint.save(folder, step, {"model": {"a.adapters.own.a": torch.ones(1)}}, state)
    full, sample = (str(ROOT / f"recipes/world_model/{name}.yaml") for name in ("full", "sample_pretrained"))
    trained = [full, "data.path=a", "task.pipeline.network=transformer"]
    for place in (tmp_path / "lora", folder, folder / "step-00000002"):
        for words in ([*trained, f"weights.start_from={place}"], [sample, *EXPERTS, f"checkpoint={place}"]):
            assert main(["check", *words, f"base={base}"]) == 2
            told = "".join(capsys.readouterr())
            assert "holds only adapters" in told and f"nemo-vfm convert {place} OUT" in " ".join(told.split()), told
    assert main(["check", *trained, f"weights.start_from={folder / 'step-00000001'}", f"base={base}"]) == 0


def test_blocks_that_a_model_does_not_name_are_refused_at_the_engine(capsys):
    words = [str(ROOT / f"recipes/{SMALL}.yaml"), "data.shards=x", "model={_target_: tests.support.toy.ToyModel}"]
    assert main(["check", *words, "--trust", "tests.support.toy", "engine.recompute=blocks"]) == 2
    told = "".join(capsys.readouterr())
    assert "ToyModel has no plan() that names its blocks" in told and "set engine.recompute to none" in told
    assert main(["check", *words, "--trust", "tests.support.toy"]) == 0


def test_a_pretrained_model_that_is_not_there_yet_is_no_problem(tmp_path, capsys):
    words = [str(ROOT / "recipes/world_model/sample_pretrained.yaml"), f"base={tmp_path / 'later'}", "num_frames=82"]
    assert main(["check", *words]) == 0, capsys.readouterr().out


LAYOUTS = [
    (TEXTS, ["parallel.tensor=3"], "parallel", "cannot be divided by 3"),
    (SMALL, ["parallel.pipeline=3", "parallel.microbatches=3", "data.batch_size=3", "data.shards=x"],
     "parallel", "2 blocks cannot be cut into 3 stages"),
    ("llm/nemotron4_340b", ["loop.phases.main.parallel.pipeline=13",
                            *(f"data.sources.{name}.folder=x" for name in ("english", "multilingual", "code"))],
     "loop.phases.main.parallel", "96 blocks cannot be cut into 104 stages"),
]  # fmt: skip


@pytest.mark.parametrize(("recipe", "changes", "at", "said"), LAYOUTS, ids=lambda one: str(one)[:40])
def test_a_layout_that_the_model_does_not_allow_is_refused_also_of_a_later_phase(recipe, changes, at, said, capsys):
    assert main(["check", str(ROOT / "recipes" / f"{recipe}.yaml"), *changes]) == 2
    told = "".join(capsys.readouterr())
    assert said in told and f"  {at}\n" in told


def test_a_run_and_a_sweep_refuse_it_as_well_and_leave_nothing(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    recipe = str(ROOT / "recipes/quickstart.yaml")
    assert main(["run", recipe, "steps.train.model.heads=7"]) == 2
    parser = argparse.ArgumentParser()
    run.add_arguments(parser)
    words = parser.parse_args([recipe, "--sweep", "steps.train.model.heads=4,7"])
    with pytest.raises(UserError, match=r"divisible by heads 7[\s\S]*Nothing was run"):
        _check_all(sweep_plan(words))
    assert "width 192 is not divisible by heads 7" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_place_is_the_line_of_the_key_in_its_file(tmp_path: Path, capsys):
    text = (ROOT / "recipes/diffusion/train_small.yaml").read_text()
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(f"{text}model:\n  depth: 2\n  heads: 7\n")
    line = text.count("\n") + 3
    assert main(["check", str(recipe), "data.shards=x"]) == 2
    assert f"mine.yaml:{line}:3  model.heads\n" in capsys.readouterr().out


@pytest.mark.slow
def test_a_large_model_takes_no_memory():
    code = """
import resource, sys
from nemo_vfm.cli.main import main
peak_kb = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak_kb()
status = main(sys.argv[1:])
print(peak_kb() - before)
sys.exit(status)
"""
    words = ["model.depth=1000", "model.heads=64", "model.width=65536"]  # 110 TB of weights
    recipe = str(ROOT / "recipes/diffusion/dit_28b_8k.yaml")
    done = preloaded.run([sys.executable, "-c", code, "check", recipe, "data.shards=x", *words])
    assert done.returncode == 0 and int(done.stdout.split()[-1]) < 200_000, done.stdout + done.stderr


def test_what_is_built_draws_nothing(monkeypatch, capsys):
    drawn = []
    monkeypatch.setattr(static_memory.torch, "randn", lambda *_, **__: drawn.append(1))
    assert main(["check", str(ROOT / "recipes/quickstart.yaml")]) == 0 and not drawn, capsys.readouterr().out
