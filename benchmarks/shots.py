"""Compares our splitters with PySceneDetect's detectors on the same videos: accuracy and speed.

    python benchmarks/shots.py [--quick] [--json FILE] [--seed N]

The videos are those of the tests (tests/support/shot_films.py: 60 % hard cuts, a tenth of them with a flash on it; 10 %
fades through black, 10 % dissolves, 10 % flashes, 10 % whip pans), with a seed that no threshold was chosen on. Where
NEMO_VFM_TEST_DATA is set, 24 videos of real footage follow (tests/support/filmed_shots.py: 50 % hard cuts and 10 %
each of those and of wipes), whose figures begin with "filmed.". Our splitters trim nothing here. Cuts are matched with
events one to one, nearest first, within 2 frames.

The first films are then written as files and cut as a curation cuts them: whole ("whole."), and once more
("interrupted.") with up to four holes in the time stamps and changes of the stored size each, where a shot goes on
undisturbed. Frames and other events are the same, so the difference of two figures is what interruptions cost. Peers
are given frames, which show neither.

NAME.hard_f1: of hard cuts; every cut at no event of any kind counts against it, so a cut in a flash does, too.
NAME.fade_recall: of fades through black and dissolves. NAME.wipe_recall: of wipes.
NAME.hole_recall, NAME.resize_recall: of interruptions.
NAME.flash_false_positives: cuts in flashes and whip pans.
adaptive_speed_ratio, union_speed_ratio: CPU seconds of PySceneDetect's AdaptiveDetector (ratio, window and length as
ours) over ours, on the same frames of 256 x 144, without decoding. One thread. Ours get RGB, theirs BGR, as each
expects. Rounds run A-B-A-B; each figure is the median of the rounds' ratios.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import cv2
import numpy as np
from scenedetect import AdaptiveDetector, ContentDetector, FrameTimecode, HistogramDetector
from scenedetect.detector import SceneDetector

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the corpus lies beside the tests

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.curate.examine.examine_file import Examine
from nemo_vfm.curate.record.stage import Splitter
from nemo_vfm.curate.split.adaptive import AdaptiveSplit
from nemo_vfm.curate.split.content import ContentSplit
from nemo_vfm.curate.split.stitch import Stitch
from nemo_vfm.curate.split.union import UnionSplit
from tests.support.cut_score import CutScore
from tests.support.filmed_shots import DATA, filmed_corpus
from tests.support.interrupted_films import Interruption, interrupted, write
from tests.support.shot_films import FPS, HEIGHT, Film, corpus

Cuts = Callable[[Sequence[np.ndarray]], list[int]]
COLUMNS = (
    "hard_f1", "hard_recall", "fade_recall", "black_recall", "dissolve_recall", "wipe_recall", "flash_false_positives"
)  # fmt: skip
INTERRUPTED_COLUMNS = ("hard_f1", "fade_recall", "flash_false_positives", "hole_recall", "resize_recall")
SIZE = 256, 144


def ours(splitter: Splitter) -> Cuts:
    """Where a splitter that trims nothing cuts."""
    return lambda frames: [first for first, _ in splitter.spans(frames, fps=FPS) if first]


def theirs(make: Callable[[], SceneDetector]) -> Cuts:
    """Where a detector cuts; it is given BGR."""

    def cuts(frames: Sequence[np.ndarray]) -> list[int]:
        detector = make()
        codes = (FrameTimecode(number, fps=FPS) for number in range(len(frames)))
        return [cut.frame_num for one in zip(codes, frames, strict=True) for cut in detector.process_frame(*one)]

    return cuts


def same_adaptive() -> SceneDetector:
    """PySceneDetect's detector with our settings."""
    return AdaptiveDetector(3.5, min_scene_len=round(0.6 * FPS), window_width=3)


PEERS = {
    "pyscenedetect_adaptive": theirs(AdaptiveDetector),
    "pyscenedetect_content": theirs(ContentDetector),
    "pyscenedetect_histogram": theirs(HistogramDetector),
}
OURS = {
    "adaptive": ours(AdaptiveSplit(trim_s=None)),
    "content": ours(ContentSplit(trim_s=None)),
    "content_no_flash_filter": ours(ContentSplit(flash_s=0.0, trim_s=None)),
    "union": ours(UnionSplit(trim_s=None)),
    "union_no_dissolves": ours(UnionSplit(dissolve=None, trim_s=None)),
    "stitch_of_content_20": ours(Stitch(splitter=ContentSplit(threshold=20.0, trim_s=None))),
}

#: Of ours, those that are compared on films with interruptions.
ON_FILES: dict[str, Splitter] = {"adaptive": AdaptiveSplit(trim_s=None), "union": UnionSplit(trim_s=None)}


