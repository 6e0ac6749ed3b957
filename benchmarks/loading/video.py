"""Compares the throughput of our loader with webdataset and decord on shards of mp4 clips, in wall and CPU time.

Clips of 320x192, 40 frames, 16 fps, H.264. Both sides give the same 17 frames of each at 8 fps, scaled and cut to
160x96, in batches of 4 from 2 worker processes; pixels agree within 2 of 255. webdataset's side decodes with
decord.VideoReader on the member's bytes (PyAV where decord has no build), resizes with cv2 and stacks: what a plain
script does, and no more. Ours also counts the packets of each clip, to detect a file that is shorter than it says. In
wall time, the first 8 batches do not count; CPU seconds are those of the workers, from start to end. On a machine that
is busy with other things wall time favours decord, which decodes in two more threads.
"""

import gc
import io
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import cv2
import numpy as np
import torch
import webdataset
from torch import Tensor

from nemo_vfm.core.optional import available
from nemo_vfm.data.batching.bucket import Bucket, Buckets
from nemo_vfm.data.shards.shard_files import ShardWriter
from nemo_vfm.data.sources.shard_data import ShardData
from nemo_vfm.data.video.encode import encode_mp4

WIDTH, HEIGHT, FRAMES, FPS = 320, 192, 40, 16.0
OUT_WIDTH, OUT_HEIGHT, OUT_FRAMES, OUT_FPS = 160, 96, 17, 8.0
BATCH, WORKERS, AHEAD, SHARD = 4, 2, 4, 16
SKIPPED = WORKERS * AHEAD
Side = Callable[[Path], Iterator[tuple[Tensor, list[str]]]]


def write(folder: Path, num_clips: int) -> None:
    """Shards of smooth colours that move."""
    rng = np.random.default_rng(0)
    with ShardWriter(folder, samples_per_shard=SHARD) as writer:
        for number in range(num_clips):
            still = cv2.resize(rng.integers(0, 256, (12, 20, 3), dtype=np.uint8), (WIDTH, HEIGHT))
            frames = np.stack([np.roll(still, 3 * step, 1) for step in range(FRAMES)])
            file = io.BytesIO()
            encode_mp4(file, frames, FPS, preset="veryfast")
            facts = {"width": WIDTH, "height": HEIGHT, "num_frames": FRAMES, "fps": FPS, "caption": f"clip {number}"}
            writer.write(f"clip-{number:06d}", {"mp4": file.getvalue(), "txt": facts["caption"].encode()}, facts)


def ours(folder: Path) -> Iterator[tuple[Tensor, list[str]]]:
    """Batches without end."""
    bucket = Bucket(width=OUT_WIDTH, height=OUT_HEIGHT, num_frames=OUT_FRAMES, fps=OUT_FPS)
    data = ShardData(shards=folder, batch_size=BATCH, num_workers=WORKERS, buckets=Buckets(buckets={"one": bucket}))
    data.start(seed=0, first_batch=0)
    for batch in data.train_dataloader():
        yield batch.video_BCTHW, list(batch.captions)


def peer(folder: Path) -> Iterator[tuple[Tensor, list[str]]]:
    """The same from webdataset."""
    urls = [str(path) for path in sorted(folder.glob("*.tar"))]
    dataset = webdataset.WebDataset(urls, shardshuffle=False).to_tuple("mp4", "txt").map(_decoded).repeat()
    loader = webdataset.WebLoader(dataset.batched(BATCH), batch_size=None, num_workers=WORKERS, prefetch_factor=AHEAD,
                                  worker_init_fn=_one_thread)  # fmt: skip
    yield from loader


def _one_thread(worker: int) -> None:
    cv2.setNumThreads(0)
    torch.set_num_threads(1)


def _decoded(sample: tuple[bytes, bytes]) -> tuple[Tensor, str]:
    stride = FPS / OUT_FPS
    first = (FRAMES - 1 - round((OUT_FRAMES - 1) * stride)) // 2
    frames = _frames(sample[0], [first + round(step * stride) for step in range(OUT_FRAMES)])
    small = np.stack([cv2.resize(frame, (OUT_WIDTH, OUT_HEIGHT), interpolation=cv2.INTER_AREA) for frame in frames])
    return torch.from_numpy(np.ascontiguousarray(small.transpose(3, 0, 1, 2))), sample[1].decode()


def _frames(data: bytes, numbers: list[int]) -> np.ndarray:
    if available("decord"):
        import decord

        return decord.VideoReader(io.BytesIO(data), num_threads=1).get_batch(numbers).asnumpy()
    import av

    with av.open(io.BytesIO(data)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    return np.stack([frames[number] for number in numbers])


def content(batches: Iterator[tuple[Tensor, list[str]]], num_clips: int) -> dict[str, Tensor]:
    """Caption -> pixels, of one epoch."""
    found = {}
    for videos, captions in islice(batches, num_clips // BATCH):
        assert videos.shape[1:] == (3, OUT_FRAMES, OUT_HEIGHT, OUT_WIDTH) and videos.dtype == torch.uint8
        found |= dict(zip(captions, videos.clone(), strict=True))
    batches.close()
    return found


def timed(side: Side, folder: Path, num_batches: int) -> tuple[float, float]:
    """Clips a second after the first batches, and CPU seconds of the workers for all."""
    gc.collect()
    before, batches = _cpu_s(), side(folder)
    for _ in islice(batches, SKIPPED):
        pass
    start = time.perf_counter()
    given = sum(len(captions) for _, captions in islice(batches, num_batches))
    taken = time.perf_counter() - start
    batches.close()
    gc.collect()  # the workers end with their loader
    return given / taken, _cpu_s() - before


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(folder: Path, num_clips: int, rounds: int) -> dict[str, float]:
    """The ratio; its inputs are printed."""
    write(folder, num_clips)
    mine, theirs = content(ours(folder), num_clips), content(peer(folder), num_clips)
    assert len(mine) == num_clips and mine.keys() == theirs.keys(), "the two sides give other clips"
    furthest = max(int((mine[name].int() - theirs[name].int()).abs().max()) for name in mine)
    assert furthest <= 2, f"pixels differ by up to {furthest}"
    print(f"both sides give the same {num_clips} clips, pixels within {furthest} of 255")
    clock, cpu = [], []
    for number in range(rounds):
        (mine_per_s, mine_cpu_s), (theirs_per_s, theirs_cpu_s) = (timed(side, folder, 12) for side in (ours, peer))
        clock.append(mine_per_s / theirs_per_s)
        cpu.append(theirs_cpu_s / mine_cpu_s)
        print(
            f"round {number + 1}: ours {mine_per_s:5.0f} clips/s, webdataset {theirs_per_s:5.0f} clips/s, "
            f"ratio {clock[-1]:.2f}; by CPU seconds {cpu[-1]:.2f}"
        )
    return {"video_clips_per_s_ratio": statistics.median(clock), "video_clips_per_cpu_s_ratio": statistics.median(cpu)}
