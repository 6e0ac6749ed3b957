"""Concatenates batches of latents of any shapes into one packed batch of all their samples.

Shape letters: B batch, L text tokens, X positions, C channels.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.latent_rows import rows_of
from nemo_vfm.core.types.sample_batches import PackedBatch, VideoBatch


def side_by_side(index: int, parts: Sequence[VideoBatch]) -> PackedBatch:
    """The samples of all parts, in their order; texts take the length of the longest, hidden by their masks.

    Raises:
        UserError: a part holds no latents, others of another number of channels, or only some have embedded texts.
    """
    latents = [part.latents_BCTHW for part in parts if part.latents_BCTHW is not None]
    if len(latents) < len(parts):
        raise UserError("packing needs cached latents; run the encode step on these shards first")
    if len({one.shape[1] for one in latents}) > 1:
        raise UserError(f"samples of {sorted({one.shape[1] for one in latents})} channels cannot share a pack")
    text_BLD, mask_BL = _texts(parts)
    return PackedBatch(
        index=index,
        keys=tuple(key for part in parts for key in part.keys),
        captions=tuple(caption for part in parts for caption in part.captions),
        weight_B=torch.cat([part.weight_B for part in parts]),
        fps_B=torch.cat([part.fps_B for part in parts]),
        text_BLD=text_BLD,
        text_mask_BL=mask_BL,
        labels=tuple(label for part in parts for label in part.labels),
        latents_XC=torch.cat([rows_of(one) for one in latents]),
        sizes_THW=tuple((one.shape[2], one.shape[3], one.shape[4]) for one in latents for _ in range(len(one))),
    )


def _texts(parts: Sequence[VideoBatch]) -> tuple[Tensor | None, Tensor | None]:
    pairs = [(p.text_BLD, p.text_mask_BL) for p in parts if p.text_BLD is not None and p.text_mask_BL is not None]
    if not pairs:
        return None, None
    if len(pairs) < len(parts):
        raise UserError(
            f"{len(pairs)} of {len(parts)} samples of a pack have embedded texts; embed all of them or none"
        )
    longest = max(text.shape[1] for text, _ in pairs)
    texts = [F.pad(text, (0, 0, 0, longest - text.shape[1])) for text, _ in pairs]
    return torch.cat(texts), torch.cat([F.pad(mask, (0, longest - mask.shape[1])) for _, mask in pairs])
