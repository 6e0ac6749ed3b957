"""Compares the CPU time of PyAV, decord and torchcodec for the frames that training takes of a video.

    python benchmarks/decoders.py [--quick] [--rounds N] [--json FILE]

Each video is read from memory, with one thread. `once` opens it, counts its packets and reads one window, which is what
a sample costs in training; decord and torchcodec also compare their first frame with PyAV's. `again` reads the window
once more from the open reader, which leaves these out. Readers take turns within every round of one process, and the
time is its user and system time, which other work on the machine changes less, and for all alike. Figures are medians
of the rounds; pixels must agree within 2 of 255. A reader that is not installed, or that cannot read a codec, is left
out.
"""

import argparse
import io
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path

import av
import cv2
import numpy as np

from nemo_vfm.core.log import logger
from nemo_vfm.core.optional import available
from nemo_vfm.core.types.media_types import Decoder
from nemo_vfm.data.video.decode import VideoReader, open_video

READERS: tuple[Decoder, ...] = ("pyav", "decord", "torchcodec")


@dataclass(frozen=True, slots=True)
class Setting:
    """A video, and the frames that are read of it.

    Args:
        codec: FFmpeg's name of the encoder.
        width: pixels.
        height: pixels.
        num_frames: of the video, 24 a second.
        keyframe_every: frames.
        wanted: how many frames are read.
        stride: frames from one to the next; the window lies in the middle. 0 draws them from the whole video.
    """

    codec: str
    width: int
    height: int
    num_frames: int
    keyframe_every: int
    wanted: int
    stride: int

    @property
    def name(self) -> str:
        """How figures call it."""
        how = f"every {self.stride}" if self.stride else "anywhere"
        video = f"{self.codec} {self.width}x{self.height} {self.num_frames} frames, key every {self.keyframe_every}"
        return f"{video}: {self.wanted} {how}"

    def indices(self) -> list[int]:
        """The frames that are read."""
        if not self.stride:
            return sorted(np.random.default_rng(0).choice(self.num_frames, self.wanted, replace=False).tolist())
        first = (self.num_frames - (self.wanted - 1) * self.stride - 1) // 2
        return list(range(first, first + self.wanted * self.stride, self.stride))


SETTINGS = (
    Setting("libx264", 320, 192, 40, 40, 17, 1),
    Setting("libx264", 320, 192, 40, 40, 17, 2),
    Setting("libx264", 854, 480, 120, 48, 17, 1),
    Setting("libx264", 854, 480, 120, 48, 17, 3),
    Setting("libx264", 854, 480, 600, 250, 17, 3),
    Setting("libx264", 854, 480, 600, 250, 8, 60),
    Setting("libx264", 854, 480, 600, 24, 8, 60),
    Setting("libx264", 854, 480, 600, 250, 8, 0),
    Setting("libx264", 1280, 720, 240, 48, 33, 1),
    Setting("libx264", 1280, 720, 240, 12, 16, 15),
    Setting("libx264", 1920, 1080, 240, 48, 17, 3),
    Setting("libx264", 1920, 1080, 240, 12, 8, 30),
    Setting("libx265", 854, 480, 120, 48, 17, 3),
    Setting("libvpx-vp9", 854, 480, 120, 48, 17, 3),
    Setting("libsvtav1", 854, 480, 120, 48, 17, 3),
)
QUICK = {"libx264": {"preset": "veryfast"}, "libx265": {"preset": "ultrafast", "x265-params": "log-level=error"},
         "libvpx-vp9": {"deadline": "realtime", "cpu-used": "8"}, "libsvtav1": {"preset": "12"}}  # fmt: skip


