"""Compares the throughput of our token loader with Hugging Face `datasets`, streamed and packed.

    python benchmarks/token_loader.py [--quick] [--json FILE] [--rounds N]

Both sides begin with the same documents, already tokenised, each with its end token: ours as a folder of tokens, theirs
as Parquet with a list of numbers a row. Both give batches of 8 sequences of 2,048 tokens as int64 tensors of torch,
documents one after another and cut where a sequence ends. That the sequences are equal is checked before anything is
timed. Ours is shuffled over the whole epoch and gives labels; theirs is neither shuffled nor labelled.

tokens_per_s_ratio: ours over theirs, which is packed in `map` and read through torch's DataLoader in the format
"torch"; the faster of packing numpy arrays and packing Arrow's own, which copies nothing. Packing lists, as the
examples of transformers do, is far slower and is printed only.
tokens_per_s_ratio_documents: the same with `packing: documents` on our side.
tokens_per_s_ratio_bare: ours over Arrow's arrays without DataLoader and formats, turned into tensors by hand: the
quickest that could be found.

One process on each side, no workers, one epoch from making the loader to the last batch. Rounds run A-B-A-B, so that a
busy machine slows both alike; each figure is the median of the rounds' ratios.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from nemo_vfm.core.log import logger
from nemo_vfm.data.tokens.token_data import TokenData, TokenSource
from nemo_vfm.data.tokens.token_writer import write_tokens

SEQUENCE, BATCH, VOCABULARY = 2048, 8, 32_000
MEDIAN, SIGMA, LONGEST = 400, 1.2, 50_000
END = VOCABULARY - 1
PER_SHARD = 4096


def write(folder: Path, num_tokens: int) -> int:
    """Documents of log-normal lengths, for both; how many tokens they have."""
    numbers = np.random.default_rng(0)
    lengths = np.minimum(numbers.lognormal(np.log(MEDIAN), SIGMA, num_tokens // 100), LONGEST).astype(int) + 1
    lengths = lengths[: int(np.searchsorted(np.cumsum(lengths + 1), num_tokens)) + 1]
    documents = [numbers.integers(0, END, length).tolist() for length in lengths]
    write_tokens(folder / "ours", documents, vocab_size=VOCABULARY, end=END, tokenizer="none", per_shard=PER_SHARD)
    (folder / "theirs").mkdir()
    for number, first in enumerate(range(0, len(documents), PER_SHARD)):
        rows = [[*document, END] for document in documents[first : first + PER_SHARD]]
        table = pa.table({"input_ids": pa.array(rows, pa.list_(pa.int32()))})
        pq.write_table(table, folder / f"theirs/{number:03d}.parquet", row_group_size=1000)
    return int(lengths.sum()) + len(lengths)


def ours(folder: Path, packing: Literal["stream", "documents"], shuffle: bool = True) -> Iterator[Tensor]:
    """One epoch of our batches."""
    data = TokenData(
        sources={"text": TokenSource(folder / "ours")}, sequence_length=SEQUENCE, batch_size=BATCH, packing=packing,
        shuffle=shuffle,
    )  # fmt: skip
    data.start(seed=0, first_batch=0)
    for batch in islice(data.train_dataloader(), int(data.batches_per_epoch())):
        assert batch.tokens_BS is not None
        yield batch.tokens_BS


def in_lists(rows: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
    """Pack as transformers' run_clm does."""
    line = list(chain(*rows["input_ids"]))
    end = len(line) // SEQUENCE * SEQUENCE
    return {"input_ids": [line[first : first + SEQUENCE] for first in range(0, end, SEQUENCE)]}


