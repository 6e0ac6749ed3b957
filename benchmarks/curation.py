"""Compares our curation with a plain script of PySceneDetect, OpenCV and PyAV on the same videos.

    python benchmarks/curation.py [--quick] [--json FILE] [--rounds N]

score_ratio: seconds of video split and scored per second of processor time, ours over the script's. Both see frames of
the same size (short side 256), give each shot the same scores (flow of 16 pairs of neighbours, sharpness, brightness,
share of black and of frozen frames) and run on one thread. The script runs PySceneDetect's `detect` with its adaptive
detector at our settings. Then, shot by shot, it runs `cv2.VideoCapture`, which decodes all frames and converts only
those that are scored. Scores are compared on shots that both found: the script's own arithmetic on our frames must
agree within 1 %, and the scores of its own frames are printed beside.
end_to_end_ratio: the same, and then every shot encoded with x264 (same preset, crf, one thread), ours as the whole job
with its ledger, thumbnails and shards.
two_process_ratio: wall time of the whole job with one worker process over that with two, one encoder thread each.
long_film_ratio: the same for one video of ten minutes (four with --quick), in processor time, so that a busy machine
does not lower it: the time of the whole job over that of its busiest process, step by step. That is the speedup of two
free cores over one.

Rounds run A-B-A-B; each figure is the median of the rounds' ratios.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

import av
import cv2
import numpy as np
from scenedetect import AdaptiveDetector, detect

from nemo_vfm.core.log import logger
from nemo_vfm.core.types.job import Run
from nemo_vfm.curate.examine.examine_file import Examine, state_of
from nemo_vfm.curate.examine.sandbox import Child, InProcess
from nemo_vfm.curate.execute.inline_executor import Inline
from nemo_vfm.curate.execute.process_executor import Processes
from nemo_vfm.curate.job import Curate
from nemo_vfm.curate.output.transcode import Transcode
from nemo_vfm.curate.record.footage import ClipFrames
from nemo_vfm.curate.score.brightness import Brightness
from nemo_vfm.curate.score.freeze import Freeze
from nemo_vfm.curate.score.motion import Motion
from nemo_vfm.curate.score.sharpness import Sharpness
from nemo_vfm.curate.sources.video_source import Folder
from nemo_vfm.curate.split.adaptive import AdaptiveSplit
from nemo_vfm.data.video.encode import encode_mp4

FPS, SIDE_PX, PAIRS, FLOW_PX, CRF, PRESET = 24, 256, 16, 160, 18, "veryfast"
Scores = Mapping[tuple[int, int], Mapping[str, float]]


def film(path: Path, seed: int, num_shots: int, width: int, height: int) -> None:
    """Shots of two to four seconds of textures that move, as x264 would have them from a camera."""
    random = np.random.default_rng(seed)

    def frames() -> object:
        for _ in range(num_shots):
            coarse = random.integers(40, 200, (height // 16 + 8, width // 16 + 24, 3), dtype=np.uint8)
            scene = cv2.resize(coarse, (width + 384, height + 128), interpolation=cv2.INTER_CUBIC)
            scene = cv2.add(scene, random.integers(0, 24, scene.shape, dtype=np.uint8))
            step = int(random.integers(1, 4))
            for number in range(int(random.integers(2 * FPS, 4 * FPS))):
                left = min(step * number, 384)
                yield np.ascontiguousarray(scene[64 : 64 + height, left : left + width])

    encode_mp4(path, frames(), FPS, crf=23, preset="medium")


def stages() -> dict[str, object]:
    """What is measured on both sides."""
    return {
        "motion": Motion(side_px=FLOW_PX, num_pairs=PAIRS), "sharpness": Sharpness(), "brightness": Brightness(),
        "freeze": Freeze(),
    }  # fmt: skip


def ours(path: Path, thumbnails: Path) -> Scores:
    """Shots and their scores, by the very code a worker runs."""
    examine = Examine(AdaptiveSplit(max_length_s=600.0), stages(), SIDE_PX, thumbnails)
    request = {
        "path": str(path), "name": path.name, "source_id": path.stem, "state": state_of(path), "spans": None,
        "stages": list(stages()),
    }  # fmt: skip
    answers = InProcess(examine).ask(request, megapixels=0)
    *clips, _ = (answer.fact for answer in answers if not isinstance(answer, int))
    return {tuple(c["span"]): {n: v for f in c["found"].values() for n, v in f["scores"].items()} for c in clips}


def script(path: Path) -> Scores:
    """The same by the plain script."""
    found = {}
    for start, end in detect(str(path), AdaptiveDetector(3.5, min_scene_len=round(0.6 * FPS), window_width=3)):
        span = (start.frame_num, end.frame_num)
        found[span] = script_scores(pictures(path, span))
    return found


def pictures(path: Path, span: tuple[int, int]) -> np.ndarray:
    """The frames that are looked at, small, in BGR."""
    firsts = [(2 * k + 1) * (span[1] - span[0] - 1) // (2 * PAIRS) for k in range(PAIRS)]
    wanted = {span[0] + number for first in firsts for number in (first, first + 1)}
    capture, kept = cv2.VideoCapture(str(path)), {}
    capture.set(cv2.CAP_PROP_POS_FRAMES, span[0])
    for number in range(*span):
        capture.grab()
        if number in wanted:
            frame = capture.retrieve()[1]
            ratio = SIDE_PX / min(frame.shape[:2])
            size = round(frame.shape[1] * ratio), round(frame.shape[0] * ratio)
            kept[number - span[0]] = cv2.resize(frame, size, interpolation=cv2.INTER_AREA)
    return np.stack([kept[number] for first in firsts for number in (first, first + 1)])


def script_scores(frames_THWC: np.ndarray) -> dict[str, float]:
    """OpenCV's functions, one after the other, on pairs of neighbours."""
    grays = [cv2.cvtColor(frame, cv2.COLOR_BGR2GRAY) for frame in frames_THWC]
    ratio = FLOW_PX / min(grays[0].shape)
    size = round(grays[0].shape[1] * ratio), round(grays[0].shape[0] * ratio)
    small = [cv2.resize(gray, size, interpolation=cv2.INTER_AREA) for gray in grays]
    flow = cv2.DISOpticalFlow_create(cv2.DISOPTICAL_FLOW_PRESET_FAST)
    speeds = [np.linalg.norm(flow.calc(a, b, None), axis=2) for a, b in zip(small[::2], small[1::2], strict=True)]
    scale = 100 * FPS / np.hypot(*size)
    eighths = [cv2.resize(g.astype(np.float32), (g.shape[1] // 8, g.shape[0] // 8), interpolation=cv2.INTER_AREA)
               for g in grays]  # fmt: skip
    changes = [np.abs(b - a).max() for a, b in zip(eighths[::2], eighths[1::2], strict=True)]
    return {
        "motion": scale * float(np.mean([speed.mean() for speed in speeds])),
        "motion_peak": scale * float(np.mean([np.percentile(speed, 99) for speed in speeds])),
        "sharpness": float(np.mean([cv2.Laplacian(gray, cv2.CV_32F).var() for gray in grays[::2]])),
        "luma_mean": float(np.mean(grays)),
        "luma_std": float(np.mean([gray.std() for gray in grays])),
        "black_ratio": float(np.mean([(gray < 24).mean() >= 0.98 for gray in grays])),
        "freeze_ratio": float(np.mean(np.array(changes) <= 2.0)),
    }


def disagreement(theirs: Scores, mine: Scores) -> dict[str, float]:
    """Of each score the median over shots of the relative difference."""
    assert theirs.keys() == mine.keys(), f"other shots: {sorted(theirs)} and {sorted(mine)}"
    names = next(iter(mine.values()))
    return {
        name: statistics.median(abs(theirs[s][name] - mine[s][name]) / max(1e-9, abs(mine[s][name])) for s in mine)
        if any(mine[s][name] for s in mine)
        else float(max(abs(theirs[s][name]) for s in mine))
        for name in names
    }


def same_frames(path: Path, mine: Scores) -> Scores:
    """The script's arithmetic on our own small frames."""
    from nemo_vfm.curate.examine.frame_stream import Walk

    found = {}
    with Walk(path, side_px=SIDE_PX, max_held_bytes=4 << 30) as walk:
        for _ in walk.frames():
            pass
        for span in mine:
            footage: ClipFrames = walk.footage(span)
            found[span] = script_scores(footage.frames(footage.pairs(PAIRS))[..., ::-1])
    return found


def encode_spans(path: Path, spans: Scores, folder: Path) -> None:
    """The script's end: OpenCV's frames into x264."""
    for first, last in spans:
        capture = cv2.VideoCapture(str(path))
        capture.set(cv2.CAP_PROP_POS_FRAMES, first)
        with av.open(str(folder / f"{path.stem}-{first}.mp4"), "w") as container:
            stream = container.add_stream("libx264", rate=FPS, options={"crf": str(CRF), "preset": PRESET})
            stream.pix_fmt, stream.codec_context.thread_count = "yuv420p", 1
            for number in range(last - first):
                frame = capture.read()[1]
                if not number:
                    stream.height, stream.width = frame.shape[:2]
                container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="bgr24")))
            container.mux(stream.encode(None))


