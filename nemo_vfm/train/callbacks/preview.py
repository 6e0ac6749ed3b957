"""Samples a grid from fixed prompts and seeds during training, so that one can watch the model learn."""

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
    """Where prompts come from, such as the captions of clips."""

    def prompts(self) -> Sequence[PromptText]:
        """The prompts, in a fixed order."""
        ...


class Preview:
    """Writes `samples/step-<n>.png` and `.mp4`, drawn with the averaged weights if there are any, and `prompts.json`.

    Args:
        pipeline: how a model's outputs become pixels.
        prompts: the captions to draw; a source of them is asked at the first preview.
        every_steps: optimizer steps between previews; there is always one at the end.
        num_frames: frames of a sample.
        height_px: height of a sample.
        width_px: width of a sample.
        fps: frames a second.
        given: a picture or a clip for each prompt, or one for all, for a model that is given first frames.
        given_frames: how many frames of it are given, the last ones of a clip; 1 for a picture.

    Raises:
        ValueError: a number is below 1, or there are no prompts, or another number of pictures and clips, of which
            only one can go with a source.
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
            raise ValueError(
                f"given has {len(given)} files for {len(prompts)} prompts; give one for each, or one for all"
            )
        require_between(1, MAX_FRAMES, num_frames=num_frames)
        require_between(1, num_frames, given_frames=given_frames.count)
        require_between(1, MAX_SIDE_PX, height_px=height_px, width_px=width_px)
        self.pipeline, self.prompts, self.every_steps = pipeline, prompts, every_steps
        self.num_frames, self.height_px, self.width_px, self.fps = num_frames, height_px, width_px, frame_rate(fps)
        self.given = tuple(given)
        self.given_frames = given_frames

    def on_step(self, fit: TrainState) -> None:
        """Draw where due."""
        if not fit.is_due(self.every_steps):
            return
        source = self.prompts
        prompts = [one.text for one in source.prompts()] if isinstance(source, PromptSource) else list(source)
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
        if not ranks.is_first():  # each rank had to draw: it may hold a part of every layer
            return
        write_grid(fit.run.folder / "samples" / f"step-{fit.step:08d}", video_BTHWC.numpy(), self.fps)
        write_json(fit.run.folder / "samples" / "prompts.json", prompts)