def on_files(films: Sequence[Film], kinds: Sequence[Interruption] = ("hole", "resize")) -> dict[str, float]:
    """Figures of the films as files, whole and interrupted, and a table."""
    figures: dict[str, float] = {}
    broken = [interrupted(film, kinds, seed) for seed, film in enumerate(films)]
    print(f"{'':26}" + "".join(f"{name.replace('_false_positives', '_fp'):>16}" for name in INTERRUPTED_COLUMNS))
    with TemporaryDirectory() as folder:
        for state, some in (("whole", films), ("interrupted", broken)):
            files = [write(Path(folder) / f"{state}{seed}.ts", film, seed) for seed, film in enumerate(some)]
            for name, splitter in ON_FILES.items():
                score = CutScore()
                for file, film in zip(files, some, strict=True):
                    score.add(curated_cuts(file, splitter), film.events)
                found = score.figures()
                print(f"{f'{name}, {state}':26}" + "".join(f"{found[column]:16.3f}" for column in INTERRUPTED_COLUMNS))
                figures |= {f"{state}.{name}.{column}": found[column] for column in INTERRUPTED_COLUMNS}
    return figures


def curated_cuts(file: Path, splitter: Splitter) -> list[int]:
    """Where the shots begin that a curation makes of a file, but for the first."""
    examine = Examine(splitter, {}, HEIGHT, file.parent / "thumbnails")
    request: Json = {
        "path": str(file),
        "name": file.name,
        "source_id": file.stem,
        "state": None,
        "spans": None,
        "stages": [],
    }
    *shots, _ = examine(request, lambda frames: None)
    return [shot.fact["span"][0] for shot in shots if shot.fact["span"][0]]


def accuracy(films: Sequence[Film], prefix: str = "") -> dict[str, float]:
    """Every figure of every detector, and a table."""
    figures: dict[str, float] = {}
    print(f"{'':26}" + "".join(f"{name.replace('_false_positives', '_fp'):>16}" for name in COLUMNS))
    for name, cuts in (PEERS | OURS).items():
        score = CutScore()
        for film in films:
            frames = film.frames if name in OURS else [cv2.cvtColor(f, cv2.COLOR_RGB2BGR) for f in film.frames]
            score.add(cuts(frames), film.events)
        found = score.figures()
        print(f"{name:26}" + "".join(f"{found[column]:16.3f}" for column in COLUMNS))
        figures |= {f"{prefix}{name}.{column}": found[column] for column in COLUMNS}
    return figures


def speed(films: Sequence[Film], rounds: int) -> dict[str, float]:
    """CPU time of theirs over ours."""
    frames = [cv2.resize(frame, SIZE) for film in films for frame in film.frames]
    turned = [cv2.cvtColor(frame, cv2.COLOR_RGB2BGR) for frame in frames]
    runs = {"peer": (theirs(same_adaptive), turned), "adaptive": (OURS["adaptive"], frames)}
    runs["union"] = OURS["union"], frames
    spent: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, (cuts, pictures) in runs.items():
            start = time.process_time()
            cuts(pictures)
            spent[name].append((time.process_time() - start) / len(pictures) * 1e6)
    for name, times in spent.items():
        print(f"{name}: {statistics.median(times):.0f} us a frame")
    return {
        f"{name}_speed_ratio": statistics.median(a / b for a, b in zip(spent["peer"], spent[name], strict=True))
        for name in ("adaptive", "union")
    }


def main() -> None:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20 films of 10 events instead of 40")
    parser.add_argument("--seed", type=int, default=101, help="of the films; default 101")
    parser.add_argument("--rounds", type=int, default=7, help="default 7")
    parser.add_argument("--json", type=Path, help="where the figures go")
    args = parser.parse_args()
    cv2.setNumThreads(1)
    print(", ".join(f"{name} {version(name)}" for name in ("scenedetect-headless", "opencv-python-headless", "numpy")))
    films = list(corpus(args.seed, 20 if args.quick else 40))
    print(f"{len(films)} films of seed {args.seed}, {sum(len(film.frames) for film in films)} frames, one thread\n")
    figures = accuracy(films)
    if DATA.is_dir():
        filmed = list(filmed_corpus(args.seed, 12 if args.quick else 24))
        print(f"\n{len(filmed)} videos of real footage, {sum(len(film.frames) for film in filmed)} frames\n")
        figures |= accuracy(filmed, "filmed.")
    print(f"\n{len(films[:12])} of the films as files\n")
    figures |= on_files(films[:12])
    figures |= speed(films[:3], args.rounds)
    for name in ("adaptive_speed_ratio", "union_speed_ratio"):
        print(f"{name}: {figures[name]:.2f}")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
