"""Measures how well ids drawn from a fitted mixture of Poisson rates repeat two published histograms of reuse.

    python benchmarks/locality.py [--quick] [--data FOLDER] [--json FILE]

FOLDER (or NEMO_VFM_TEST_DATA/recsys) holds locality_stats_2021.txt and locality_stats_2022.txt; the first section of
each is used. Ids are drawn one by one and counted as the files count them, over rows that came at least once.

max_bin_error: largest difference from the printed share of rows, over 34 bins: 2 files x 17 bins of lookups a row.
max_access_error: the same of the printed share of lookups; peak_gb: peak resident set of the process (10^9 bytes).
"""

import argparse
import json
import os
import resource
import sys
from pathlib import Path

import numpy as np

from nemo_vfm.recsys.profiling.locality_stats import ReuseHistogram, first_histogram
from nemo_vfm.recsys.profiling.reuse_mixture import draw_counts, fit


def errors(path: Path, num_touched: int) -> tuple[float, float]:
    """The largest errors over the bins, of rows and of lookups."""
    printed = first_histogram(path)
    drawn = ReuseHistogram.of_counts(draw_counts(fit(printed).rates(num_touched), seed=0))
    rows, accesses = (float(np.abs(a).max()) for a in (drawn.rows - printed.rows, drawn.accesses - printed.accesses))
    print(f"{path.name}: rows {rows:.5f}, lookups {accesses:.5f}, mean {drawn.mean:.3f} (printed {printed.mean:.3f})")
    return rows, accesses


def main() -> None:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="200,000 rows looked up instead of 4 million")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("NEMO_VFM_TEST_DATA", ".")) / "recsys")
    parser.add_argument("--json", type=Path, help="where the figures go")
    args = parser.parse_args()
    count = 200_000 if args.quick else 4_000_000
    found = [errors(args.data / f"locality_stats_{year}.txt", count) for year in (2021, 2022)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    worst = [max(of) for of in zip(*found, strict=True)]
    figures = {"max_bin_error": worst[0], "max_access_error": worst[1], "peak_gb": peak / 1e9}
    for name, figure in figures.items():
        print(f"{name}: {figure:.4g}")
    if args.json:
        args.json.write_text(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
