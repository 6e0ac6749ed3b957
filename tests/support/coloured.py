"""Writes shards of sixteen videos of a coloured square, four a colour, with given captions."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nemo_vfm.data.shards.shard_files import ShardWriter
from nemo_vfm.data.video.encode import encode_mp4

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (30, 40, 220), "yellow": (220, 215, 20)}
NAMES = [name for name in COLOURS for _ in range(4)]


def coloured_shards(folder: Path, captions: Sequence[str]) -> Path:
    """The n-th film has the colour NAMES[n] and the n-th caption."""
    random = np.random.default_rng(0)
    with ShardWriter(folder) as writer:
        for number, (name, caption) in enumerate(zip(NAMES, captions, strict=True)):
            frames = np.full((6, 48, 64, 3), random.integers(90, 130), np.uint8)
            frames[:, 8:40, 8:50] = COLOURS[name]
            film = io.BytesIO()
            encode_mp4(film, frames, 12, preset="veryfast")
            writer.write(f"{number:032x}", {"mp4": film.getvalue(), "txt": caption.encode()}, {"caption": caption})
    return folder
