"""Tests that an adapter is trained on a pretrained pipeline, resumed, sampled from, and exported to diffusers."""

import shutil
from contextlib import chdir
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from nemo_vfm.cli.main import main
from nemo_vfm.data.video.decode import read_all
from nemo_vfm.data.video.encode import encode_mp4
from nemo_vfm.models.convert.video.transformer_folder import load_video_model
from nemo_vfm.parallel.checkpoint import checkpoint
from tests.support.installed import skip_without
from tests.support.peer_adapters import far
from tests.support.video_pipelines import saved

skip_without("diffusers", "peft")

NAME = "wan 2.1 text"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(NAME, tmp_path_factory.mktemp("base") / "pipeline")


def clips(folder: Path) -> Path:
    """Write four single-colour clips with captions."""
    folder.mkdir()
    for number in range(4):
        frames = np.full((18, 48, 48, 3), 40 + 50 * number, np.uint8)
        encode_mp4(folder / f"{number}.mp4", frames, 12, crf=0)
        (folder / f"{number}.txt").write_text(f"colour {number}")
    return folder


def arguments(base: Path, *more: str) -> list[str]:
    return [f"base={base}", "data.path=clips", "data.buckets=quickstart", "data.batch_size=2", "data.num_workers=0",
            "data.val_fraction=0", "~loop.validation", "run_dir=run", "loop.checkpoint.every_steps=2",
            "optimizer.lr=1e-2", "callbacks.preview.every_steps=100", "callbacks.preview.num_frames=9",
            "callbacks.preview.height_px=48",
            "callbacks.preview.width_px=48", "task.pipeline.steps=2", "precision=fp32",
            "task.pipeline.precision='fp32'", "schedule.warmup_steps=0", "seed=3",
            *more]  # fmt: skip


