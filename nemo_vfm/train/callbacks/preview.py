"""Samples a grid of videos from fixed prompts and a fixed seed during training, to watch the model learn."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch

from nemo_vfm.core import ranks
from nemo_vfm.core.bounds import MAX_FRAMES, MAX_SIDE_PX, frame_rate, require_between
from nemo_vfm.core.frame_count import PixelFrames
from nemo_vfm.core.storage.files import write_json
from nemo_vfm.data.video.fit_to_bucket import given_frames
from nemo_vfm.data.video.video_grid import write_grid
from nemo_vfm.diffusion.video_pipeline import TextToVideo
from nemo_vfm.train.state.train_state import TrainState


class PromptText(Protocol):
    """One prompt."""

    @property
    def text(self) -> str:
        """Its words."""
        ...


@runtime_checkable
class PromptSource(Protocol):
    """A source of prompts, such as the captions of clips."""

    def prompts(self) -> Sequence[PromptText]:
        """The prompts, in a fixed order."""
        ...


class Preview:
    """Writes `samples/step-<n>.png` and `.mp4`, sampled with the averaged weights if there are any, and `prompts.json`.

    Args:
        pipeline: samples latents with the model, and decodes them to pixels.
        prompts: the texts to sample from, or a source that is read at each preview.
        every_steps: optimizer steps between previews; there is always one at the end.
        num_frames: frames of a sample.
        height_px: height of a sample.
        width_px: width of a sample.
        fps: frames a second.
        given: images or videos that the samples continue, one for each prompt or one for all, if the model can.
        given_frames: how many of their frames the model is given, the last ones of a video; 1 for an image.

    Raises:
        ValueError: a number is out of range, there are no prompts, or `given` has neither one file nor one a prompt; a
            source goes with one only.
    """

    def __init__(
        self, *, pipeline: TextToVideo, prompts: Sequence[str] | PromptSource, every_steps: int,
        num_frames: int, height_px: int, width_px: int, fps: float, given: Sequence[Path] = (),
        given_frames: PixelFrames = PixelFrames(1),
    ) -> None:  # fmt: skip
        if every_steps < 1 or not prompts:
            raise ValueError(f"every_steps ({every_steps}) must be at least 1, and prompts must not be empty")
        if isinstance(prompts, PromptSource) and len(given) > 1:
            raise ValueError(f"given has {len(given)} files; give one for all prompts of a source")
        if not isinstance(prompts, PromptSource) and len(given) not in (0, 1, len(prompts)):
            raise ValueError(f"given has {len(given)} files for {len(prompts)} prompts; give one for each, or one "
                             f"for all")  # fmt: skip
        require_between(1, MAX_FRAMES, num_frames=num_frames)
        require_between(1, num_frames, given_frames=given_frames.count)
        require_between(1, MAX_SIDE_PX, height_px=height_px, width_px=width_px)
        self.pipeline, self.prompts, self.every_steps = pipeline, prompts, every_steps
        self.num_frames, self.height_px, self.width_px, self.fps = num_frames, height_px, width_px, frame_rate(fps)
        self.given = tuple(given)
        self.given_frames = given_frames

    def on_step(self, fit: TrainState) -> None:
        """Sample if a preview is is_due. Every rank calls it; the first one writes."""
        if not fit.is_due(self.every_steps):
            return
        source = self.prompts
        prompts = [prompt.text for prompt in source.prompts()] if isinstance(source, PromptSource) else list(source)
        size = {"width": self.width_px, "height": self.height_px}
        read = {path: torch.from_numpy(given_frames(path, self.given_frames, **size)) for path in set(self.given)}
        given = [read[path] for path in self.given] * (len(prompts) if len(self.given) == 1 else 1)
        fit.model.eval()
        with fit.ema.apply_to(fit.model) if fit.ema else nullcontext():
            video_BTHWC = self.pipeline.generate(
                fit.model, prompts, num_frames=self.num_frames, height=self.height_px, width=self.width_px,
                fps=self.fps, seed=fit.run.seed, given=given or None,
            )  # fmt: skip
        fit.model.train()
        if not ranks.is_first():  # the others had to sample, too: each may hold a shard of every layer
            return
        write_grid(fit.run.folder / "samples" / f"step-{fit.step:08d}", video_BTHWC.numpy(), self.fps)
        write_json(fit.run.folder / "samples" / "prompts.json", prompts)
