"""Measures how far the outputs of our video models are from those of diffusers, converted in both directions.

    python benchmarks/peer_parity.py [--json FILE]

For each family: diffusers saves a random model without zeros, in several files; we read its folder and are called with
equal inputs, in fp32, as each library's pipelines call their own. Numbers are largest differences over the deviation of
diffusers' output: of ours, and for comparison of diffusers' own model read again from disk. Then our folder is written,
diffusers reads it, and every tensor must be equal bit by bit. The two networks of Wan 2.2 A14B are also called as one,
above and below the boundary. Autoencoders encode and decode with mean and deviation as each family's pipeline applies
them; they are not converted, but go out with a pipeline's folder. It fails above 1e-5, where a tensor is left over, and
where one comes back changed.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the checkout's own helpers, wherever this is called

from nemo_vfm.models.convert.video.pretrained_video import load_pretrained, pretrained_experts  # noqa: E402
from nemo_vfm.models.convert.video.transformer_folder import (  # noqa: E402
    TransformerFolder,
    copy_pipeline,
    load_video_model,
    write_transformer,
)
from nemo_vfm.models.diffusers_codec import DiffusersCodec  # noqa: E402
from tests.models.test_diffusers_codec import KINDS  # noqa: E402
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
        left = len(weights.unused_names())
    ours = load_video_model(folder / "theirs")
    with torch.no_grad():
        difference = far(ours(**given), expected)
    write_transformer(ours, dict(ours.named_parameters()), folder / "ours")
    return Row(name, difference, far(again, expected), left, changed(theirs, read(theirs, folder / "ours")))


def compare_experts(folder: Path) -> Row:
    """Both networks of A14B behind their boundary, each where diffusers' pipeline calls it."""
    peer, boundary = PEERS["wan 2.2 a14b image"], 0.9
    both = [made(peer, seed) for seed in (0, 1)]
    for name, network in zip(("transformer", "transformer_2"), both, strict=True):
        network.save_pretrained(folder / "theirs" / name, max_shard_size="60KB")  # type: ignore[operator]
    index = {name: ["diffusers", type(both[0]).__name__] for name in ("transformer", "transformer_2")}
    (folder / "theirs/model_index.json").write_text(json.dumps(index | {"boundary_ratio": boundary}))
    ours = pretrained_experts(folder=folder / "theirs").eval()
    load_pretrained(ours, folder / "theirs")
    row = Row("wan 2.2 a14b, both", 0.0, 0.0, 0, 0)
    for level in (1.0, boundary, 0.899, 0.1):
        given = inputs(peer) | {"noise_B": torch.full((2,), level)}
        expected = called(peer, both[0] if level >= boundary else both[1], given)
        with torch.no_grad():
            row.difference = max(row.difference, far(ours(**given), expected))
    for name, network, expert in zip(index, both, (ours.high, ours.low), strict=True):
        with TransformerFolder(folder / "theirs" / name) as weights:
            row.left += len(weights.unused_names())
        write_transformer(expert, dict(expert.named_parameters()), folder / "ours" / name)  # type: ignore[arg-type]
        row.changed += changed(network, read(network, folder / "ours" / name))
    return row


def compare_codec(name: str, folder: Path) -> Row:
    """An autoencoder in a pipeline's folder; Cosmos 1 alone multiplies by its sigma_data."""
    import diffusers

    kind, config, time, space = KINDS[name]
    torch.manual_seed(1)
    theirs = getattr(diffusers, kind)(**config).eval()
    theirs.save_pretrained(folder / "theirs/vae")
    (folder / "theirs/model_index.json").write_text(json.dumps({"vae": ["diffusers", kind]}))
    again, codec = (
        read(theirs, folder / "theirs/vae"),
        DiffusersCodec(folder=folder / "theirs", scale=_sigma_data(name)),
    )
    pixels = torch.rand(2, 3, 1 + 2 * time, 3 * space, 5 * space) * 2 - 1
    with torch.no_grad():
        latents, decoded = through(name, theirs, pixels)
        reread = max(map(far, through(name, again, pixels), (latents, decoded)))
    difference = max(far(codec.encode(pixels), latents), far(codec.decode(latents), decoded))
    copy_pipeline(folder / "theirs", folder / "ours")
    return Row(f"autoencoder of {name}", difference, reread, 0, changed(theirs, read(theirs, folder / "ours/vae")))


def through(name: str, model: Any, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Latents as the network gets them, and what they decode to, by the words of diffusers' pipelines."""
    latents, data = model.encode(pixels).latent_dist.mode(), _sigma_data(name)
    mean, std = (torch.tensor(getattr(model.config, key)).view(1, latents.shape[1], -1, 1, 1)[:, :, : latents.shape[2]]
                 for key in ("latents_mean", "latents_std"))  # fmt: skip
    scaled = (latents - mean) / std * data
    return scaled, model.decode(scaled * std / data + mean).sample


def _sigma_data(name: str) -> float:
    return 0.5 if name == "cosmos" else 1.0


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
    cases: list[Callable[[Path], Row]] = [partial(compare, name) for name in PEERS]
    cases += [compare_experts, *(partial(compare_codec, name) for name in KINDS)]
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            row = case(Path(folder))
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
