"""Makes the run folder of a finished workflow: small real pictures and videos, plausible numbers."""

import io
import json
import math
import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

COLOURS = {"red": (214, 64, 58), "green": (64, 160, 92), "blue": (58, 104, 200), "yellow": (228, 186, 66)}
DIRECTIONS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
SHAPES = ("circle", "square")
RULES: dict[str, dict[str, Any]] = {
    "motion": {"score": "motion", "op": "<", "threshold": 0.4},
    "blur": {"score": "sharpness", "op": "<", "threshold": 60.0},
    "black": {"score": "brightness", "op": "<", "threshold": 0.06},
    "near_duplicate": {"score": "similarity", "op": ">", "threshold": 0.95},
}
STEPS = {
    "videos": 8.2, "curate": 31.4, "encode": 12.9, "train": 146.0, "sample": 21.7, "baseline": 20.3, "evaluate": 3.1,
}  # fmt: skip
FAILURE = "notes.mp4 is not a video: moov atom not found"

PURPOSE = "Shapes that move as their caption says. 2 CPU cores, about 5 min; colour right in 12 of 16 or more."
RECIPE = "steps:\n" + "".join(
    f"  {name}:\n    _target_: nemo_vfm.{name}.job.{name.title()}\n    size_px: 64\n" for name in STEPS
)


def make(root: Path, seed: int = 0, num_clips: int = 90) -> Path:
    """Write a whole run and return its folder."""
    rng = random.Random(seed)
    root.mkdir(parents=True, exist_ok=True)
    (root / "recipe.yaml").write_text(RECIPE + "seed: 0\n")
    write_json(root / "manifest.json", {
        "versions": {"nemo_vfm": "0.1.0", "torch": "2.13.0", "lightning": "2.6.6"}, "seed": 0, "recipe": "quickstart",
        "purpose": PURPOSE, "steps": list(STEPS),
        "hardware": {"device": "AMD EPYC CPU, 2 threads", "cpus": 2, "memory_gb": 8.3},
        "recipe_sha256": "4f" * 32, "commit": "d3739ac0ffee",
        "created": "2026-11-21T02:40:11+00:00",
    })  # fmt: skip
    write_json(root / "status.json", {"state": "done", "heartbeat": "2026-11-21T02:44:16Z"})
    for name, seconds in STEPS.items():
        write_json(root / name / "done.json", {"seconds": seconds, "summary": name})
    rows = curated(root / "curate", rng, num_clips)
    kept = [row for row in rows if row["decision"] == "kept"]
    write_json(root / "encode" / "encode.json", {
        "clips": len(kept), "samples": len(kept) - 1, "by_bucket": {"64x64x16": len(kept) - 3, "64x64x1": 2},
        "unbinned": {"shorter than 16 frames": 1}, "failed": {}, "dtype": "float32", "made_of": "4f" * 16,
    })  # fmt: skip
    trained(root / "train", rng)
    told(root / "train", root / "sample")
    for name in ("sample", "baseline"):
        sampled(root / name, untrained=name == "baseline")
    evaluated(root, rng, kept)
    return root


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def draw(
    colour: str, shape: str, direction: str, num_frames: int = 16, size_px: int = 64, noise: float = 0.0
) -> np.ndarray:
    """Frames (T, H, W, 3) of a shape that moves over a soft background; `noise` 1 leaves nothing but grain."""
    grain = np.random.default_rng(len(colour + shape + direction))
    y, x = np.mgrid[:size_px, :size_px] / size_px
    ground = np.stack([90 + 60 * y, 96 + 50 * x, 110 + 40 * (1 - y)], -1)
    frames = []
    for time in np.linspace(-0.28, 0.28, num_frames):
        dx, dy = x - 0.5 - DIRECTIONS[direction][0] * time, y - 0.5 - DIRECTIONS[direction][1] * time
        inside = np.hypot(dx, dy) < 0.2 if shape == "circle" else np.maximum(abs(dx), abs(dy)) < 0.18
        frame = np.where(inside[..., None], np.array(COLOURS[colour], float), ground)
        frames.append((1 - noise) * frame + noise * grain.normal(128, 50, frame.shape))
    return np.clip(np.stack(frames), 0, 255).astype(np.uint8)


