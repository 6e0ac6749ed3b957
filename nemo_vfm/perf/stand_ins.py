"""Creates inputs without data, of about a given size, from the shapes of a model's inputs."""

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor

from nemo_vfm.core.types.model_cost import HasDummyInputs

Shapes = Mapping[str, tuple[int, ...]]


def fake_inputs(
    model: object, shapes: Shapes, rows: int, tokens: int, multiple: int = 1, part: float = 1.0
) -> tuple[dict[str, Tensor], int]:
    """What the model is called with, and how many tokens a sample of it has.

    Args:
        model: that says how small its samples can be.
        shapes: of real inputs.
        rows: samples.
        tokens: of each, about.
        multiple: which the tokens are of.
        part: take so much of the tokens.

    Raises:
        ValueError: inputs of which this does not know how they grow.
    """
    if "tokens_BS" in shapes:
        count = _round(tokens, multiple)
        words = torch.empty(rows, int(count * part), dtype=torch.int64)
        return {"tokens_BS": words, "labels_BS": torch.empty_like(words)}, count
    if "latents_BCTHW" not in shapes or not isinstance(model, HasDummyInputs):
        raise ValueError(
            f"what a step of {type(model).__name__} holds is known for inputs tokens_BS or latents_BCTHW, not "
            f"{sorted(shapes)}"
        )
    _, channels, frames, high, wide = model.small_inputs()["latents_BCTHW"]
    smallest = sample_tokens(model, model.small_inputs())
    times = _round(max(1, tokens // smallest), multiple)
    latents = torch.empty(rows, channels, frames, high, int(wide * times * part))
    text = torch.empty(rows, *shapes["text_BLD"][1:])
    return {
        "latents_BCTHW": latents, "text_BLD": text, "text_mask_BL": torch.empty(text.shape[:2], dtype=torch.bool),
        "noise_B": torch.empty(rows), "fps_B": torch.empty(rows),
    }, smallest * times  # fmt: skip


def sample_tokens(model: object, shapes: Shapes) -> int:
    """Tokens of one sample of inputs of these shapes; of packed ones, those of the pack.

    Raises:
        ValueError: neither text nor latents.
    """
    if "tokens_BS" in shapes:
        return shapes["tokens_BS"][1]
    patch = prod(getattr(model, "patch", (1, 1, 1)))
    if "latents_BCTHW" in shapes:
        return prod(shapes["latents_BCTHW"][2:]) // patch
    raise ValueError(f"there are neither tokens_BS nor latents_BCTHW among {sorted(shapes)}")


def _round(size: int, multiple: int) -> int:
    return max(1, size // multiple) * multiple
