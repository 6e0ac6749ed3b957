"""Tests that an imported Wan is trained further on one's own clips, and that diffusers draws from it what we draw."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from nemo_vfm.config import build, compose
from nemo_vfm.core.seed import generator
from nemo_vfm.data.shards.shard_files import ShardWriter
from nemo_vfm.diffusion.guidance import ClassifierFree
from nemo_vfm.diffusion.objective import FlowMatching
from nemo_vfm.diffusion.sampler import Euler
from nemo_vfm.diffusion.video_pipeline import TextToVideo
from nemo_vfm.models.diffusers_codec import DiffusersCodec
from nemo_vfm.models.text_encoder import HashedNgrams
from nemo_vfm.parallel.checkpoint import checkpoint

diffusers = pytest.importorskip("diffusers", reason="needs the extra diffusers")
from tests.models.test_diffusers_codec import WAN as VAE  # noqa: E402
from tests.support.video_peers import PEERS, made  # noqa: E402

RECIPE = "diffusion/train_small"
TEXT = HashedNgrams(dim=16, max_tokens=8)
PROMPT, SIZE, STEPS = "a red circle", (5, 32, 32), 8


def pipeline(folder: Path) -> Path:
    """A whole pipeline of random parts, as diffusers saves it, but for the text encoder."""
    torch.manual_seed(1)
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)
    vae = diffusers.AutoencoderKLWan(**VAE)
    parts = diffusers.WanPipeline(None, None, vae, scheduler, made(PEERS["wan 2.1 text"]))
    parts.save_pretrained(folder)
    return folder


def shards(folder: Path, codec: DiffusersCodec) -> Path:
    """Clips of one colour each, as latents."""
    with ShardWriter(folder) as writer:
        for number in range(20):
            pixels = torch.full((1, 3, *SIZE), -0.9) + 0.1 * number
            latents = codec.encode(pixels)[0].contiguous()
            text, mask = TEXT.encode([f"colour {number}"])
            members = {"latents.safetensors": save({"latents": latents}), "txt": b"a colour",
                       "text.safetensors": save({"text": text[0].contiguous(), "mask": mask[0]})}  # fmt: skip
            facts = {"caption": "a colour", "fps": 8.0, "bucket": "b", "latent_shape": list(latents.shape)}
            writer.write(f"{number:032x}", members, facts)
    return folder


@pytest.mark.slow  # a training, and diffusers' own pipeline
def test_a_wan_learns_from_ones_own_clips_and_goes_back_to_diffusers(kitchen) -> None:
    theirs, codec = pipeline(kitchen.folder / "theirs"), f"folder={kitchen.folder / 'theirs'}"
    assert kitchen.main("convert", "theirs", "mine") == 0
    shards(kitchen.folder / "shards", DiffusersCodec(folder=theirs))
    words = ["--conf", "mine/conf", "model=converted", "weights.start_from=theirs", "data.shards=shards", "run_dir=run",
             "task.codec=diffusers", f"task.codec.{codec}", "task.text_encoder=hashed", "task.text_encoder.dim=16",
             "task.text_encoder.max_tokens=8", "task.objective=flow", "data.val_fraction=0.2", "data.batch_size=4",
             "loop.duration=40 steps", "loop.validation.every_steps=5", "loop.checkpoint.every_steps=40",
             "callbacks.preview.every_steps=1000",
             "schedule.warmup_steps=2", "optimizer.lr=3e-3", "callbacks.ema.decay=0.5",
             "precision.compute=fp32"]  # fmt: skip
    done = kitchen.command("run", RECIPE, *words)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in (kitchen.folder / "run/metrics.jsonl").read_text().splitlines()]
    losses = [line["val_loss"] for line in lines if "val_loss" in line]
    assert losses[-1] < 0.8 * losses[0], losses
    record = checkpoint.open_checkpoint(kitchen.folder / "run").state["started_from"]
    assert record["path"].endswith("theirs/transformer") and not record["not_taken"]

    assert kitchen.main("convert", "run", "back", "--to", "diffusers", "--pipeline", "theirs") == 0
    assert drawn_by_diffusers(kitchen.folder / "back").shape == drawn_here(kitchen.folder).shape
    difference = (drawn_by_diffusers(kitchen.folder / "back") - drawn_here(kitchen.folder)).abs().max()
    assert difference <= 1.01, "of 255: rounding alone"
    assert (drawn_by_diffusers(kitchen.folder / "theirs") - drawn_here(kitchen.folder)).abs().max() > 3


def sigmas() -> torch.Tensor:
    """The noise levels of diffusers' scheduler."""
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)
    scheduler.set_timesteps(STEPS)
    return scheduler.sigmas.double()


class AsDiffusers(FlowMatching):
    def schedule(self, steps, size_THW):
        return sigmas()


def drawn_here(folder: Path) -> torch.Tensor:
    """Bytes (T, H, W, 3), as float."""
    composed = compose(folder / "run/recipe.yaml")
    model = build(composed).model().eval()
    model.load_state_dict(checkpoint.weights_of(checkpoint.open_checkpoint(folder / "run"), "ema"))
    draw = TextToVideo(codec=DiffusersCodec(folder=folder / "theirs"), text_encoder=TEXT, objective=AsDiffusers(),
                       sampler=Euler(steps=STEPS), guidance=ClassifierFree(scale=5.0))  # fmt: skip
    frames, height, width = SIZE
    return draw.generate(model, [PROMPT], num_frames=frames, height=height, width=width, fps=8, seed=3)[0].float()


def drawn_by_diffusers(folder: Path) -> torch.Tensor:
    """The same by diffusers' own pipeline, from the same noise and text."""
    parts = {"tokenizer": None, "text_encoder": None}
    whole = diffusers.WanPipeline.from_pretrained(folder, **parts)
    whole.set_progress_bar_config(disable=True)
    (text, _), (empty, _) = TEXT.encode([PROMPT]), TEXT.encode([""])
    frames, height, width = SIZE
    shape = DiffusersCodec(folder=folder).latent_shape(*SIZE)
    noise = torch.randn(shape, generator=generator(3, "sampling", PROMPT, 0))[None]
    video = whole(prompt_embeds=text, negative_prompt_embeds=empty, latents=noise, num_frames=frames, height=height,
                  width=width, num_inference_steps=STEPS, guidance_scale=5.0, output_type="np").frames[0]  # fmt: skip
    return (torch.from_numpy(video) * 255).round()