@pytest.fixture(scope="module")
def begun(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a pipeline, clips, and a training of two steps."""
    folder = tmp_path_factory.mktemp("begun")
    shutil.copytree(base, folder / "base")
    clips(folder / "clips")
    with chdir(folder):
        assert main(["run", "world_model/lora", *arguments(Path("base"), "loop.duration=2 steps")]) == 0
    return folder


@pytest.mark.slow
def test_an_adapter_is_trained_resumed_sampled_and_exported(kitchen, begun: Path) -> None:
    import diffusers

    shutil.copytree(begun, kitchen.folder, dirs_exist_ok=True)
    base = Path("base")
    assert kitchen.main("run", "world_model/lora", *arguments(base, "loop.duration=4 steps")) == 0
    found = checkpoint.open_checkpoint(kitchen.folder / "run")
    weights = checkpoint.weights_of(found, "model")
    assert found.step == 4 and all(".adapters." in name for name in weights), "only adapters are saved"

    assert kitchen.main("convert", "run", "mine", "--adapter", "ours") == 0
    adapter = load_file(kitchen.folder / "mine/adapter.safetensors")
    assert sum(one.numel() for one in adapter.values()) == sum(weights[name].numel() for name in weights)
    assert max(one.abs().max() for name, one in adapter.items() if "lora_B" in name) > 1e-3, "nothing was trained"

    small = ["num_frames=9", "height_px=48", "width_px=48", "pipeline.steps=2", "prompts.texts=[colour 1]"]
    for run, more in (("plain", []), ("adapted", ["adapters.mine.path=mine"])):
        typed = [f"base={base}", f"run_dir={run}", *small, *more]
        assert kitchen.main("run", "world_model/sample_pretrained", *typed) == 0
    plain, adapted = ((kitchen.folder / run / "samples/000.mp4").read_bytes() for run in ("plain", "adapted"))
    assert plain != adapted

    assert kitchen.main("convert", "run", "theirs", "--adapter", "diffusers") == 0
    assert kitchen.main("convert", "run", "whole", "--to", "diffusers", "--pipeline", str(base)) == 0
    merged = diffusers.WanTransformer3DModel.from_pretrained(kitchen.folder / "whole/transformer")
    loaded = diffusers.WanPipeline.from_pretrained(base)
    loaded.load_lora_weights(kitchen.folder / "theirs", weight_name="pytorch_lora_weights.safetensors")
    torch.manual_seed(0)
    given = {"hidden_states": torch.randn(1, 4, 3, 6, 6), "timestep": torch.tensor([500]),
             "encoder_hidden_states": torch.randn(1, 512, 16), "return_dict": False}  # fmt: skip
    with torch.no_grad():
        by_adapter, by_weights = loaded.transformer(**given)[0], merged(**given)[0]
        bare = diffusers.WanTransformer3DModel.from_pretrained(base / "transformer")(**given)[0]
    assert far(by_adapter, by_weights) < 1e-5 < 1e-3 < far(bare, by_weights)
    assert load_video_model(kitchen.folder / "whole").state_dict().keys() == load_video_model(base).state_dict().keys()


@pytest.mark.slow  # five commands
def test_each_network_of_two_has_an_adapter_of_its_own_sampled_together_and_merged(kitchen, tmp_path: Path) -> None:
    clips(kitchen.folder / "clips")
    base = saved("wan 2.2 a14b text", tmp_path / "base")
    for network in ("transformer", "transformer_2"):
        given = [
            f"task.pipeline.network={network}",
            f"weights.start_from={base / network}",
            f"model.folder={base / network}",
        ]
        run = [*arguments(base, "loop.duration=2 steps", *given), f"run_dir={network}"]
        assert kitchen.main("run", "world_model/lora", *run) == 0
        assert kitchen.main("convert", network, f"{network}-adapter", "--adapter", "ours") == 0

    small = ["num_frames=9", "height_px=48", "width_px=48", "pipeline.steps=2", "prompts.texts=[colour 1]",
             "model=pretrained_experts", "pipeline.precision='fp32'"]  # fmt: skip
    both = [f"adapters.{name}.{key}" for name, key in (
        ("high", "path=transformer-adapter"), ("high", "network=transformer"),
        ("low", "path=transformer_2-adapter"), ("low", "network=transformer_2"),
    )]  # fmt: skip
    merge = ["--to", "diffusers", "--pipeline"]
    assert kitchen.main("convert", "transformer", "once", *merge, str(base), "--replaces", "transformer") == 0
    assert kitchen.main("convert", "transformer_2", "twice", *merge, "once", "--replaces", "transformer_2") == 0
    for run, at, more in (("plain", base, []), ("adapted", base, both), ("merged", "twice", [])):
        typed = [f"base={at}", f"run_dir={run}", *small, *more]
        assert kitchen.main("run", "world_model/sample_pretrained", *typed) == 0
    plain, adapted, merged = (
        read_all(kitchen.folder / run / "samples/000.mp4").astype(int) for run in ("plain", "adapted", "merged")
    )
    assert abs(adapted - merged).max() <= 2 < abs(adapted - plain).max()


@pytest.mark.slow
def test_adapters_resume_only_on_their_original_weights(kitchen, begun: Path) -> None:
    shutil.copytree(begun, kitchen.folder, dirs_exist_ok=True)
    copy = Path("base")
    done = kitchen.command(
        "run", "world_model/lora", *arguments(copy, "loop.duration=4 steps", "weights.adapters.targets.mlp.rank=4")
    )
    assert done.returncode == 2 and "weights.adapters.targets.mlp.rank" in done.stderr, done.stderr
    file = copy / "transformer/diffusion_pytorch_model.safetensors"
    save_file({name: tensor + 0.01 for name, tensor in load_file(file).items()}, file, metadata={"format": "pt"})
    done = kitchen.command("run", "world_model/lora", *arguments(copy, "loop.duration=4 steps"))
    assert done.returncode != 0 and "use the original weights" in done.stderr, done.stderr


@pytest.mark.slow  # five commands
def test_adapters_resume_with_another_alpha_only_where_it_is_allowed_and_say_both(kitchen, begun: Path) -> None:
    shutil.copytree(begun, kitchen.folder, dirs_exist_ok=True)
    base = Path("base")
    state = checkpoint.open_checkpoint(kitchen.folder / "run").state["adapters"]
    assert state["method"] == "lora" and state["targets"]["mlp"]["alpha"] == 32
    other = arguments(
        base, "loop.duration=4 steps", "weights.adapters.targets.mlp.alpha=8", "weights.adapters.targets.mlp.rank=4"
    )
    done = kitchen.command("run", "world_model/lora", *other, "--allow", "weights.adapters")
    assert done.returncode != 0 and "mlp" in done.stderr and "(16, " in done.stderr, done.stderr

    alone = arguments(base, "loop.duration=2 steps", "weights.adapters.targets.mlp.alpha=8")
    done = kitchen.command("run", "world_model/lora", *alone, "--allow", "weights.adapters")
    assert done.returncode == 0 and "targets.mlp.alpha 32.0 before, 8.0 now" in done.stderr, done.stderr
    done = kitchen.command("convert", "run", "mine", "--adapter", "ours")
    assert done.returncode == 2 and "step 2 was trained with other adapters" in done.stderr, done.stderr
    longer = arguments(base, "loop.duration=3 steps", "weights.adapters.targets.mlp.alpha=8")
    assert kitchen.main("run", "world_model/lora", *longer) == 0
    assert checkpoint.open_checkpoint(kitchen.folder / "run").state["adapters"]["targets"]["mlp"]["alpha"] == 8
    assert kitchen.main("convert", "run", "mine", "--adapter", "ours") == 0


@pytest.mark.slow
def test_a_source_that_is_not_an_adapter_is_refused(kitchen, base: Path) -> None:
    done = kitchen.command("convert", "nowhere", "OUT", "--adapter", "peft")
    assert done.returncode == 2 and "there is no file nowhere" in done.stderr
    done = kitchen.command("convert", str(base), "OUT", "--base", str(base))
    assert done.returncode == 2 and "--base needs --adapter" in done.stderr