@cache
def video(setting: Setting) -> bytes:
    """An mp4 of smooth colours that move, under the fine grain of a camera."""
    rng, file = np.random.default_rng(0), io.BytesIO()
    size = setting.width, setting.height
    still = cv2.resize(rng.integers(0, 256, (12, 20, 3), dtype=np.uint8), size, interpolation=cv2.INTER_CUBIC)
    grain = rng.normal(0, 3, (*still.shape[:2], 1))
    with av.open(file, "w", format="mp4") as out:
        options = {"g": str(setting.keyframe_every), **QUICK[setting.codec]}
        stream = out.add_stream(setting.codec, rate=24, options=options)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        for step in range(setting.num_frames):
            moved = np.roll(still, 3 * step, 1) + np.roll(grain, (7 * step, 13 * step), (0, 1))
            picture = np.clip(moved, 0, 255).astype(np.uint8)
            out.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        out.mux(stream.encode(None))
    return file.getvalue()


def cpu_ms(work: Callable[[], object]) -> float:
    """User and system time of this process while it works."""
    before = time.process_time()
    work()
    return 1000 * (time.process_time() - before)


def once(data: bytes, indices: Sequence[int], reader: Decoder) -> np.ndarray:
    """Open, count, read, close."""
    with open_video(data, reader) as opened:
        opened.info()
        return opened.read(indices)


def measured(setting: Setting, readers: Sequence[Decoder], rounds: int) -> dict[str, dict[str, float]]:
    """Of each reader the two times in milliseconds."""
    data, indices = video(replace(setting, wanted=0, stride=0)), setting.indices()
    truth = once(data, indices, "pyav").astype(np.int16)
    usable = [reader for reader in readers if reads(data, indices, reader, truth)]
    opened: dict[Decoder, VideoReader] = {reader: open_video(data, reader) for reader in usable}
    for one in opened.values():
        one.read(indices)
    times: dict[Decoder, tuple[list[float], list[float]]] = {reader: ([], []) for reader in usable}
    repeats = max(1, round(50 / max(1.0, cpu_ms(lambda: once(data, indices, "pyav")))))
    for number in range(rounds):
        for place in range(len(usable)):
            reader = usable[(place + number) % len(usable)]
            whole = cpu_ms(lambda reader=reader: [once(data, indices, reader) for _ in range(repeats)])
            more = cpu_ms(lambda reader=reader: [opened[reader].read(indices) for _ in range(repeats)])
            times[reader][0].append(whole / repeats)
            times[reader][1].append(more / repeats)
    for one in opened.values():
        one.close()
    return {reader: {"once_ms": round(statistics.median(whole), 2), "again_ms": round(statistics.median(more), 2)}
            for reader, (whole, more) in times.items()}  # fmt: skip


def reads(data: bytes, indices: Sequence[int], reader: Decoder, truth: np.ndarray) -> bool:
    """Whether a reader takes the video, and is not replaced by PyAV; its pixels must be PyAV's."""
    with open_video(data, reader) as opened:
        pixels = opened.read(indices)
        furthest = int(np.abs(truth - pixels).max())
        assert furthest <= 2, f"{reader}: pixels differ by up to {furthest}"
        return reader == "pyav" or getattr(opened, "_reader", None) is not None


def main() -> None:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the first setting alone")
    parser.add_argument("--rounds", type=int, default=7, help="default 7")
    parser.add_argument("--json", type=Path, help="where the figures go")
    args = parser.parse_args()
    logger().setLevel("ERROR")
    cv2.setNumThreads(0)
    readers = [reader for reader in READERS if available({"pyav": "av"}.get(reader, reader))]
    print(", ".join(f"{name} {version(name)}" for name in ("av", *readers[1:])))
    figures = {}
    for setting in SETTINGS[: 1 if args.quick else None]:
        figures[setting.name] = found = measured(setting, readers, args.rounds)
        base = found["pyav"]
        shown = (f"{name} {one['once_ms']:.1f} / {one['again_ms']:.1f} ms ({one['once_ms'] / base['once_ms']:.2f} / "
                 f"{one['again_ms'] / base['again_ms']:.2f})" for name, one in found.items())  # fmt: skip
        print(f"{setting.name}\n    " + "; ".join(shown), flush=True)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
