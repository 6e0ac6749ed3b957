"""Compares the throughput of our loader with megatron-energon's on the same shards, once both run.

Energon reads the folder that `write_energon_meta` prepared: CrudeWebdataset, a cooker that loads the safetensors, no
decoder, no shuffle buffer, 2 worker processes that prefetch 4 batches each, in batches of 32 stacked in the workers.
Timing begins at the ninth batch, after all prefetched batches, so that starting does not count.
"""

import gc
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import torch
from loading.latents import AHEAD, BATCH, LATENTS, TEXT, WORKERS, Arrays, content, ours
from safetensors.torch import load

from nemo_vfm.data.shards.energon_index import write_energon_meta

SKIPPED = AHEAD * WORKERS


def peer(folder: Path, num_samples: int) -> Iterator[Arrays]:
    """One epoch of energon's."""
    from megatron.energon import Cooker, DefaultTaskEncoder, WorkerConfig, get_loader, get_train_dataset, stateless

    @stateless
    def cook(sample: dict[str, bytes]) -> dict[str, object]:
        text = load(sample[TEXT])
        return {"__key__": sample["__key__"], "__restore_key__": sample["__restore_key__"],
                "latents": load(sample[LATENTS])["latents"], **text, "caption": sample["txt"].decode()}  # fmt: skip

    class Encoder(DefaultTaskEncoder):
        decoder = None
        cookers = (Cooker(cook),)

        def batch(self, samples: list[dict[str, object]]) -> dict[str, object]:
            stacked = {name: torch.stack([s[name] for s in samples]) for name in ("latents", "text", "mask")}
            return {**stacked, "captions": [sample["caption"] for sample in samples]}

    dataset = get_train_dataset(
        folder, batch_size=BATCH, worker_config=WorkerConfig(rank=0, world_size=1, num_workers=WORKERS),
        task_encoder=Encoder(), shuffle_buffer_size=None, max_samples_per_sequence=None, repeat=False,
    )  # fmt: skip
    for batch in get_loader(dataset, prefetch_factor=AHEAD):
        yield batch["latents"], batch["text"], batch["mask"], batch["captions"]


def steady(batches: Callable[[Path, int], Iterator[Arrays]], folder: Path, num_samples: int) -> float:
    """Samples a second after the first batches."""
    gc.collect()
    running = batches(folder, num_samples)
    for _ in islice(running, SKIPPED):
        pass
    start = time.perf_counter()
    given = sum(len(captions) for _, _, _, captions in running)
    assert given == num_samples - SKIPPED * BATCH, f"{given} of {num_samples} samples"
    return given / (time.perf_counter() - start)


def measure(folder: Path, num_samples: int, rounds: int) -> dict[str, float]:
    """The ratio; its inputs are printed."""
    warnings.filterwarnings("ignore", message=".*pin_memory.*")
    write_energon_meta(folder)
    assert content(ours(folder, num_samples)) == content(peer(folder, num_samples)), "the two sides give other samples"
    ratios = []
    for number in range(rounds):
        mine, theirs = steady(ours, folder, num_samples), steady(peer, folder, num_samples)
        ratios.append(mine / theirs)
        print(f"round {number + 1}: ours {mine:6.0f}/s, energon {theirs:6.0f}/s, steady, ratio {ratios[-1]:.2f}")
    return {"energon_samples_per_s_ratio": statistics.median(ratios)}
