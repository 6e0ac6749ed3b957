"""Makes small real clips and shards for the tests of this folder."""

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save

from nemo_vfm.data.shards.shard_files import ShardWriter
from nemo_vfm.data.video.encode import encode_mp4

LatentShards = Callable[..., Path]


def actions(number: int) -> dict[str, bytes]:
    return {"actions.safetensors": save({"actions": torch.full((3, 2), number + 0.5)})}


def moving(num_frames: int, height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    """(T, H, W, 3): smooth random colours that move two pixels a frame."""
    rng = np.random.default_rng(seed)
    still = cv2.resize(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8), (width, height), interpolation=cv2.INTER_CUBIC)
    return np.stack([np.roll(still, 2 * t, 1) for t in range(num_frames)]).astype(np.uint8)


def mp4(num_frames: int = 12, height: int = 64, width: int = 80, fps: float = 8, seed: int = 0) -> bytes:
    """An encoded clip of `moving`."""
    file = io.BytesIO()
    encode_mp4(file, moving(num_frames, height, width, seed), fps, preset="veryfast")
    return file.getvalue()


@pytest.fixture(scope="session")
def real_videos() -> Path:
    """The folder of real videos, where this machine has it."""
    folder = os.environ.get("NEMO_VFM_TEST_DATA")
    if not folder:
        pytest.skip("NEMO_VFM_TEST_DATA is not set")
    return Path(folder) / "videos"


@pytest.fixture
def latent_shards(tmp_path: Path) -> LatentShards:
    """Makes a folder of latent shards: `latent_shards(shapes, bad={position: bytes})`; `beside` gives more members."""

    def make(shapes: list[list[int]], bad: Any = None, name: str = "latents", beside: Any = lambda _: {}) -> Path:
        with ShardWriter(tmp_path / name, samples_per_shard=5) as writer:
            for number, shape in enumerate(shapes):
                latents = save({"latents": torch.full(shape, float(number))})
                text = save({"text": torch.full((3, 4), float(number)), "mask": torch.tensor([True, True, False])})
                facts = {"caption": f"caption {number}", "fps": 8.0 + number, "bucket": "square", "latent_shape": shape}
                members = {
                    "latents.safetensors": (bad or {}).get(number, latents),
                    "text.safetensors": text,
                    "txt": facts["caption"].encode(),
                    "json": json.dumps(facts).encode(),
                    **beside(number),
                }
                writer.write(f"{number:032x}", members, facts)
        return tmp_path / name

    return make