def job(films: Path, executor: object) -> Curate:
    """The whole job, keeping every clip."""
    return Curate(
        source=Folder(path=films), split=AdaptiveSplit(max_length_s=600.0), stages=stages(), rules={}, captions={},
        transcode=Transcode(crf=CRF, preset=PRESET), executor=executor,
    )  # fmt: skip


def cpu_s(work: Callable[[], object]) -> float:
    """Processor seconds of this process."""
    start = time.process_time()
    work()
    return time.process_time() - start


def wall_s(work: Callable[[], object]) -> float:
    """Seconds on the clock."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def in_new_folder(work: Callable[[Path], object]) -> Callable[[], None]:
    """The work with an empty folder of its own."""

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            work(Path(folder))

    return run


def whole_script(films: list[Path], folder: Path) -> None:
    """Detect, score, encode."""
    for path in films:
        encode_spans(path, script(path), folder)


def measure(folder: Path, films: list[Path], rounds: int, video_s: float) -> dict[str, float]:
    """All figures; the medians' inputs are printed."""
    ratios: dict[str, list[float]] = {"score_ratio": [], "end_to_end_ratio": [], "two_process_ratio": []}
    for number in range(rounds):
        mine = cpu_s(in_new_folder(lambda new: [ours(path, new) for path in films]))
        theirs = cpu_s(lambda: [script(path) for path in films])
        whole = cpu_s(in_new_folder(lambda new: job(folder, Inline(isolated=False)).run(Run(new))))
        plain = cpu_s(in_new_folder(lambda new: whole_script(films, new)))
        one, two = (
            wall_s(in_new_folder(lambda new, n=n: job(folder, Processes(workers=n)).run(Run(new)))) for n in (1, 2)
        )
        for name, ratio in zip(ratios, (theirs / mine, plain / whole, one / two), strict=True):
            ratios[name].append(ratio)
        print(
            f"round {number + 1}: split and score {video_s / mine:.1f} against {video_s / theirs:.1f} video s a CPU s, "
            f"ratio {theirs / mine:.2f}; end to end {whole:.2f} against {plain:.2f} CPU s, ratio {plain / whole:.2f}; "
            f"one process {one:.2f} s, two {two:.2f} s, ratio {one / two:.2f}"
        )
    return {name: statistics.median(values) for name, values in ratios.items()}