def encode(frames: np.ndarray, codec: str, container: str, pixels: str, fps: int = 12) -> bytes:
    """Frames as a file of one stream, in memory."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as file:
        stream = file.add_stream(codec, rate=Fraction(fps))
        stream.height, stream.width, stream.pix_fmt = frames.shape[1], frames.shape[2], pixels
        for frame in frames:
            file.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")))
        file.mux(stream.encode(None))
    return buffer.getvalue()


def mp4(frames: np.ndarray) -> bytes:
    return encode(frames, "libx264", "mp4", "yuv420p")


def picture(image: np.ndarray, codec: str = "mjpeg") -> bytes:
    """One image as JPEG (mjpeg) or PNG (png)."""
    return encode(image[None], codec, "image2pipe", "yuvj420p" if codec == "mjpeg" else "rgb24")


def curated(folder: Path, rng: random.Random, num_clips: int) -> list[dict[str, Any]]:
    """Scores, rules, thumbnails and a ledger that follows from the rows."""
    (folder / "thumbnails").mkdir(parents=True)
    rows = [_row(rng, place) for place in range(num_clips)]
    for row, twin in zip(rows[16::17], rows[15::17], strict=False):
        twin.update(decision="kept", rule=None)
        row.update(decision="dropped", rule="near_duplicate", duplicate_of=twin["clip_id"], caption=twin["caption"])
        row["similarity"] = twin["similarity"] = rng.uniform(0.96, 1)
    for row in rows:
        _thumbnail(folder, row)
    failed = {"clip_id": "f" * 32, "source": "notes.mp4", "decision": "failed", "message": FAILURE}
    rows.append(dict.fromkeys(rows[0]) | failed)
    write_json(folder / "rules.json", RULES)
    parquet.write_table(pa.Table.from_pylist(rows), folder / "scores.parquet")
    write_json(folder / "ledger.json", ledger(rows))
    _told(folder, rows)
    return rows


def _told(folder: Path, rows: list[dict[str, Any]]) -> None:
    """What a curation says of its work besides: thresholds, captions, what was mended, how long it took."""
    values = sorted(row["motion"] for row in rows if row.get("motion") is not None)
    amount = {"clips": 7, "seconds": 14.0}
    left = list(range(len(values), 0, -1))
    curve = {"score": "motion", "op": "<", "threshold": values[9], "thresholds": values, "clips": left,
             "seconds": [2.0 * count for count in left]}  # fmt: skip
    rule = {"rule": "motion < 0.6", "drops": amount, "drops_first": amount, "drops_alone": amount, "curves": [curve]}
    write_json(folder / "survival.json", {"in": amount, "survive": amount, "rules": {"motion": rule}})
    failures = {"vlm": {"it answered nothing": 3}}
    write_json(folder / "captions.json", {"by": {"vlm": 80, "nobody": 7}, "failures": failures, "tokens_in": 9000})
    _compared(folder)
    steps = [
        ("probe", 2, 17, 1.5),
        ("split and score", 2, 90, 40.0),
        ("judge", 1, 90, 22.0),
        ("transcode", 2, 80, 30.0),
    ]
    write_json(
        folder / "throughput.json",
        [{"step": name, "workers": n, "parts": parts, "busy_s": s, "wall_s": 24.0} for name, n, parts, s in steps],
    )
    (folder / "restored").mkdir()
    mended = next(row for row in rows if row["decision"] == "kept")
    before = draw("red", "circle", "up", 1, 160)[0]
    striped = before * (0.75 + 0.25 * np.sin(np.arange(160) * 1.7))[None, :, None]
    pair = np.concatenate([striped, before], 1).astype(np.uint8)
    (folder / "restored" / f"{mended['clip_id']}.jpg").write_bytes(picture(pair))
    fact = {"source": mended["source"], "restored": ["destripe"], "facts": {"destripe.before_db": 14.2}}
    write_json(folder / "restored.json", {"restorers": ["destripe"], "clips": {mended["clip_id"]: fact}})


def _compared(folder: Path) -> None:
    """What it says of copies and of buckets."""
    removed = [{"epsilon": eps, "removed_percent": 100 * eps} for eps in (0.01, 0.05, 0.1, 0.5)]
    facts = {"column": "similarity", "above": 0.93, "how": "given", "proposed_epsilon": 0.08, "proposed_by": "valley"}
    write_json(folder / "similarity.json", {"near_duplicate": facts | {"removed": removed}})
    lacking = {"clips": 3, "seconds": 6.0, "nearest": {"wide": 3}, "more_frames": {"least": 2, "median": 5, "most": 9}}
    miss = {"clip_id": "0" * 31 + "3", "reason": "too few frames", "bucket": "wide", "needs": "2 more frames"}
    write_json(folder / "buckets.json", {
        "buckets": {"wide": {"clips": 60, "seconds": 120.0}, "tall": {"clips": 0, "seconds": 0.0}},
        "unbinned": {"too few frames": lacking}, "nearest_misses": [miss],
    })  # fmt: skip


def _row(rng: random.Random, place: int) -> dict[str, Any]:
    colour, shape, way = rng.choice(list(COLOURS)), rng.choice(SHAPES), rng.choice(list(DIRECTIONS))
    scores = {"motion": rng.lognormvariate(0.4, 0.8), "sharpness": rng.lognormvariate(5, 0.6),
              "brightness": min(max(rng.gauss(0.45, 0.18), 0.01), 1),
              "similarity": rng.betavariate(4, 3) * 0.9}  # fmt: skip
    fallen = [n for n, r in RULES.items() if (scores[r["score"]] < r["threshold"]) == (r["op"] == "<")]
    first = 24 * (place % 6)
    return {
        "clip_id": f"{place:032x}", "source": f"shapes-{place // 6:02d}.mp4",
        "first_frame": first, "last_frame": first + 24,
        "fps": 12.0, "width": 128, "height": 128, "duration_s": 2.0, "decision": "dropped" if fallen else "kept",
        "rule": fallen[0] if fallen else None, "message": None, "duplicate_of": None,
        "caption": f"a {colour} {shape} moves {way}", **scores,
    }  # fmt: skip


def _thumbnail(folder: Path, row: dict[str, Any]) -> None:
    _, colour, shape, _, way = row["caption"].split()
    dim = 0.15 if row["rule"] == "black" else 1
    frames = draw(colour, shape, way if row["rule"] != "motion" else "up", 4, 96) * dim
    strip = np.concatenate(list(frames), 1).astype(np.uint8)
    (folder / "thumbnails" / f"{row['clip_id']}.jpg").write_bytes(picture(strip))


def ledger(rows: list[dict[str, Any]]) -> dict[str, Any]:
    clips = [row for row in rows if row["decision"] != "failed"]
    rules = {rule: sum(row["rule"] == rule for row in clips) for rule in RULES}
    rules = {rule: count for rule, count in rules.items() if count}
    kept = sum(row["decision"] == "kept" for row in clips)
    files = len({row["source"] for row in clips})
    return {
        "files": {"in": files + 2, "kept": files, "dropped": {"exact_duplicate": 1}, "failed": {FAILURE: 1}},
        "clips": {"in": len(clips), "kept": kept, "dropped": rules, "failed": {}},
        "seconds": {"in": 2.0 * len(clips), "kept": 2.0 * kept, "dropped": {r: 2.0 * n for r, n in rules.items()},
                    "failed": {}},
    }  # fmt: skip


def trained(folder: Path, rng: random.Random, num_steps: int = 600) -> None:
    """Metrics that look like learning, and preview grids that get clearer."""
    lines = [json.dumps(_metrics(rng, step, num_steps)) for step in range(1, num_steps + 1)]
    (folder / "samples").mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    for step in range(0, num_steps + 1, num_steps // 5):
        noise = (1 - step / num_steps) ** 1.5
        cells = [draw(c, s, "right", 1, 64, noise)[0] for s in SHAPES for c in COLOURS]
        grid = np.concatenate([np.concatenate(cells[:4], 1), np.concatenate(cells[4:], 1)])
        (folder / "samples" / f"step-{step:08d}.png").write_bytes(picture(grid, "png"))


def told(training: Path, sampling: Path) -> None:
    """What a language model would leave besides: texts while it learns, and afterwards."""
    for step in (300, 600):
        texts = [{"prompt": "One day Mia", "text": f"went on at step {step}."}]
        write_json(training / "samples" / f"step-{step:08d}.json", {"step": step, "texts": texts})
    sampling.mkdir(parents=True, exist_ok=True)
    (sampling / "texts.jsonl").write_text('{"index": 0, "prompt": "One day Tom", "text": "went home."}\n')
    write_json(sampling / "judged.json", {"grammatical": 1.0, "texts": [{"grammatical": True, "wrong": []}]})


def _metrics(rng: random.Random, step: int, num_steps: int) -> dict[str, float]:
    loss = 0.21 + 1.1 * math.exp(-step / 70)
    record = {"step": step, "time_s": step * 0.243, "loss": loss * rng.uniform(0.82, 1.18),
              "grad_norm": rng.lognormvariate(-0.5, 0.3),
              "lr": 1e-3 * min(step / 50, 0.5 + 0.5 * math.cos(math.pi * step / num_steps))}  # fmt: skip
    if step % 10 == 0:
        record |= {"samples_per_s": rng.gauss(66, 2), "mfu": rng.gauss(0.38, 0.01)}
    if step % 60 == 0:
        record |= {"val_loss": loss * 1.03}
        bins = {f"noise_{low / 5:g}-{(low + 1) / 5:g}": 0.5 + 0.3 * abs(low - 1.2) for low in range(5)}
        record |= {f"val_loss/{name}": loss * factor for name, factor in bins.items()}
    return record


def prompts() -> list[tuple[str, str, str]]:
    """Sixteen (colour, shape, direction)."""
    ways = list(DIRECTIONS)
    return [(c, SHAPES[(i + j) % 2], ways[(i + j) % 4]) for i, c in enumerate(COLOURS) for j in range(4)]


def sampled(folder: Path, *, untrained: bool) -> None:
    (folder / "samples").mkdir(parents=True, exist_ok=True)
    entries = []
    for index, (colour, shape, way) in enumerate(prompts()):
        name = f"samples/{index:03d}.mp4"
        (folder / name).write_bytes(mp4(draw(colour, shape, way, noise=0.95 if untrained else 0.12)))
        prompt = {"prompt": f"a {colour} {shape} moves {way}", "seed": 0}
        attributes = {"colour": colour, "shape": shape, "direction": way}
        entries.append({"index": index, "file": name, "attributes": attributes, **prompt})
    write_json(folder / "samples.json", entries)


def evaluated(root: Path, rng: random.Random, kept: list[dict[str, Any]]) -> None:
    judged = [_judged(i, i % 8 != 3, i % 4 != 1) for i in range(16)]
    before = [_judged(i, i % 4 == 0, i % 4 == 2) for i in range(16)]
    write_json(root / "evaluate" / "evaluation.json", {
        "colour_accuracy": 0.875, "direction_accuracy": 0.75, "num_prompts": 16, "num_samples": 16,
        "per_prompt": judged,
        "untrained": {"colour_accuracy": 0.25, "direction_accuracy": 0.25, "num_prompts": 16, "per_prompt": before},
    })  # fmt: skip
    write_json(root / "evaluate" / "nearest.json", [_near(i, rng.choice(kept), rng) for i in range(16)])


def _judged(index: int, colour_right: bool, direction_right: bool) -> dict[str, Any]:
    colour, shape, way = prompts()[index]
    return {
        "index": index, "prompt": f"a {colour} {shape} moves {way}",
        "colour": colour if colour_right else "grey", "colour_right": colour_right,
        "direction": way if direction_right else "none", "direction_right": direction_right,
    }  # fmt: skip


def _near(index: int, row: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    thumbnail = f"curate/thumbnails/{row['clip_id']}.jpg"
    known = {"clip_id": row["clip_id"], "caption": row["caption"], "thumbnail": thumbnail}
    return {"index": index, "distance": rng.uniform(0.05, 0.2), **known}
