"""Measures what destriping gains, costs and finds on eight seeded pictures with stripes, and draws one of them.

    python benchmarks/destripe.py [--quick] [--video FILE] [--picture PNG] [--json FILE]

Stripes are white with a standard deviation of 14 grey levels of 255. Gains are means over the eight, in dB of PSNR:
over the striped pictures, and over those whose wedge of frequencies was emptied and left so. With `--video`, the same
is done to a frame of it, and the excess of its untouched frames is printed: below 5 dB they pass bit for bit.
Times are processor time of one thread, the best of three: `cpu_s_per_1080p_frame` is that of a restoration which
detects stripes in each frame, without reading; `cpu_s_per_still_1080p_frame` where the clip's stripes are known.
`half_length_found` counts the videos, of twelve that pan and twelve that stand still, whose scratches over half of the
height are found; `gain_half_length_db` is the mean over these. The picture shows clean, striped, emptied and recovered.

`gain_uint16_db` is what `DestripeImages` gains at its defaults on eight seeded 16-bit microscope images of 512x512, in
dB of PSNR within each clean image's own range. `over_algotom_db` and `over_pystripe_db` say how much more that is than
the best of algotom's methods by FFT, sorting, filtering and wavelet-FFT at their defaults (the best of each image), and
than pystripe's with the settings of its README. A peer that cannot be imported has no figure.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import cv2
import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from nemo_vfm.curate.record.footage import luma  # noqa: E402
from nemo_vfm.curate.restore.destripe import Destripe  # noqa: E402
from nemo_vfm.curate.restore.destripe_images import DestripeImages  # noqa: E402
from nemo_vfm.curate.restore.image_pages import without_stripes  # noqa: E402
from nemo_vfm.data.video.decode import open_video  # noqa: E402
from nemo_vfm.restore.stripe_excess import StripeExcess  # noqa: E402
from nemo_vfm.restore.stripes import known_frequencies, recover, without_wedge  # noqa: E402
from tests.support.striped import eight, half_scratched, leaves, microscope, psnr_db, with_stripes  # noqa: E402

#: Of algotom: what its own documentation names as the classic ones.
ALGOTOM = ("fft", "sorting", "filtering", "wavelet_fft")


def three(striped: np.ndarray, theta_deg: float) -> list[np.ndarray]:
    """Striped pictures as they are, with the wedge emptied, and recovered."""
    known = known_frequencies(*striped.shape[1:], theta_deg=theta_deg, wedge_deg=5, kmin=15)
    pictures = torch.from_numpy(np.asarray(striped, np.float32))
    recovered = recover(pictures, known, theta_deg=theta_deg, kmin=15, black=0, white=255)
    return [striped, without_wedge(pictures, known).numpy(), recovered.numpy()]


def gains(theta_deg: float) -> dict[str, float]:
    """Of the eight pictures: PSNR striped, and what is gained."""
    clean, striped = eight(theta_deg)
    levels = [np.mean([psnr_db(a, b) for a, b in zip(kind, clean, strict=True)]) for kind in three(striped, theta_deg)]
    return {
        "striped_db": levels[0], "emptied_db": levels[1], "recovered_db": levels[2],
        "gain_db": levels[2] - levels[0], "gain_over_emptied_db": levels[2] - levels[1],
    }  # fmt: skip


def destriped(striped: np.ndarray) -> np.ndarray:
    """An image as `DestripeImages` writes it."""
    finder = DestripeImages(input=Path("absent")).finder
    ends = finder.ends(striped.dtype)
    found = finder.find(striped.astype(np.float32), ends)
    return striped if found is None else without_stripes(striped, found.added_HW, ends)[0]


def gains_db(method: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Of each of eight images of 16 bits: by how much the error shrinks, which is the gain in PSNR of any range."""
    gained = []
    for clean, striped in map(microscope, range(8)):
        before, after = (np.mean((one.astype(float) - clean) ** 2) for one in (striped, method(striped)))
        gained.append(10 * np.log10(before / after))
    return np.array(gained)


