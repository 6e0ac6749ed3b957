"""Trains a scorer to rate, to sort or to recognise: the losses, and the prediction for each frame.

`Train` trains a scorer with these tasks and stages predict through them, so a scorer is used as it was trained.
Shape letters: B batch, C channels, T frames, H height, W width, K numbers a frame, D width of a feature.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.log import warn_once
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.sample_batches import VideoBatch
from nemo_vfm.core.types.task import ModelInputs

_Known = Mapping[str, float | str]


class Rate:
    """Regression: the mean over a clip's frames should equal the clip's label.

    Args:
        label: the number's name in the shards' index or json (there also among the scores); a sample without it, or
            with one that is no finite number, is left out.
    """

    def __init__(self, *, label: str) -> None:
        self.label = label

    def prepare(self, batch: Batch, *, seed: int, training: bool) -> ModelInputs:
        """Pixels for the scorer; the label as the target in training and validation, where there is one."""
        return _prepare(batch, self.label, lambda known: _number(known.get(self.label)))

    def losses(self, output: Tensor, prepared: ModelInputs) -> Tensor:
        """Squared errors, (B,)."""
        return (output[..., 0].mean(dim=1) - prepared.targets["label"]).square()

    def predict(self, output: Tensor, prepared: ModelInputs) -> Tensor:
        """Scores, (B, T, 1)."""
        return output


class Sort:
    """Classification: one class for a clip, from the mean of its frames' logits.

    Args:
        label: the class's name in the shards' index or json; a sample without a known class is left out.
        classes: their names, in the order of the head's outputs.
    """

    def __init__(self, *, label: str, classes: Sequence[str]) -> None:
        if len(classes) < 2 or len(set(classes)) < len(classes):
            raise ValueError(f"classes must be at least two different names, got {list(classes)}")
        self.label, self.classes = label, tuple(classes)

    def names(self) -> Sequence[str]:
        """The classes, in the order of the outputs."""
        return self.classes

    def prepare(self, batch: Batch, *, seed: int, training: bool) -> ModelInputs:
        """Pixels for the scorer; the number of the class as the target."""
        places = {name: float(place) for place, name in enumerate(self.classes)}
        return _prepare(batch, self.label, lambda known: places.get(str(known.get(self.label))))

    def losses(self, output: Tensor, prepared: ModelInputs) -> Tensor:
        """Cross entropy, (B,)."""
        return functional.cross_entropy(output.mean(dim=1), prepared.targets["label"].long(), reduction="none")

    def predict(self, output: Tensor, prepared: ModelInputs) -> Tensor:
        """Probabilities, (B, T, K)."""
        return output.softmax(dim=-1)


class Recognise:
    """Two halves of a clip are to be more alike than two clips: InfoNCE (1807.03748, equation 4), no labels needed.

    Args:
        temperature: of the softmax over the other clips of the batch.
    """

    def __init__(self, *, temperature: float = 0.1) -> None:
        if temperature <= 0:
            raise ValueError(f"temperature must be above 0, got {temperature}")
        self.temperature = temperature

    def prepare(self, batch: Batch, *, seed: int, training: bool) -> ModelInputs:
        """Pixels for the encoder."""
        return ModelInputs({"video_BCTHW": _pixels(batch)[1]}, {}, batch.weight_B)

    def losses(self, output: Tensor, prepared: ModelInputs) -> Tensor:
        """Of finding the second half of each clip among those of the batch, (B,)."""
        if output.shape[1] < 2:
            raise UserError("clips of one frame cannot be split in two; give a bucket with at least 2 frames")
        middle = output.shape[1] // 2
        unit = functional.normalize(output, dim=-1)
        halves = (unit[:, :middle], unit[:, middle:])
        first, second = (functional.normalize(half.mean(dim=1), dim=-1) for half in halves)
        logits_BB = first @ second.T / self.temperature
        return functional.cross_entropy(logits_BB, torch.arange(len(logits_BB), device=output.device), reduction="none")

    def predict(self, output: Tensor, prepared: ModelInputs) -> Tensor:
        """Features of length 1, (B, T, D)."""
        return functional.normalize(output, dim=-1)


def _pixels(batch: Batch) -> tuple[VideoBatch, Tensor]:
    if not isinstance(batch, VideoBatch) or batch.video_BCTHW is None:
        raise UserError("a scorer needs pixels, but these shards hold none; use shards of clips, and set buckets")
    return batch, batch.video_BCTHW


def _number(value: float | str | None) -> float | None:
    return None if value is None or isinstance(value, str) or not math.isfinite(value) else float(value)


def _prepare(batch: Batch, label: str, number: Callable[[_Known], float | None]) -> ModelInputs:
    """The label as the target; weight 0 where there is none. Without any labels (in a stage) it only predicts."""
    videos, pixels = _pixels(batch)
    weight_B = videos.weight_B
    if not (found := [number(known) for known in videos.labels]):
        return ModelInputs({"video_BCTHW": pixels}, {}, weight_B)
    lacking = [key for key, value in zip(batch.keys, found, strict=True) if value is None]
    if len(lacking) == len(found):
        there = sorted({name for known in videos.labels for name in known})
        raise UserError(
            f"none of the samples {', '.join(lacking[:4])} has a usable label {label!r}; its labels are {there}"
        )
    if lacking:
        warn_once(f"samples without a usable label {label!r}, such as {lacking[0]}, are left out of training")
    here = torch.tensor([value is not None for value in found], device=weight_B.device)
    targets = torch.tensor([0.0 if value is None else value for value in found], device=weight_B.device)
    return ModelInputs({"video_BCTHW": pixels}, {"label": targets}, weight_B * here)