def in_numpy(rows: dict[str, list[NDArray[np.int64]]]) -> dict[str, NDArray[np.int64]]:
    """The same on arrays."""
    line = np.concatenate(rows["input_ids"])
    return {"input_ids": line[: len(line) // SEQUENCE * SEQUENCE].reshape(-1, SEQUENCE)}


def in_arrow(table: pa.Table) -> pa.Table:
    """The same on Arrow's own arrays: one view."""
    line = table["input_ids"].combine_chunks().flatten()
    end = len(line) // SEQUENCE * SEQUENCE
    return pa.table({"input_ids": pa.FixedSizeListArray.from_arrays(line[:end], SEQUENCE)})


PACKERS: dict[str, tuple[str | None, Callable[..., Any]]] = {
    "lists": (None, in_lists), "numpy": ("numpy", in_numpy), "arrow": ("arrow", in_arrow),
}  # fmt: skip


def packed(folder: Path, way: str) -> Any:
    """A stream of sequences of datasets; what is left of each 1,000 documents is lost, as in the example."""
    from datasets import load_dataset

    kind, pack = PACKERS[way]
    files = [str(path) for path in sorted((folder / "theirs").glob("*.parquet"))]
    stream = load_dataset("parquet", data_files=files, split="train", streaming=True)
    return (stream if kind is None else stream.with_format(kind)).map(pack, batched=True, batch_size=1000)


def theirs(folder: Path, way: str) -> Iterator[Tensor]:
    """One epoch of batches as a training loop takes them."""
    loader = DataLoader(packed(folder, way).with_format("torch"), batch_size=BATCH, drop_last=True)
    return (rows["input_ids"] for rows in loader)


def bare(folder: Path) -> Iterator[Tensor]:
    """One epoch of Arrow's arrays."""
    for table in packed(folder, "arrow").with_format("arrow").iter(batch_size=BATCH, drop_last_batch=True):
        array = table["input_ids"].combine_chunks().flatten().to_numpy().reshape(BATCH, SEQUENCE)
        yield torch.from_numpy(array.astype(np.int64))


def equal(folder: Path) -> None:
    """All ways give the same first sequences, before theirs has lost any."""
    one = next(ours(folder, "stream", shuffle=False))
    for other in (theirs(folder, "lists"), theirs(folder, "numpy"), theirs(folder, "arrow"), bare(folder)):
        assert torch.equal(one, next(iter(other))), "the sequences differ"


def speed(batches: Iterable[Any]) -> tuple[float, float]:
    """Tokens a second, by the wall clock and by this process's CPU."""
    before, cpu, count = time.perf_counter(), time.process_time(), 0
    for batch in batches:
        assert batch.shape == (BATCH, SEQUENCE) and batch.dtype == torch.int64
        count += batch.numel()
    return count / (time.perf_counter() - before), count / (time.process_time() - cpu)


def a_round(folder: Path, number: int) -> list[dict[str, float]]:
    """The ratios of one round, by the wall clock and by CPU; prints a line."""
    found = {
        "stream": speed(ours(folder, "stream")), "numpy": speed(theirs(folder, "numpy")),
        "documents": speed(ours(folder, "documents")), "arrow": speed(theirs(folder, "arrow")),
        "stream again": speed(ours(folder, "stream")), "bare": speed(bare(folder)),
    }  # fmt: skip
    said = ", ".join(f"{name} {wall / 1e6:.1f} ({cpu / 1e6:.1f})" for name, (wall, cpu) in found.items())
    print(f"  round {number}: {said} million tokens/s (by CPU seconds)", flush=True)
    ratios = []
    for clock in range(2):
        rates = {name: speeds[clock] for name, speeds in found.items()}
        best = max(rates["arrow"], rates["numpy"])
        ratios.append({
            "tokens_per_s_ratio": rates["stream"] / best, "tokens_per_s_ratio_documents": rates["documents"] / best,
            "tokens_per_s_ratio_bare": rates["stream again"] / rates["bare"],
        })  # fmt: skip
    return ratios


def measured(folder: Path, rounds: int) -> dict[str, float]:
    """The figures."""
    each = [a_round(folder, number) for number in range(rounds)]
    wall, _ = speed(islice(theirs(folder, "lists"), 40))
    print(f"  packing lists: {wall / 1e6:.3f} million tokens/s over 40 batches")
    figures = {}
    for name in each[0][0]:
        ratios, by_cpu = ([pair[clock][name] for pair in each] for clock in range(2))
        figures[name] = statistics.median(ratios)
        print(f"  {name} from {min(ratios):.2f} to {max(ratios):.2f}; median by CPU seconds "
              f"{statistics.median(by_cpu):.2f}")  # fmt: skip
    return figures


def main() -> None:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="1 million tokens instead of 16")
    parser.add_argument("--rounds", type=int, default=7, help="default 7")
    parser.add_argument("--json", type=Path, help="where the figures go")
    args = parser.parse_args()
    logger().setLevel("WARNING")
    torch.set_num_threads(1)
    print(", ".join(f"{name} {version(name)}" for name in ("datasets", "pyarrow", "torch", "numpy")))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        num_tokens = write(folder, 1_000_000 if args.quick else 16_000_000)
        print(f"{num_tokens:,} tokens, sequences of {SEQUENCE:,}, {BATCH} a batch, one process a side")
        equal(folder)
        figures = measured(folder, args.rounds)
    print()
    for name, figure in figures.items():
        print(f"{name}: {figure:.3f}")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
