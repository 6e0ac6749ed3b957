"""Compares the throughput of our loader with webdataset's on shards of latents, and times a resume.

Both give equal float32 latents (64 KiB a sample), text embeddings (8 KiB), masks and captions, in batches of 32, from
2 workers (ours: threads, webdataset's: processes) that prefetch 4 batches each. webdataset runs as its documentation
has it: WebDataset -> decode (safetensors.torch.load) -> to_tuple -> batched -> WebLoader(batch_size=None). It reads its
shards in order, without shuffling and without the json members, which is its quickest; ours shuffles over the epoch.
"""

import gc
import hashlib
import json
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import torch
import webdataset
from safetensors.torch import load, save
from torch import Tensor

from nemo_vfm.data.shards.shard_files import ShardWriter
from nemo_vfm.data.sources.shard_data import ShardData

LATENT_SHAPE, TEXT_SHAPE, BATCH, WORKERS, AHEAD, SHARD = (16, 4, 16, 16), (16, 128), 32, 2, 4, 128
LATENTS, TEXT = "latents.safetensors", "text.safetensors"

# latents, text, mask, captions
Arrays = tuple[Tensor, Tensor, Tensor, list[str]]


def write(folder: Path, num_samples: int) -> None:
    """Shards of random latents and texts."""
    generator = torch.Generator().manual_seed(0)
    with ShardWriter(folder, samples_per_shard=SHARD) as writer:
        for number in range(num_samples):
            caption = f"sample {number} of {num_samples}"
            latents = torch.randn(LATENT_SHAPE, generator=generator)
            text = torch.randn(TEXT_SHAPE, generator=generator)
            mask = torch.arange(TEXT_SHAPE[0]) <= number % TEXT_SHAPE[0]
            writer.write(
                f"{number:032x}",
                {
                    LATENTS: save({"latents": latents}),
                    TEXT: save({"text": text, "mask": mask}),
                    "txt": caption.encode(),
                    "json": json.dumps({"caption": caption, "fps": 8.0}).encode(),
                },
                {"caption": caption, "fps": 8.0, "bucket": "square", "latent_shape": list(LATENT_SHAPE)},
            )


def ours(folder: Path, num_samples: int, first: int = 0) -> Iterator[Arrays]:
    """One epoch of ours."""
    data = ShardData(shards=folder, batch_size=BATCH, num_workers=WORKERS)
    data.start(seed=0, first_batch=first)
    for batch in islice(data.train_dataloader(), num_samples // BATCH):
        yield batch.latents_BCTHW, batch.text_BLD, batch.text_mask_BL, list(batch.captions)


def peer(folder: Path, num_samples: int) -> Iterator[Arrays]:
    """One epoch of webdataset's."""
    urls = [str(path) for path in sorted(folder.glob("*.tar"))]
    dataset = (
        webdataset.WebDataset(urls, shardshuffle=False, select_files=lambda name: not name.endswith(".json"))
        .decode(webdataset.handle_extension(f"{LATENTS} {TEXT}", load))
        .to_tuple(LATENTS, TEXT, "txt")
        .map(lambda sample: (sample[0]["latents"], sample[1]["text"], sample[1]["mask"], sample[2]))
        .batched(BATCH)
    )
    yield from webdataset.WebLoader(dataset, batch_size=None, num_workers=WORKERS, prefetch_factor=AHEAD)


def content(batches: Iterator[Arrays]) -> Counter[str]:
    """The multiset of samples, as hashes."""
    found: Counter[str] = Counter()
    for latents, text, mask, captions in batches:
        assert latents.dtype == text.dtype == torch.float32 and mask.dtype == torch.bool
        for row in range(len(captions)):
            data = b"".join(tensor[row].numpy().tobytes() for tensor in (latents, text, mask))
            found[hashlib.sha256(data + captions[row].encode()).hexdigest()] += 1
    return found


def time_epoch(batches: Callable[[Path, int], Iterator[Arrays]], folder: Path, num_samples: int) -> float:
    """Seconds from making the loader to the last batch; every batch is let go before the next, as in training."""
    gc.collect()
    start = time.perf_counter()
    given = sum(len(captions) for _, _, _, captions in batches(folder, num_samples))
    assert given == num_samples, f"{given} of {num_samples} samples"
    return time.perf_counter() - start


def time_first(folder: Path, num_samples: int, first: int) -> float:
    """Seconds from making our loader to its first batch."""
    gc.collect()
    start = time.perf_counter()
    batches = ours(folder, num_samples, first)
    next(batches)
    taken = time.perf_counter() - start
    batches.close()
    for thread in threading.enumerate():  # they finish their batches, in the time of whoever is measured next
        if thread.name.startswith("batches"):
            thread.join()
    return taken


def measure(folder: Path, num_samples: int, rounds: int) -> dict[str, float]:
    """All figures; the medians' inputs are printed."""
    assert content(ours(folder, num_samples)) == content(peer(folder, num_samples)), "the two sides give other samples"
    print(f"both sides give the same {num_samples} samples; {rounds} rounds")
    epochs, resumes = [], []
    for number in range(rounds):
        mine, theirs = time_epoch(ours, folder, num_samples), time_epoch(peer, folder, num_samples)
        cold, resumed = (time_first(folder, num_samples, first) for first in (0, num_samples * 9 // 10 // BATCH))
        epochs.append(theirs / mine)
        resumes.append(resumed / cold)
        print(
            f"round {number + 1}: ours {num_samples / mine:6.0f}/s, webdataset {num_samples / theirs:6.0f}/s, "
            f"ratio {epochs[-1]:.2f}; first batch {cold:.3f} s cold, {resumed:.3f} s at 90 %, ratio {resumes[-1]:.2f}"
        )
    return {"samples_per_s_ratio": statistics.median(epochs), "resume_ratio": statistics.median(resumes)}
