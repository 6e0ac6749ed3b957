# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Draws one mp4 per prompt with a trained model, and a grid of all; a killed run resumes where it stopped."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import nn

from nemo_vfm.core import log
from nemo_vfm.core.bounds import MOST_FRAMES, MOST_SIDE_PX, require_between
from nemo_vfm.core.device import device
from nemo_vfm.core.frame_count import PixelFrames
from nemo_vfm.core.frame_rate import frame_rate
from nemo_vfm.core.seed import generator
from nemo_vfm.core.storage.files import atomic_path, write_json
from nemo_vfm.core.storage.uri import Place, place
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.job import JobShard, Outcome, Run
from nemo_vfm.data.video.decode import read_all
from nemo_vfm.data.video.encode import encode_mp4
from nemo_vfm.data.video.video_grid import write_grid
from nemo_vfm.diffusion.video_pipeline import TextToVideo
from nemo_vfm.models.adapters.load_adapters import AdapterFile, load_adapters
from nemo_vfm.models.convert.video.pretrained_video import load_pretrained
from nemo_vfm.models.convert.video.random_pipeline import Family, prepare_base
from nemo_vfm.models.convert.video.transformer_folder import transformer_in
from nemo_vfm.parallel.checkpoint.checkpoint import load_weights
from nemo_vfm.parallel.checkpoint.checkpoint_store import opened
from nemo_vfm.parallel.engine.engine import build_model, load_weights_into
from nemo_vfm.synth.given_frames import given_frames
from nemo_vfm.synth.prompts import Prompt, Prompts


