"""Compares a log of sessions with the same log deduplicated, from the file to the update (RecD, 2211.05239).

    python benchmarks/recd.py [--quick] [--rounds N] [--orders] [--tables] [--json FILE]

Sessions have 16.5 samples on average (geometric), and nine of ten leave the features of the user as they are. 85 % of
all ids are of the session, three quarters of them in histories of 48 that shift by one (`recd_log`). The plain side is
shuffled over 40 row groups and has the best of pyarrow's encodings, with dictionary or without, and the smallest one of
each column, which is what the feature table has; of two sizes of pages; and of row groups as they are or cut in two.
All is zstd level 3.
Batches have 4,096 samples. Rounds run A-B-A-B. Figures are ratios of medians, by CPU seconds, since others may use the
machine; with OMP_NUM_THREADS=1 these are of one thread.

stored_ratio: bytes of the plain file over those of the feature table. stored_ratio_plain: those of the plain file with
pyarrow's own encodings over the table's. stored_over_unique: the table over its unique values alone, same codec.
preprocess_ratio: decoding and transforms, a row a sample over unique rows. wire_ratio: bytes
of the batches. train_ratio: a plain step over a deduplicated one, with attention over session features at
attention_share of the plain step. train_over_ceiling: that over 1 / (1 - share + share / factor), the gain of a step
whose attention alone became faster; it is above 1 where expanding the histories costs much, which ends, too.
max_difference: of loss and gradients, with networks in float64. largest_batch_ratio: samples of the largest batch that
keeps as many bytes for backward as a plain one. `--orders` trains once on 128,000 samples for each of 3 seeds, in
batches of 2,048 of whole sessions and of samples in random order: auc_clustered and auc_shuffled are means over the
seeds, auc_clustered_by_512 and auc_shuffled_by_512 those with smaller batches. `--tables` prints figures over d, over
the share of session features and for each optimisation alone. `--quick` stores and preprocesses 2 of the row groups,
each as large as in the full form; it trains on a batch of 512 with one width, so its step gains less.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the checkout's own helpers, wherever this is called

from benchmarks.deduplication import batch_order, preprocessing, storage, training  # noqa: E402
from benchmarks.deduplication.session_data import LogShape, sharing, written  # noqa: E402
from benchmarks.deduplication.training import Side  # noqa: E402
from nemo_vfm.sparse.feature_batch import FeatureBatch  # noqa: E402
from nemo_vfm.sparse.log_chunk import LogChunk  # noqa: E402

HIDDEN = (256, 320, 384, 448, 512, 640)  # of the attention's perceptron: one brings it to about 80 % of a step
ONE_WIDTH = (384,)  # where none is looked for
SHARE, EVERY = 0.8, "lookup, pooling and attention"


def stored(shuffled: LogChunk, clustered: LogChunk, shape: LogShape) -> dict[str, float]:
    """Bytes, printed by side."""
    with tempfile.TemporaryDirectory() as folder:
        sides = storage.measured(shuffled, clustered, shape, Path(folder))
    plain, of_pyarrow, *_ = sides.values()
    for name, size in sides.items():
        print(f"  {name:<76}{size / 1e6:10.2f} MB{plain / size:8.2f}x")
    ours = sides["and windows"]
    return {
        "stored_ratio": plain / ours, "stored_ratio_plain": of_pyarrow / ours,
        "stored_over_unique": ours / sides["unique values alone"],
    }  # fmt: skip


def preprocessed(
    shuffled: LogChunk, clustered: LogChunk, shape: LogShape, batch_size: int, rounds: int
) -> dict[str, float]:
    """CPU seconds and bytes of the batches of a row group."""
    with tempfile.TemporaryDirectory() as folder:
        plain = written(shuffled, Path(folder) / "plain", shape, groups=False, in_order=False)
        unique = written(clustered, Path(folder) / "unique", shape)
        found = preprocessing.measured(plain, unique, batch_size, rounds)
    medians = {name: statistics.median(values) for name, values in found.items()}
    for side in ("plain", "unique"):
        print(f"  {side:<20}{medians[f'{side}_s']:8.3f} CPU s{medians[f'{side}_bytes'] / 1e6:10.1f} MB a row group")
    ratios = (plain_s / unique_s for plain_s, unique_s in zip(found["plain_s"], found["unique_s"], strict=True))
    return {
        "preprocess_ratio": statistics.median(ratios),
        "wire_ratio": medians["plain_bytes"] / medians["unique_bytes"],
    }


def trained(shape: LogShape, batch_size: int, rounds: int, hidden: Sequence[int] = HIDDEN) -> dict[str, float]:
    """Steps of one model on one batch."""
    batch = training.batch_of(shape, batch_size)
    expanded = batch.expand()
    width = hidden[0] if len(hidden) == 1 else _width(expanded, hidden)
    sides = {"plain": Side(training.model(width, expanded), expanded)}
    sides |= {name: Side(training.model(width, batch, stages), batch) for name, stages in training.STAGES.items()}
    every = sides[EVERY]
    largest_difference = training.difference(every, sides["plain"])
    share = _rounds(sides, rounds)
    wall_s = {name: statistics.median(side.wall_s) for name, side in sides.items()}
    cpu_s = {name: statistics.median(side.cpu_s) for name, side in sides.items()}
    for name in sides:
        ratios = f"{cpu_s['plain'] / cpu_s[name]:8.2f}x, by the wall clock {wall_s['plain'] / wall_s[name]:.2f}x"
        print(f"  {name:<34}{1e3 * wall_s[name]:9.0f} ms{1e3 * cpu_s[name]:9.0f} CPU ms{ratios}")
    kept = {name: training.saved_bytes(side) for name, side in sides.items()}
    ratio, factor = cpu_s["plain"] / cpu_s[EVERY], batch.groups[training.ATTENDED].factor
    ceiling = 1 / (1 - share + share / factor)
    print(
        f"  factor {factor:.2f}, attention {share:.1%} of the plain step (perceptron of {width}), ceiling {ceiling:.2f}"
    )
    return {
        "train_ratio": ratio, "attention_share": share, "train_over_ceiling": ratio / ceiling,
        "max_difference": largest_difference, "largest_batch_ratio": kept["plain"] / kept[EVERY],
    }  # fmt: skip


def _width(batch: FeatureBatch, hidden: Sequence[int]) -> int:
    """The one with which attention is nearest to its share of the plain step, on this machine."""
    shares = dict[int, float]()
    for one in hidden:
        shares[one] = _rounds({"plain": Side(training.model(one, batch), batch)}, 5)
        if shares[one] > SHARE:
            break
    return min(shares, key=lambda one: abs(shares[one] - SHARE))


def _rounds(sides: dict[str, Side], rounds: int) -> float:
    """Time all sides in turn, and the attention alone; its share of the plain step, which is timed just before it.

    The same step takes 0.8 to 1.4 times as long from one minute to the next on a shared machine, so that only shares of
    neighbours mean something.
    """
    alone = Side(sides["plain"].model, sides["plain"].batch)
    attention = training.attention(alone)
    for round_ in range(rounds + 1):
        for name, side in sides.items():
            side.timed(side.step)
            if name == "plain":
                alone.timed(attention)
        if not round_:  # kernels are compiled in the first
            for side in (*sides.values(), alone):
                side.wall_s.clear()
                side.cpu_s.clear()
    return statistics.median(own / step for own, step in zip(alone.cpu_s, sides["plain"].cpu_s, strict=True))


def ordered(samples: int, seeds: int) -> dict[str, float]:
    """AUC after training on either order, printed by seed."""
    found: dict[str, list[float]] = {}
    for batch, ending in ((2_048, ""), (512, "_by_512")):
        for seed in range(seeds):
            one = batch_order.compared(samples, batch, seed)
            print(f"  batch {batch}, seed {seed}: " + ", ".join(f"{name} {figure:.4f}" for name, figure in one.items()))
            for name, figure in one.items():
                found.setdefault(name + ending, []).append(figure)
    return {name: statistics.mean(figures) for name, figures in found.items()}


def tables(shape: LogShape, batch_size: int) -> None:
    """Bytes and steps over d and over the share of session features, of one width."""
    for unchanged in (0.5, 0.8, 0.9, 0.95):
        print(f"d {unchanged}:")
        _line(replace(shape, unchanged=unchanged), batch_size)
    for share in (0.7, 0.8, 0.85, 0.9):
        print(f"{share:.0%} of ids in session features:")
        _line(replace(shape, session_share=share), batch_size)


def _line(shape: LogShape, batch_size: int) -> None:
    found = stored(*shape.samples(), shape)
    found |= trained(shape, batch_size, 2, ONE_WIDTH)
    print("  " + ", ".join(f"{name} {figure:.3g}" for name, figure in found.items()))


def main(given: Sequence[str] | None = None) -> None:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2 of the 40 row groups; steps of a batch of 512")
    parser.add_argument("--rounds", type=int, default=7, help="measured rounds, 7 unless told")
    parser.add_argument("--orders", action="store_true", help="compare the AUC of clustered and shuffled batches, too")
    parser.add_argument("--tables", action="store_true", help="print the tables, too (about 20 minutes)")
    parser.add_argument("--json", type=Path, help="where the figures go")
    args = parser.parse_args(given)
    shape, batch_size = LogShape(16_384, row_groups=2 if args.quick else 40), 512 if args.quick else 4_096
    print(
        f"torch {version('torch')}, {torch.get_num_threads()} threads, pyarrow {version('pyarrow')}; "
        f"{shape.rows_per_group * shape.row_groups:,} samples"
    )
    figures, logs = dict[str, float](), shape.samples()
    print(sharing(logs[1]))
    for title, measure in (
        ("stored", lambda: stored(*logs, shape)),
        ("preprocessed", lambda: preprocessed(*logs, shape, 4_096, 15 if args.quick else 3)),
        ("trained", lambda: trained(shape, batch_size, *((2, ONE_WIDTH) if args.quick else (args.rounds, HIDDEN)))),
    ):
        print(f"{title}:")
        figures |= measure()
    if args.orders:
        print("orders:")
        figures |= ordered(*((8_000, 1) if args.quick else (160_000, 3)))
    for name, figure in figures.items():
        print(f"{name}: {figure:.4g}")
    if args.json:
        args.json.write_text(json.dumps(figures) + "\n")
    if args.tables:
        tables(replace(shape, rows_per_group=shape.rows_per_group // 8), batch_size // 4)


if __name__ == "__main__":
    main()
