"""Packs samples into sequences within a budget of tokens, and lays their latents side by side.

A pack is one sequence of samples of any resolution and length, for attention over variable lengths. Packs are planned
window by window. The next `lookahead` samples are sorted by length, and each goes into the first pack with room
(first-fit-decreasing). So a window's packs depend only on the lengths in that window.

Shape letters: B batch, L text tokens, X positions, C channels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.latent_rows import pack_latents
from nemo_vfm.core.types.sample_batches import PackedBatch, VideoBatch

LOOKAHEAD = 4096  # samples: the last pack of a window stays as full as it is, so a window should give many packs


@dataclass(frozen=True, slots=True)
class Pack:
    """Samples side by side in one sequence."""

    samples: tuple[int, ...]  #: their positions in the list of lengths, in the list's order
    lengths: tuple[int, ...]  #: tokens of each


@dataclass(frozen=True, slots=True)
class PackingStats:
    """How well packs are filled."""

    num_packs: int  #: how many there are
    tokens: int  #: of all samples
    efficiency: float  #: tokens over packs times budget, above 0 and at most 1


def pack(lengths: Sequence[int], budget: int, *, lookahead: int = LOOKAHEAD) -> list[Pack]:
    """Packs in the order of their first samples; every sample lies in exactly one.

    Args:
        lengths: tokens of each sample, at least 1.
        budget: tokens of a sequence.
        lookahead: samples that are planned together; more fill packs better.

    Raises:
        ValueError: a sample is longer than the budget, or a number is below 1.
    """
    if min(budget, lookahead, *lengths, 1) < 1:
        raise ValueError(f"lengths, budget ({budget}) and lookahead ({lookahead}) must be at least 1")
    if lengths and max(lengths) > budget:
        where = lengths.index(max(lengths))
        raise ValueError(f"sample {where} has {lengths[where]} tokens: more than the {budget} of a pack")
    found: list[Pack] = []
    for first in range(0, len(lengths), lookahead):
        window, bins = range(first, min(first + lookahead, len(lengths))), list[list[int]]()
        # No two neighbours could share one bin, or the second's samples had fitted into the first.
        total = sum(lengths[first : first + lookahead])
        rooms = _Rooms(min(len(window), 2 * total // budget + 2), budget)
        for place in sorted(window, key=lambda place: (-lengths[place], place)):
            which = rooms.take(lengths[place])
            if which == len(bins):
                bins.append([])
            bins[which].append(place)
        groups = sorted(map(sorted, bins))
        found += [Pack(tuple(group), tuple(lengths[place] for place in group)) for group in groups]
    return found


def measure_packing(packs: Sequence[Pack], budget: int) -> PackingStats:
    """How well the budget is used."""
    tokens = sum(sum(pack.lengths) for pack in packs)
    return PackingStats(len(packs), tokens, tokens / (budget * len(packs)) if packs else 1.0)


class _Rooms:
    """What is left in each bin, kept as a tree of maxima: a look at every bin would be quadratic.

    Node n has the children 2n and 2n + 1, the leaves are the bins, those that are not begun yet included.
    """

    def __init__(self, max_bins: int, budget: int) -> None:
        self._leaves = 1 << max(max_bins - 1, 0).bit_length()
        self._most = [budget] * (2 * self._leaves)

    def take(self, length: int) -> int:
        """The first bin with so much room, which is taken from it."""
        most, node = self._most, 1
        while node < self._leaves:
            node *= 2
            node += most[node] < length
        bin_ = node - self._leaves
        most[node] -= length
        while node > 1:
            node //= 2
            room = max(most[2 * node], most[2 * node + 1])
            if room == most[node]:
                break
            most[node] = room
        return bin_


def side_by_side(index: int, parts: Sequence[VideoBatch]) -> PackedBatch:
    """The samples of all parts, in their order; texts take the length of the longest, hidden by their masks."""
    latents = [part.latents_BCTHW for part in parts if part.latents_BCTHW is not None]
    if len(latents) < len(parts):
        raise UserError("packing needs cached latents; run the encode step on these shards first")
    if len({one.shape[1] for one in latents}) > 1:
        raise UserError(f"samples of {sorted({one.shape[1] for one in latents})} channels cannot share a pack")
    pairs = [(p.text_BLD, p.text_mask_BL) for p in parts if p.text_BLD is not None and p.text_mask_BL is not None]
    if 0 < len(pairs) < len(parts):
        raise UserError(
            f"{len(pairs)} of {len(parts)} samples of a pack have embedded texts; embed all of them or none"
        )
    longest = max((text.shape[1] for text, _ in pairs), default=0)
    texts = [F.pad(text, (0, 0, 0, longest - text.shape[1])) for text, _ in pairs]
    masks = [F.pad(mask, (0, longest - mask.shape[1])) for _, mask in pairs]
    return PackedBatch(
        index=index,
        keys=tuple(key for part in parts for key in part.keys),
        captions=tuple(caption for part in parts for caption in part.captions),
        weight_B=torch.cat([part.weight_B for part in parts]),
        fps_B=torch.cat([part.fps_B for part in parts]),
        text_BLD=torch.cat(texts) if texts else None,
        text_mask_BL=torch.cat(masks) if masks else None,
        labels=tuple(label for part in parts for label in part.labels),
        members={name: torch.cat([part.members[name] for part in parts]) for name in parts[0].members},
        latents_XC=torch.cat([pack_latents(one) for one in latents]),
        sizes_THW=tuple((one.shape[2], one.shape[3], one.shape[4]) for one in latents for _ in range(len(one))),
    )