class Sample:
    """Draws one video a prompt.

    Args:
        model: builds the model; the same node that trained it.
        checkpoint: a checkpoint, or a folder of them (the newest whole one is taken), here or in an object store; or a
            folder of a pretrained video model as diffusers writes it. None draws with untrained weights of the run's
            seed, which is what a trained model has to beat. Matrices that begin at zero are drawn, too: an output of
            zeros would be a grey picture, and no opponent.
        weights: the running average, or the raw weights; a pretrained folder has one kind.
        pipeline: how a model's outputs become pixels.
        prompts: what to draw.
        num_frames: frames of a video.
        height_px: height of a video.
        width_px: width of a video.
        fps: frames a second.
        batch_size: videos drawn at once; changes the speed, not the videos.
        given_frames: how many frames of a prompt's clip the video goes on from, its last ones; a picture is one.
        base: folder of the pretrained pipeline that other keys of the recipe name as ${base}, so that it is given once.
        random_base: family of the tiny random pipeline that is written to `base` where that lies in the run's own
            folder, as under `--overlay smoke`: to try a recipe without weights.
        adapters: low-rank adapters beside the weights, by names of your own; what they add is added up.
    """

    def __init__(
        self, *, model: Factory[[], nn.Module], checkpoint: Place | None, weights: Literal["ema", "model"] = "ema",
        pipeline: TextToVideo, prompts: Prompts, num_frames: int, height_px: int, width_px: int, fps: float,
        batch_size: int = 8, given_frames: PixelFrames = PixelFrames(1), base: Path | None = None,
        random_base: Family | None = None, adapters: Mapping[str, AdapterFile] | None = None,
    ) -> None:  # fmt: skip
        require_between(1, MOST_FRAMES, num_frames=num_frames, batch_size=batch_size)
        require_between(1, MOST_SIDE_PX, height_px=height_px, width_px=width_px)
        require_between(1, num_frames, given_frames=given_frames.count)
        self.model, self.weights = model, weights
        self.checkpoint = None if checkpoint is None else place(checkpoint)
        self.pipeline, self.prompts, self.batch_size = pipeline, prompts, batch_size
        self.num_frames, self.height_px, self.width_px, self.fps = num_frames, height_px, width_px, frame_rate(fps)
        self.given_frames, self.base, self.adapters = given_frames, base, dict(adapters or {})
        self.random_base: Family | None = random_base

    def run(self, run: Run) -> Outcome:
        """Draw what is missing, then the grid and the list."""
        prepare_base(self.base, self.random_base, run.folder)
        prompts = self.prompts.prompts()
        folder = run.folder / "samples"
        folder.mkdir(parents=True, exist_ok=True)
        missing = [(i, prompt) for i, prompt in enumerate(prompts) if not self._file(folder, i).is_file()]
        if missing:
            self._draw(missing, folder, run.seed)
        videos = np.stack([read_all(self._file(folder, i)) for i in range(len(prompts))])
        write_grid(run.folder / "grid", videos, self.fps)
        write_json(run.folder / "samples.json", [self._entry(i, p, folder, run) for i, p in enumerate(prompts)])
        return Outcome(f"drew {len(missing)} of {len(prompts)} videos into {folder}", {"videos": len(prompts)})

    def rounds(self) -> int:
        """See `ShardedJob`."""
        return 1

    def run_part(self, run: Run, part: JobShard) -> Outcome:
        """See `ShardedJob`: every `part.count`-th batch, since what a video becomes may depend on its batch."""
        prepare_base(self.base, self.random_base, run.folder)
        folder = run.folder / "samples"
        folder.mkdir(parents=True, exist_ok=True)
        groups = list(_groups(list(enumerate(self.prompts.prompts())), self.batch_size))[part.number :: part.count]
        missing = [(i, prompt) for group in groups for i, prompt in group if not self._file(folder, i).is_file()]
        if missing:
            self._draw(missing, folder, run.seed)
        return Outcome(f"drew {len(missing)} videos into {folder}", {"videos": len(missing)}, did_nothing=not missing)

    def _draw(self, missing: Sequence[tuple[int, Prompt]], folder: Path, seed: int) -> None:
        model = build_model(self.model, seed)
        if isinstance(self.checkpoint, Path) and transformer_in(self.checkpoint) is not None:
            load_pretrained(model, self.checkpoint)
        elif self.checkpoint is not None:
            with opened(self.checkpoint) as found:
                load_weights_into(model, load_weights(found.path, self.weights))
        else:
            _draw_zeros(model, seed)
        load_adapters(model, self.adapters)
        model.to(device()).eval()
        with log.bar("sampling", len(missing), unit="videos") as line:
            for group in _groups(missing, self.batch_size):
                self._draw_group(model, group, folder, seed)
                line.advance(len(group), group[-1][1].text)

    def _draw_group(self, model: nn.Module, group: Sequence[tuple[int, Prompt]], folder: Path, seed: int) -> None:
        video_BTHWC = self.pipeline.generate(
            model, [prompt.text for _, prompt in group], num_frames=self.num_frames, height=self.height_px,
            width=self.width_px, fps=self.fps, seed=seed, given=[self._given(prompt) for _, prompt in group],
        ).cpu().numpy()  # fmt: skip
        for (i, _), video_THWC in zip(group, video_BTHWC, strict=True):
            with atomic_path(self._file(folder, i)) as path:
                encode_mp4(path, video_THWC, self.fps, crf=10)
            with atomic_path(self._file(folder, i).with_suffix(".jpg")) as path:  # the report's poster
                Image.fromarray(video_THWC[len(video_THWC) // 2]).save(path, quality=90)

    def _given(self, prompt: Prompt) -> torch.Tensor | None:
        if prompt.given is None:
            return None
        frames = given_frames(prompt.given, self.given_frames, width=self.width_px, height=self.height_px)
        return torch.from_numpy(frames)

    @staticmethod
    def _file(folder: Path, index: int) -> Path:
        return folder / f"{index:03d}.mp4"

    def _entry(self, index: int, prompt: Prompt, folder: Path, run: Run) -> dict[str, object]:
        file = self._file(folder, index).relative_to(run.folder)
        return (
            {"index": index, "prompt": prompt.text, "file": str(file), "seed": run.seed}
            | {"attributes": asdict(prompt)["attributes"]}
            | ({"given": str(prompt.given)} if prompt.given else {})
        )


def _groups(items: Sequence[tuple[int, Prompt]], size: int) -> Iterator[Sequence[tuple[int, Prompt]]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _draw_zeros(model: nn.Module, seed: int) -> None:
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1 and not parameter.any():
            noise = torch.randn(parameter.shape, generator=generator(seed, "untrained", name))
            with torch.no_grad():
                parameter.copy_(noise / parameter.shape[1] ** 0.5)