def long_film_ratio(folder: Path) -> float:
    """One film by two workers: processor seconds of all processes over those on the longest way through the job.

    On that way lie the run's own process and, of each step, the worker that took most.
    """
    spent: dict[str, list[float]] = {}
    real = Child.stop

    def noted(child: Child) -> None:
        if child._process is not None:
            spent.setdefault(type(child._operation).__name__, []).append(child._spent_s())
        real(child)

    Child.stop = noted  # the workers' parent is the fork server, so the system adds them up for nobody else
    try:
        own = cpu_s(in_new_folder(lambda new: job(folder, Processes(workers=2)).run(Run(new))))
    finally:
        Child.stop = real
    steps = ", ".join(f"{name} {' and '.join(f'{s:.1f}' for s in each)}" for name, each in spent.items())
    print(f"long film: {own:.1f} CPU s in the run's process, in the workers of {steps}")
    return (own + sum(map(sum, spent.values()))) / (own + sum(map(max, spent.values())))


def main() -> None:
    """Parse, make films, compare scores, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="4 films of 3 shots instead of 6 of 8")
    parser.add_argument("--rounds", type=int, help="default 7, or 3 with --quick")
    parser.add_argument("--json", type=Path, help="where the figures go")
    args = parser.parse_args()
    logger().setLevel("ERROR")
    cv2.setNumThreads(1)
    packages = ", ".join(f"{name} {version(name)}" for name in ("scenedetect-headless", "opencv-python-headless", "av"))
    with tempfile.TemporaryDirectory() as name:
        folder, (count, shots) = Path(name), (4, 3) if args.quick else (6, 8)
        films = [folder / f"{number}.mp4" for number in range(count)]
        for number, path in enumerate(films):
            film(path, number, shots, 854, 480)
        mine = {path: ours(path, folder / "thumbnails") for path in films}
        theirs = {path: script(path) for path in films}
        video_s = sum(last for spans in mine.values() for _, last in [max(spans)]) / FPS
        print(
            f"{packages}; {count} films of 854x480, {video_s:.0f} s, {sum(map(len, mine.values()))} shots, one thread"
        )
        agree(films, mine, theirs)
        figures = measure(folder, films, args.rounds or (3 if args.quick else 7), video_s)
        long = folder / "long"
        long.mkdir()
        film(long / "long.mp4", 99, 80 if args.quick else 200, 426, 240)
        figures["long_film_ratio"] = long_film_ratio(long)
    for name, value in figures.items():
        print(f"{name} {value:.2f}")
    if args.json:
        args.json.write_text(json.dumps(figures) + "\n")


def agree(films: list[Path], mine: Mapping[Path, Scores], theirs: Mapping[Path, Scores]) -> None:
    """Print how far scores differ; more than 1 % on the same frames is an error."""
    own = [disagreement(theirs[path], mine[path]) for path in films]
    same = [disagreement(same_frames(path, mine[path]), mine[path]) for path in films]
    for label, found in (("its own frames", own), ("our frames", same)):
        worst = {name: max(one[name] for one in found) for name in found[0]}
        print(
            f"the script on {label} differs by at most " + ", ".join(f"{n} {100 * v:.2f} %" for n, v in worst.items())
        )
    assert max(max(one.values()) for one in same) <= 0.01, "the two sides do not compute the same scores"


if __name__ == "__main__":
    main()
