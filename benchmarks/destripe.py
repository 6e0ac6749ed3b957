# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Eight seeded pictures with stripes in; what destriping gains, how long it takes, and a picture of it out.

    python benchmarks/destripe.py [--quick] [--video FILE] [--picture PNG] [--json FILE]

Stripes are white with a standard deviation of 14 grey levels of 255. Gains are means over the eight, in dB of PSNR:
over the striped pictures, and over those whose wedge of frequencies was emptied and left so. With `--video`, the same
is done to a frame of it, and how much excess its untouched frames have is said: below 5 dB they pass bit for bit.
Times are process time of one thread, the best of three; the picture shows clean, striped, emptied and recovered.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from nemo_vfm.curate.restore.luma import luma  # noqa: E402
from nemo_vfm.data.decode import open_video  # noqa: E402
from nemo_vfm.restore.stripe_excess import stripe_excess_db  # noqa: E402
from nemo_vfm.restore.stripes import known_frequencies, recover, without_wedge  # noqa: E402
from tests.support.striped import eight, leaves, psnr_db, with_stripes  # noqa: E402


def three(striped: np.ndarray, theta_deg: float, iterations: int = 12) -> list[np.ndarray]:
    """Striped pictures as they are, with the wedge emptied, and recovered."""
    known = known_frequencies(*striped.shape[1:], theta_deg=theta_deg, wedge_deg=5, kmin=15)
    pictures = torch.from_numpy(np.asarray(striped, np.float32))
    return [striped, without_wedge(pictures, known).numpy(), recover(pictures, known, iterations=iterations).numpy()]


def gains(theta_deg: float) -> dict[str, float]:
    """Of the eight pictures: PSNR striped, and what is gained."""
    clean, striped = eight(theta_deg)
    levels = [np.mean([psnr_db(a, b) for a, b in zip(kind, clean, strict=True)]) for kind in three(striped, theta_deg)]
    return {
        "striped_db": levels[0], "emptied_db": levels[1], "recovered_db": levels[2],
        "gain_db": levels[2] - levels[0], "gain_over_emptied_db": levels[2] - levels[1],
    }  # fmt: skip


def milliseconds(count: int, height: int, width: int, rounds: int) -> float:
    """Of one picture of a batch."""
    pictures = np.stack([leaves(seed, max(height, width))[:height, :width] for seed in range(count)])
    striped, best = with_stripes(pictures, theta_deg=0), float("inf")
    for _ in range(rounds):
        began = time.process_time()
        three(striped, 0)
        best = min(best, time.process_time() - began)
    return best / count * 1000


def side_by_side(clean: np.ndarray, theta_deg: float) -> np.ndarray:
    """Clean, striped, emptied, recovered; below, four times as large, the middle of each."""
    striped = with_stripes(clean[None], theta_deg=theta_deg, seed=1)
    row = [np.clip(p, 0, 255) for p in (clean, *(kind[0] for kind in three(striped, theta_deg)))]
    height, width = clean.shape
    part = (slice(height * 3 // 8, height * 5 // 8), slice(width * 3 // 8, width * 5 // 8))
    close = [cv2.resize(p[part], (width, height), interpolation=cv2.INTER_NEAREST) for p in row]
    return np.concatenate([np.concatenate(row, 1), np.concatenate(close, 1)]).round().astype(np.uint8)


def frames_of(video: Path) -> np.ndarray:
    """Eight frames' luma, spread evenly."""
    with open_video(video, "pyav") as reader:
        count = reader.info().num_frames
        return luma(reader.read(sorted({int(number) for number in np.linspace(0, count - 1, 8).round()})))


def main() -> None:
    """Measure, print, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of timing, small frames only")
    parser.add_argument("--video", type=Path, help="a film without stripes")
    parser.add_argument(
        "--picture", type=Path, help="where to write clean, striped, emptied and recovered side by side"
    )
    parser.add_argument("--json", type=Path, help="where to write the figures")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rounds = 1 if asked.quick else 3
    figures: dict[str, object] = {"vertical": gains(0), "horizontal": gains(90)}
    figures["ms_256x256"] = milliseconds(4, 256, 256, rounds)
    if not asked.quick:
        figures["ms_854x480"] = milliseconds(2, 480, 854, rounds)
    pictures = [side_by_side(leaves(0), 0), side_by_side(leaves(1), 90)]
    if asked.video:
        frames = frames_of(asked.video)
        figures["untouched_excess_db"] = float(stripe_excess_db(frames).max())
        middle = frames[len(frames) // 2].astype(float)
        figures["video"] = dict(zip(("striped_db", "emptied_db", "recovered_db"), [
            psnr_db(kind[0], middle) for kind in three(with_stripes(middle[None], theta_deg=0, seed=1), 0)
        ], strict=True))  # fmt: skip
        pictures = [side_by_side(middle, 0)]
    print(json.dumps(figures, indent=2))
    if asked.json:
        asked.json.write_text(json.dumps(figures, indent=2) + "\n")
    if asked.picture and not cv2.imwrite(str(asked.picture), np.concatenate(pictures)):
        raise SystemExit(f"{asked.picture} cannot be written")


if __name__ == "__main__":
    main()
