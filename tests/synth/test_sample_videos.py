"""Tests that sampling writes one file per prompt, for any batching or interruption, and depends on the weights."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nemo_vfm.config import build, compose
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.job import JobShard, Run
from nemo_vfm.data.video.decode import open_video
from nemo_vfm.diffusion.generated_videos import VideoRequest
from nemo_vfm.diffusion.guidance import ClassifierFree
from nemo_vfm.diffusion.objective import FlowMatching
from nemo_vfm.diffusion.sampler import Euler
from nemo_vfm.diffusion.step_cache import FirstBlockCache
from nemo_vfm.diffusion.video_pipeline import TextToVideo
from nemo_vfm.models.codec import WaveletCodec
from nemo_vfm.models.dit import DiT
from nemo_vfm.models.text_encoder import HashedNgrams
from nemo_vfm.parallel.checkpoint import checkpoint
from nemo_vfm.parallel.engine.inference_model import SamplingRanks
from nemo_vfm.parallel.plan.sampling_plan import SamplingPlan
from nemo_vfm.synth.prompts import CaptionPrompts, DemoPrompts, PromptList, VideoPrompt
from nemo_vfm.synth.sample_videos import Sample

TEXTS = ["a red circle moving left", "a blue square moving up", "a green cross"]


def job(
    at: Path | None = None, *, batch_size: int = 2, texts: list[str] = TEXTS, scale: float = 2.0,
    step_cache: FirstBlockCache | None = None, parallel: SamplingPlan = SamplingPlan(), depth: int = 1,
) -> Sample:  # fmt: skip
    codec, text_encoder = WaveletCodec(levels_space=2, levels_time=1), HashedNgrams(dim=32, max_tokens=8)
    return Sample(
        model=partial(DiT, in_channels=96, text_dim=32, width=24, depth=depth, heads=2), checkpoint=at,
        pipeline=TextToVideo(codec=codec, text_encoder=text_encoder, objective=FlowMatching(), sampler=Euler(steps=2),
                             guidance=ClassifierFree(scale=scale), step_cache=step_cache),
        prompts=PromptList(texts=texts), num_frames=3, height_px=16, width_px=16, fps=8.0, batch_size=batch_size,
        parallel=parallel,
    )  # fmt: skip


def pixels(folder: Path, index: int) -> np.ndarray:
    with open_video(folder / "samples" / f"{index:03d}.mp4") as reader:
        return reader.read(range(3))


def trained(folder: Path, depth: int = 1) -> Path:
    """A checkpoint whose output layer is not zero."""
    with torch.random.fork_rng(devices=[]):
        model = job(depth=depth).model()
    weights = {name: torch.randn_like(tensor) * 0.2 for name, tensor in model.state_dict().items()}
    checkpoint.save(folder, 1, {"ema": weights}, {})
    return folder


def test_every_prompt_has_a_video_and_an_entry_in_the_list(tmp_path: Path) -> None:
    outcome = job().run(Run(tmp_path, seed=3))
    listed = json.loads((tmp_path / "samples.json").read_text())
    assert [(entry["prompt"], entry["file"]) for entry in listed] == [
        (text, f"samples/{i:03d}.mp4") for i, text in enumerate(TEXTS)
    ]
    assert outcome.figures["videos"] == 3
    assert pixels(tmp_path, 2).shape == (3, 16, 16, 3)
    assert (tmp_path / "grid.png").is_file()
    assert (tmp_path / "grid.mp4").is_file()
    with Image.open(tmp_path / "samples/002.jpg") as poster:
        assert poster.size == (16, 16)


def test_an_interrupted_run_samples_only_missing_videos_with_the_same_result(tmp_path: Path) -> None:
    job().run(Run(tmp_path, seed=3))
    kept, removed = (tmp_path / "samples" / name for name in ("000.mp4", "001.mp4"))
    before, when = removed.read_bytes(), kept.stat().st_mtime_ns
    removed.unlink()
    assert "1 of 3" in job(batch_size=3).run(Run(tmp_path, seed=3)).summary
    assert removed.read_bytes() == before
    assert kept.stat().st_mtime_ns == when


def test_parts_generate_the_videos_of_the_whole(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    job().run(Run(whole, seed=3))
    counts = [job().run_part(Run(parts, seed=3), JobShard(number, 3)).figures["videos"] for number in (1, 0, 2)]
    assert counts == [1, 2, 0]
    assert "sampled 0 of 3" in job().run(Run(parts, seed=3)).summary
    for index in range(3):
        assert (parts / f"samples/{index:03d}.mp4").read_bytes() == (whole / f"samples/{index:03d}.mp4").read_bytes()


def test_trained_weights_change_the_picture_and_untrained_ones_ignore_the_prompt(tmp_path: Path) -> None:
    job().run(Run(tmp_path / "untrained", seed=3))
    job(trained(tmp_path / "checkpoints")).run(Run(tmp_path / "trained", seed=3))
    assert not np.array_equal(pixels(tmp_path / "untrained", 0), pixels(tmp_path / "trained", 0))


def test_the_weights_that_are_asked_for_are_sampled_from(tmp_path: Path) -> None:
    """A checkpoint holds the averaged ones and the raw ones."""
    averaged, raw = (checkpoint.load_weights(trained(tmp_path / name), "ema") for name in ("one", "two"))
    checkpoint.save(tmp_path / "both", 1, {"ema": averaged, "model": raw}, {})
    found = {}
    for name, weights in (("one", "ema"), ("two", "ema"), ("both", "ema"), ("both", "model")):
        one = job(tmp_path / name, texts=TEXTS[:1])
        one.weights = weights  # type: ignore[assignment]
        one.run(Run(tmp_path / f"{name} {weights}", seed=3))
        found[name, weights] = pixels(tmp_path / f"{name} {weights}", 0)
    assert np.array_equal(found["both", "ema"], found["one", "ema"])
    assert np.array_equal(found["both", "model"], found["two", "ema"])
    assert not np.array_equal(found["one", "ema"], found["two", "ema"])


def test_each_video_begins_with_the_frames_of_its_own_prompt(tmp_path: Path) -> None:
    for colour in ("red", "blue"):
        Image.new("RGB", (16, 16), colour).save(tmp_path / f"{colour}.png")
    asked: list[VideoRequest] = []

    class Noting:
        def make(self, model: object, request: VideoRequest, *_: object) -> None:
            asked.append(request)

    one, given = job(), {"a": "red", "b": None, "c": "blue"}
    one.pipeline = Noting()  # type: ignore[assignment]
    prompts = [VideoPrompt(text, given=colour and tmp_path / f"{colour}.png") for text, colour in given.items()]
    one._generate(torch.nn.Identity(), list(enumerate(prompts)), 3, SamplingRanks())
    red, nothing, blue = asked[0].given or ()
    assert asked[0].prompts == ["a", "b", "c"] and nothing is None
    assert (
        red.shape == (1, 16, 16, 3) and red[0, 8, 8].tolist() == [255, 0, 0] and blue[0, 8, 8].tolist() == [0, 0, 255]
    )


def test_prompts_of_the_command_line_are_a_list_of_texts() -> None:
    found = build(compose("diffusion/sample", ["checkpoint=null", "prompts=[a cat, a dog]"]))
    assert [prompt.text for prompt in found.prompts.prompts()] == ["a cat", "a dog"]


def test_previews_of_the_quickstart_are_of_the_captions_of_a_user_s_videos(tmp_path: Path) -> None:
    found = build(compose("quickstart", [f"input={tmp_path}"]))
    source = found.steps["train"].callbacks["preview"].prompts
    assert isinstance(source, DemoPrompts) and isinstance(source.source, CaptionPrompts)
    assert source.source.shards == found.steps["encode"].shards


def test_a_missing_checkpoint_says_to_train_first(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Train first"):
        job(tmp_path / "nowhere").run(Run(tmp_path / "run"))


def test_sizes_below_one_are_refused_with_the_numbers() -> None:
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        job(batch_size=0)


def test_step_cache_figures_survive_a_resume(tmp_path: Path) -> None:
    cached = job(trained(tmp_path / "weights", depth=3), depth=3, step_cache=FirstBlockCache(threshold=9, measure=True))
    cached.run(Run(tmp_path, seed=3))
    (tmp_path / "samples/002.mp4").unlink()
    figures = cached.run(Run(tmp_path, seed=3)).figures
    listed = [entry["step_cache"] for entry in json.loads((tmp_path / "samples.json").read_text())]
    assert [(one["skipped"], one["blocks"]) for one in listed] == [(2, 6)] * 3, (
        "two of three blocks are skipped in the second step"
    )
    assert figures["skipped_blocks"] == pytest.approx(1 / 3)
    assert figures["cache_latent_error"] == pytest.approx(np.mean([one["latent_error"] for one in listed]))
    assert figures["cache_psnr_db"] == min(one["psnr_db"] for one in listed)


def test_a_step_cache_that_does_not_measure_reports_no_error(tmp_path: Path) -> None:
    outcome = job(step_cache=FirstBlockCache(threshold=0.1)).run(Run(tmp_path, seed=3))
    assert set(outcome.figures) == {"videos", "skipped_blocks"}
    (plain := tmp_path / "plain").mkdir()
    job().run(Run(plain, seed=3))
    assert "step_cache" not in json.loads((plain / "samples.json").read_text())[0]