def uint16() -> dict[str, float]:
    """What is gained on eight images of 16 bits, and how much more than by peers."""
    figures = {"gain_uint16_db": float(gains_db(destriped).mean())}
    for name, best in (("algotom", best_of_algotom), ("pystripe", of_pystripe)):
        try:
            peer = float(best().mean())
        except ImportError as error:
            print(f"no figure of {name}: it cannot be imported here ({error})")
            continue
        print(f"{name} {version(name)} gains {peer:.2f} dB")
        figures[f"over_{name}_db"] = figures["gain_uint16_db"] - peer
    return figures


def best_of_algotom() -> np.ndarray:
    """Of each image, by the method that is best for it."""
    removal = import_module("algotom.prep.removal")
    found = {}
    for name in ALGOTOM:
        method = getattr(removal, f"remove_stripe_based_{name}")
        found[name] = gains_db(lambda striped, method=method: method(striped.astype(np.float64)))
    print(f"algotom: {', '.join(f'{name} {gained.mean():.2f} dB' for name, gained in found.items())}")
    return np.max(list(found.values()), axis=0)


def of_pystripe() -> np.ndarray:
    """It filters horizontal stripes."""
    filtered = import_module("pystripe").filter_streaks
    return gains_db(lambda striped: filtered(striped.T, sigma=[128, 256], level=7, wavelet="db2").T)


def cpu_s_per_1080p_frame(mode: str, rounds: int) -> float:
    """Of a clip that is mended, after its eight frames were looked at."""
    wide = cv2.resize(leaves(3, 540), (1980, 1080), interpolation=cv2.INTER_CUBIC).clip(0, 255).round().astype(np.uint8)
    clip = np.stack([wide[:, 8 * number : 8 * number + 1920] for number in range(8)])[..., None].repeat(3, -1)
    restoration, best = Destripe(mode=mode).look(with_stripes(clip, theta_deg=0)), float("inf")
    for _ in range(rounds):
        began = time.process_time()
        restoration.apply(clip[:4])
        best = min(best, time.process_time() - began)
    return best / 4


def half_length() -> dict[str, float]:
    """Scratches over half of the height: in how many of twelve films each they are found, and what that gains."""
    counts, gained = {}, []
    for name, still in (("half_length_found", False), ("half_length_found_still", True)):
        counts[name] = 0
        for seed in range(12):
            clean, scratched = half_scratched(seed, (-1) ** seed * (15 + 5 * (seed % 4)), still=still)
            if (found := Destripe().look(scratched)) is not None:
                counts[name] += 1
                gained.append(psnr_db(found.apply(scratched), clean) - psnr_db(scratched, clean))
    return {**counts, "gain_half_length_db": float(np.mean(gained)) if gained else 0.0}


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
    parser.add_argument("--quick", action="store_true", help="one round of timing")
    parser.add_argument("--video", type=Path, help="a film without stripes")
    parser.add_argument(
        "--picture", type=Path, help="where to write clean, striped, emptied and recovered side by side"
    )
    parser.add_argument("--json", type=Path, help="where to write the figures")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rounds = 1 if asked.quick else 3
    figures: dict[str, object] = {"vertical": gains(0), "horizontal": gains(90)}
    figures |= uint16()
    figures |= half_length()
    figures["cpu_s_per_1080p_frame"] = cpu_s_per_1080p_frame("per_frame", rounds)
    figures["cpu_s_per_still_1080p_frame"] = cpu_s_per_1080p_frame("static", rounds)
    pictures = [side_by_side(leaves(0), 0), side_by_side(leaves(1), 90)]
    if asked.video:
        frames = frames_of(asked.video)
        figures["untouched_excess_db"] = float(StripeExcess.of(frames).whole_db().max())
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
