"""Finds the shapes of one training sample, and names the source that says so.

The data that a recipe names may not be on this machine. So the first of these that names a size wins: the command
line, the data's buckets or sequence length, the recipe's first comment ("latents of 32 x 96 x 96").
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.training_data import ResumablePhases

if TYPE_CHECKING:
    from torch import nn

    from nemo_vfm.train.job import Train

_LATENTS = re.compile(r"latents of (\d+) x (\d+) x (\d+)")
_TEXT = (512, 1024)  # the shape of a T5-11B's, where the text encoder cannot say


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample as a model gets it.

    Args:
        inputs: shapes, with a batch of one.
        tokens: that it makes.
        frames: latent frames of it; None of a text.
        source: who says so.
    """

    inputs: Mapping[str, tuple[int, ...]]
    tokens: int
    frames: int | None
    source: str


def sample_of(job: "Train", model: "nn.Module", recipe: Path, *, latents: str | None, tokens: int | None) -> Sample:
    """What a sample of this training looks like.

    Args:
        latents: what the user says: frames, rows and columns, with commas between.
        tokens: likewise, of a text.

    Raises:
        UserError: nobody says.
    """
    from nemo_vfm.models.gpt import GPT

    return _text(job, tokens) if isinstance(model, GPT) else _video(job, model, recipe, latents)


def _text(job: "Train", tokens: int | None) -> Sample:
    source = "the command line"
    if tokens is None and isinstance(job.data, ResumablePhases):
        tokens, source = job.data.tokens_per_sample(), "the recipe's data"
    if tokens is None:
        raise UserError("the recipe does not define the length of its sequences; give --tokens, such as --tokens 4096")
    return Sample({"tokens_BS": (1, tokens)}, tokens, None, source)


def _video(job: "Train", model: "nn.Module", recipe: Path, latents: str | None) -> Sample:
    channels, patch = getattr(model, "in_channels", 0), getattr(model, "patch", (1, 1, 1))
    frames, rows, columns, source = _latents(job, recipe, latents)
    tokens = (frames // patch[0]) * (rows // patch[1]) * (columns // patch[2])
    inputs = {"latents_BCTHW": (1, channels, frames, rows, columns), "text_BLD": (1, *_text_shape(job, model))}
    return Sample(inputs, tokens, frames // patch[0], source)


def _latents(job: "Train", recipe: Path, latents: str | None) -> tuple[int, int, int, str]:
    if latents is not None:
        sizes = re.fullmatch(r"(\d+),(\d+),(\d+)", latents)
        if sizes is None:
            raise UserError(f"--latents takes frames, rows and columns, such as 32,96,96; got {latents!r}")
        return int(sizes[1]), int(sizes[2]), int(sizes[3]), "the command line"
    if (largest := _largest_bucket(job)) is not None:
        return *largest, "the largest of the recipe's buckets"
    if sizes := _LATENTS.search(re.sub(r"[\s#]+", " ", recipe.read_text(encoding="utf-8"))):
        return int(sizes[1]), int(sizes[2]), int(sizes[3]), "the recipe's first lines"
    raise UserError(
        "the recipe does not define the size of its videos; give their latents' frames, rows and columns, such as "
        "--latents 32,96,96"
    )


def _largest_bucket(job: "Train") -> tuple[int, int, int] | None:
    buckets = getattr(job.data, "buckets", None)
    codec = getattr(job.task, "codec", None)
    if buckets is None or codec is None:
        return None
    try:
        shapes = [codec.latent_shape(one.num_frames, one.height, one.width)[1:] for one in buckets.buckets.values()]
    except (UserError, OSError):  # a codec whose folder is given later
        return None
    found: tuple[int, int, int] = max(shapes, key=lambda shape: shape[0] * shape[1] * shape[2])
    return found


def _text_shape(job: "Train", model: "nn.Module") -> tuple[int, int]:
    encoder = getattr(job.task, "text_encoder", None)
    try:
        shape: tuple[int, int] = encoder.text_shape() if encoder is not None else _TEXT
    except (UserError, OSError):  # an encoder whose folder is given later
        shape = _TEXT
    return shape[0], getattr(model, "text_dim", shape[1])
