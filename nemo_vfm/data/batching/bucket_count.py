"""Counts how many clips fall into each bucket, why others fit none, and what those lack."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.data.batching.bucket import Buckets

SCHEMA = "nemo_vfm.buckets/1"
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Shape:
    """What buckets ask of a clip."""

    key: str  #: the clip's id
    width: int  #: pixels
    height: int  #: pixels
    num_frames: int
    fps: float
    microseconds: int  #: how long it lasts


@dataclass(frozen=True, slots=True)
class Miss:
    """The bucket that a clip comes nearest to, and what it lacks there."""

    bucket: str | None  #: its name; None where no bucket is for such clips at all
    ratio: float = float("inf")  #: how many times more the clip would need of what it lacks most, above 1
    frames: int = 0  #: how many more frames it would need
    pixels: tuple[int, int] = (0, 0)  #: how many more pixels, of width and of height
    fps: float | None = None  #: the least frame rate it would need; None where its own is enough
    #: the share of its picture that would be cut away; None where that is no more than the bucket allows
    crop: float | None = None

    def __str__(self) -> str:
        """Such as `12 more frames`."""
        width, height = self.pixels
        parts = [
            *([f"{self.frames} more frame{'s' * (self.frames > 1)}"] if self.frames else []),
            *([f"{width} more pixels of width"] if width else []),
            *([f"{height} more pixels of height"] if height else []),
            *([f"{self.fps:g} frames per second"] if self.fps is not None else []),
            *([f"a max_crop of {math.ceil(self.crop * 100) / 100:g}"] if self.crop is not None else []),
        ]
        return " and ".join(parts) or "a bucket of its kind"


def nearest_miss(shape: Shape, buckets: Buckets) -> Miss:
    """Of a clip that fits no bucket, the one that asks least beyond what it has."""
    misses = []
    for name, bucket in buckets.buckets.items():
        if (bucket.num_frames == 1) != (shape.num_frames == 1):
            continue
        frames = bucket.frames_needed(shape.fps)
        slow = shape.num_frames > 1 and bucket.fps is not None and bucket.stride(shape.fps) < 1
        if slow:  # at its own rate it would be judged by too few frames: say what it needs once it is fast enough
            frames = bucket.num_frames
        ratios = [frames / shape.num_frames, bucket.width / shape.width, bucket.height / shape.height]
        ratios += [bucket.fps / shape.fps] if slow and bucket.fps is not None else []
        pixels = (max(0, bucket.width - shape.width), max(0, bucket.height - shape.height))
        crop = bucket.crop(shape.width + pixels[0], shape.height + pixels[1])
        ratios.append((1 - bucket.max_crop) / (1 - crop))
        fps, crop_needed = bucket.fps if slow else None, crop if crop > bucket.max_crop else None
        misses.append(Miss(name, max(ratios), max(0, frames - shape.num_frames), pixels, fps, crop_needed))
    return min(misses, key=_closeness, default=Miss(None))


def _closeness(miss: Miss) -> tuple[float, str]:
    return round(miss.ratio, 9), miss.bucket or ""


def count_buckets(shapes: Iterable[Shape], buckets: Buckets) -> Json:
    """buckets.json: `buckets`, `unbinned` by reason, and the clips that came nearest to fitting."""
    received: dict[str, list[Shape]] = {name: [] for name in buckets.buckets}
    left: dict[str, list[tuple[Shape, Miss]]] = {}
    for shape in shapes:
        assigned = buckets.assign(shape.width, shape.height, shape.num_frames, shape.fps)
        if assigned.bucket is not None:
            received[assigned.bucket].append(shape)
        else:
            left.setdefault(assigned.reason, []).append((shape, nearest_miss(shape, buckets)))
    unbinned: dict[str, Json] = {}
    for reason, misses in sorted(left.items()):
        nearest = Counter(miss.bucket for _, miss in misses if miss.bucket is not None)
        frames = sorted(miss.frames for _, miss in misses if miss.frames)
        unbinned[reason] = {
            **_amount([shape for shape, _ in misses]), "nearest": dict(sorted(nearest.items())),
            "more_frames": {"least": frames[0], "median": median(frames), "most": frames[-1]} if frames else None,
        }  # fmt: skip
    every = [(shape, miss, reason) for reason, misses in left.items() for shape, miss in misses]
    every.sort(key=lambda item: (*_closeness(item[1]), item[0].key))
    return {
        "schema": SCHEMA,
        "buckets": {name: _amount(found) for name, found in received.items()},
        "unbinned": unbinned,
        "nearest_misses": [
            {"clip_id": shape.key, "reason": reason, "bucket": miss.bucket, "needs": str(miss)}
            for shape, miss, reason in every[:_SHOWN]
        ],
    }


def _amount(shapes: Sequence[Shape]) -> Json:
    return {"clips": len(shapes), "seconds": sum(shape.microseconds for shape in shapes) / 1e6}


def buckets_line(counted: Json) -> str:
    """buckets.json in one line."""
    into = ", ".join(f"{amount['clips']} {name}" for name, amount in counted["buckets"].items() if amount["clips"])
    out = []
    for reason, found in counted["unbinned"].items():
        needed = ""
        if (short := found["more_frames"]) is not None:
            span = f"{short['least']}" if short["least"] == short["most"] else f"{short['least']} to {short['most']}"
            needed = f" ({span} more frames would suffice for the nearest)"
        out.append(f"{found['clips']} {reason}{needed}")
    return f"buckets: {into or 'all empty'}" + (f"; left out: {', '.join(out)}" if out else "")
