"""Measures how far the latents that we sample are from those of diffusers' pipelines.

    python benchmarks/pipeline_parity.py [--quick] [--json FILE]

For each family diffusers saves a whole pipeline of tiny random parts: transformer, autoencoder, text encoder,
tokenizer, scheduler, and a CLIP where it has one. Its own pipeline and our recipe `world_model/sample_pretrained.yaml`
draw from this folder with the same prompt, negative prompt, given frames and first noise, in 8 steps with guidance.
All in fp32. Numbers are largest differences of the latents over their deviation. Frames that were given are apart: we
return them as they are, and diffusers leaves the last noise level on them. It fails above 1e-3.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the checkout's own helpers, wherever this is called

from tests.support.video_pipelines import PIPELINES, compared  # noqa: E402

BOUND = 1e-3
QUICK = ("wan 2.1 image", "cosmos 2 video")


@dataclass
class Row:
    """One family.

    Args:
        family: its name.
        difference: of the frames that were made.
        given: of those that were given.
    """

    family: str
    difference: float
    given: float


def main() -> int:
    """Print the table."""
    import diffusers
    import transformers

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two families")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    for library in (diffusers, transformers):
        library.utils.logging.set_verbosity_error()
        library.utils.logging.disable_progress_bar()
    versions = ", ".join(f"{one.__name__} {one.__version__}" for one in (diffusers, transformers, torch))
    print(f"{versions}, fp32")
    print("| family | largest difference over deviation | of given frames |")
    print("|---|---|---|")
    rows = []
    for name in QUICK if given.quick else PIPELINES:
        with tempfile.TemporaryDirectory() as folder:
            found = compared(name, Path(folder) / "pipeline")
        row = Row(name, found.made_difference(), found.given_difference())
        rows.append(row)
        print(f"| {row.family} | {row.difference:.1e} | {row.given:.1e} |", flush=True)
    told = {
        "max_latent_difference": max(row.difference for row in rows), "num_families": len(rows),
        "max_given_difference": max(row.given for row in rows), "rows": [asdict(row) for row in rows],
    }  # fmt: skip
    if given.json:
        given.json.write_text(json.dumps(told))
    return int(told["max_latent_difference"] > BOUND)


if __name__ == "__main__":
    raise SystemExit(main())
