# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Measures how far the outputs of our video models are from those of diffusers, converted in both directions.

    python benchmarks/peer_parity.py [--json FILE]

For each family: diffusers saves a random model without zeros, in several files; we read its folder and are called with
equal inputs, in fp32, as each library's pipelines call their own. Numbers are largest differences over the deviation of
diffusers' output: of ours, and for comparison of diffusers' own model read again from disk. Then our folder is written,
diffusers reads it, and every tensor must be equal bit by bit. It fails above 1e-5, where a tensor is left over, and
where one comes back changed.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the checkout's own helpers, wherever this is called

from nemo_vfm.models.convert.video.transformer_folder import (  # noqa: E402
    TransformerFolder,
    load_video_model,
    write_transformer,
)
from tests.support.video_peers import PEERS, called, inputs, made  # noqa: E402

BOUND = 1e-5


@dataclass
class Row:
    """One family.

    Args:
        difference: of our output, over the deviation.
        reread: of diffusers' own model read again.
        left: tensors that no parameter took.
        changed: tensors that did not come back bit by bit.
    """

    family: str
    difference: float
    reread: float
    left: int
    changed: int


def compare(name: str, folder: Path) -> Row:
    """All of a family."""
    peer, theirs = PEERS[name], made(PEERS[name])
    theirs.save_pretrained(folder / "theirs", max_shard_size="60KB")
    given = inputs(peer)
    expected, again = called(peer, theirs, given), called(peer, read(theirs, folder / "theirs"), given)
    with TransformerFolder(folder / "theirs") as weights:
        left = len(weights.left())
    ours = load_video_model(folder / "theirs")
    with torch.no_grad():
        difference = far(ours(**given), expected)
    write_transformer(ours, dict(ours.named_parameters()), folder / "ours")
    return Row(name, difference, far(again, expected), left, changed(theirs, read(theirs, folder / "ours")))


def read(like: nn.Module, folder: Path) -> nn.Module:
    """A folder, by diffusers."""
    model: nn.Module = type(like).from_pretrained(folder)  # type: ignore[attr-defined]
    return model


def far(found: Tensor, expected: Tensor) -> float:
    """The largest difference over the deviation."""
    return float((found - expected).abs().max() / expected.std())


def changed(one: nn.Module, other: nn.Module) -> int:
    """Tensors that are not equal bit by bit, or not there."""
    first, second = one.state_dict(), other.state_dict()
    both = first.keys() & second.keys()
    return len(first.keys() ^ second.keys()) + sum(not torch.equal(first[name], second[name]) for name in both)


def main() -> int:
    """Print the table."""
    import diffusers

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    diffusers.utils.logging.set_verbosity_error()
    diffusers.utils.logging.disable_progress_bar()
    rows = []
    print(f"diffusers {diffusers.__version__}, torch {torch.__version__}, fp32, largest difference over deviation")
    print("| family | ours | diffusers read again | left over | changed on the way back |")
    print("|---|---|---|---|---|")
    for name in PEERS:
        with tempfile.TemporaryDirectory() as folder:
            row = compare(name, Path(folder))
        rows.append(row)
        print(f"| {row.family} | {row.difference:.1e} | {row.reread:.1e} | {row.left} | {row.changed} |", flush=True)
    told = {
        "max_difference": max(row.difference for row in rows), "num_families": len(rows),
        "tensors_left_over": sum(row.left for row in rows), "tensors_changed": sum(row.changed for row in rows),
        "rows": [asdict(row) for row in rows],
    }  # fmt: skip
    if given.json:
        given.json.write_text(json.dumps(told))
    return int(told["max_difference"] > BOUND or told["tensors_left_over"] + told["tensors_changed"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
