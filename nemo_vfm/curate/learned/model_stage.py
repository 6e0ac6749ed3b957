"""Runs a model on frames of clips of any size; a frame's result does not depend on the rest of the batch.

Shape letters: T frames, H height, W width, C colours, K numbers a frame.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.storage.files import sha256_text
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.media_types import Frames
from nemo_vfm.core.types.sample_batches import VideoBatch
from nemo_vfm.core.types.task import Predicts

if TYPE_CHECKING:
    from torch import nn

from nemo_vfm.curate.record.footage import ClipFrames

#: Loaded models by fingerprint, once a process: stages are sent between processes and hold settings only
_LOADED: "dict[str, nn.Module]" = {}


def per_second(num_frames: int, fps: float, rate: float, at_most: int) -> list[int]:
    """The same frames as `ClipFrames.per_second`, of a clip whose frames are elsewhere."""
    return ClipFrames(num_frames, fps, lambda numbers: np.empty((0, 0, 0, 3), np.uint8)).per_second(rate, at_most)


def evenly(num_frames: int, count: int) -> list[int]:
    """The same frames as `ClipFrames.evenly`."""
    return ClipFrames(num_frames, 1.0, lambda numbers: np.empty((0, 0, 0, 3), np.uint8)).evenly(count)


@runtime_checkable
class FingerprintedModule(Protocol):
    """A torch module that says what it was made of."""

    def fingerprint(self) -> str:
        """Changes whenever its first weights or its arithmetic would."""
        ...

    def is_whole(self) -> bool:
        """Whether all its first weights come from files, and none was drawn."""
        ...


class ModelStage:
    """A model and the task it is asked through.

    Args:
        model: builds the model.
        task: says what its output means.
        trained: a checkpoint of a training of this model, or a folder of them (the newest is taken); None takes the
            weights that the model is built with.
        batch_size: frames at once. Every batch has this size, padded where need be: so a frame meets the same kernels
            with the same shapes whoever is beside it. What is left are the last bits of a float32.
    """

    def __init__(
        self, *, model: Factory[[], FingerprintedModule], task: Predicts, trained: Path | None, batch_size: int
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; it must be at least 1")
        self.model, self.task, self.trained, self.batch_size = model, task, trained, batch_size
        self._fingerprint = ""

    def fingerprint(self) -> str:
        """The model's own, the task, and the bytes of the trained weights; batches do not count."""
        from nemo_vfm.models.pretrained import files_sha256
        from nemo_vfm.parallel.checkpoint.checkpoint import find

        if not self._fingerprint:
            built = self._measuring_module()
            settings = f"{type(self.task).__qualname__} {sorted(vars(self.task).items())}"
            trained = "" if self.trained is None else files_sha256(find(self.trained))
            self._fingerprint = sha256_text(f"{built.fingerprint()} {settings} {trained}")[:32]
        return self._fingerprint

    def load(self) -> None:
        """Build the model with its weights and put it on the device.

        Raises:
            UserError: part of it is drawn at random and no training is given: every score would be noise.
        """
        from nemo_vfm.core.device import device
        from nemo_vfm.parallel.apply.build_model import build_model
        from nemo_vfm.parallel.checkpoint.checkpoint import load_weights
        from nemo_vfm.parallel.checkpoint.checkpoint_reader import fill

        if self.fingerprint() in _LOADED:
            return
        if self.trained is None and not self._measuring_module().is_whole():
            raise UserError(
                "the scorer's head has no weights; give model.head, or `trained`, a checkpoint of its training"
            )
        model = build_model(cast("Factory[[], nn.Module]", self.model), seed=0)
        if self.trained is not None:
            fill(model.state_dict(), load_weights(self.trained, "model"))
        _LOADED[self.fingerprint()] = model.eval().to(device())

    def say(self, clips: Sequence[Frames]) -> list[NDArray[np.float32]]:
        """(T, K) of each clip. Frames of one size share batches, whichever clip they are of."""
        import torch

        from nemo_vfm.core.device import device
        from nemo_vfm.core.types.predict import predictions

        by_size: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        for number, frames_THWC in enumerate(clips):
            if not len(frames_THWC):
                raise ValueError(f"clip {number} is without a frame; a model needs at least one of each clip")
            by_size[frames_THWC.shape[1:]].append(number)
        outputs: dict[int, NDArray[np.float32]] = {}
        for numbers in by_size.values():
            self.load()
            frames_THWC, parts = np.concatenate([clips[number] for number in numbers]), []
            for first in range(0, len(frames_THWC), self.batch_size):
                part = frames_THWC[first : first + self.batch_size]
                padding = np.zeros((self.batch_size - len(part), *part.shape[1:]), np.uint8)
                pixels_BCHW = np.ascontiguousarray(np.concatenate([part, padding]).transpose(0, 3, 1, 2))
                pixels = torch.from_numpy(pixels_BCHW)[:, :, None]  # each frame is a sample of its own
                names, ones = ("",) * len(pixels), torch.ones(len(pixels))
                batch = VideoBatch(0, names, ones, names, ones, video_BCTHW=pixels).to(device())
                found = predictions(_LOADED[self.fingerprint()], self.task, batch)
                parts.append(found[: len(part), 0].cpu().numpy())
            values = np.concatenate(parts).astype(np.float32)
            borders = np.cumsum([len(clips[number]) for number in numbers])[:-1]
            outputs.update(zip(numbers, np.split(values, borders), strict=True))
        return [outputs[number] for number in range(len(clips))]

    def _measuring_module(self) -> FingerprintedModule:
        """The model without its weights."""
        import torch

        with torch.device("meta"):
            return self.model()
