"""Compares throughputs that others published with our FLOP count, row by row.

    python benchmarks/published_mfu.py [--json FILE]

Nothing is run: models are built without memory and report their FLOPs. Nemotron-4 340B is from arXiv 2406.11704, table
2, with 989 TFLOP/s of an H100. The DiTs are from the table of NeMo's diffusion README and the ST-DiTs from arXiv
2503.12964, table 2. Both name TFLOP/s and tokens/s of a GPU, and so the FLOPs that they count for a token.
"""

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from nemo_vfm.core.types.model_traits import ReportsFlops
from nemo_vfm.models.blocks.text_rope import TextRope
from nemo_vfm.models.dit import DiT
from nemo_vfm.models.gpt import GPT
from nemo_vfm.models.st_dit import STDiT
from nemo_vfm.perf.flops import Convention, PeakFlops, formula, mfu, training_flops

H100 = PeakFlops(989e12, "dense bf16, data sheet of H100")
TEXT, CHANNELS = (1, 512, 1024), 16
LENGTH, WORDS = 4096, 256_000  # of Nemotron-4


@dataclass(frozen=True)
class Row:
    """One published figure.

    Args:
        what: of which model and setting.
        unit: of both numbers.
        published: theirs.
        ours: by our formula.
    """

    what: str
    unit: str
    published: float
    ours: float

    @property
    def off(self) -> float:
        """Ours over theirs, less one."""
        return self.ours / self.published - 1


def nemotron() -> GPT:
    """The 340B, without memory."""
    with torch.device("meta"):
        return GPT(vocab=WORDS, width=18_432, depth=96, heads=96, groups=8, mlp_hidden=73_728,
                   activation="squared_relu", norm="layernorm1p", rope=TextRope(share=0.5))  # fmt: skip


def nemotron_rows(convention: Convention = "full") -> list[Row]:
    """The batch ramp: 768 sequences on 1,536 GPUs in 10.3 s, and so on; MFU in percent."""
    model = nemotron()
    ramp = ((768, 1536, 10.3, 42.4), (1536, 3072, 10.3, 42.3), (2304, 6144, 8.0, 41.0))
    return [
        Row(f"Nemotron-4 340B, {batch} sequences on {gpus} GPUs, {convention}", "% MFU", published,
            100 * mfu(training_flops(model.ops({"tokens_BS": (batch, LENGTH)}), convention) / gpus, seconds, H100))
        for batch, gpus, seconds, published in ramp
    ]  # fmt: skip


def sequence_row() -> Row:
    """DGX Cloud's benchmark of the same model divides by 1.01e16 FLOPs a sequence."""
    model = nemotron()
    return Row("Nemotron-4 340B, a sequence as DGX Cloud counts it", "PFLOP", 10.1,
               training_flops(model.ops({"tokens_BS": (1, LENGTH)})) / 1e15)  # fmt: skip


def all_heads(model: GPT) -> float:
    """PFLOP of a sequence if each head had keys and values of its own: 72 L s h^2 + 12 L s^2 h + 6 s h V."""
    h, layers = model.width, model.depth
    return (72 * layers * LENGTH * h**2 + 12 * layers * LENGTH**2 * h + 6 * LENGTH * h * model.vocab) / 1e15


def video(frames: int, side: int) -> dict[str, tuple[int, ...]]:
    """Inputs of so many latent frames of side x side tokens."""
    return {"latents_BCTHW": (1, CHANNELS, frames, 2 * side, 2 * side), "text_BLD": TEXT}


def per_token(model: nn.Module, shapes: Mapping[str, tuple[int, ...]], without: str = "") -> float:
    """GFLOP of training for each video token; without ops of that name."""
    assert isinstance(model, ReportsFlops)
    _, _, frames, high, wide = shapes["latents_BCTHW"]
    ops = [op for op in model.ops(shapes) if op.name != without]
    return training_flops(ops) / (frames * high * wide / 4) / 1e9


def video_rows() -> list[Row]:
    """GFLOP a token: theirs is TFLOP/s over tokens/s."""
    sizes = {"in_channels": CHANNELS, "text_dim": TEXT[2], "modulation_rank": 256}
    with torch.device("meta"):
        seven, large = DiT(width=4096, depth=28, heads=32, **sizes), DiT(width=6144, depth=48, heads=48, **sizes)
        st_seven, st_large = (
            STDiT(width=4096, depth=18, heads=32, **sizes),
            STDiT(width=5120, depth=20, heads=40, **sizes),
        )
    short, long, middle, st_short = video(32, 16), video(32, 48), video(64, 32), video(16, 48)
    rows = [
        Row("DiT 7B, 8,192 tokens", "GFLOP/token", 519e3 / 10_052, per_token(seven, short)),
        Row("DiT 28B, 8,192 tokens", "GFLOP/token", 468e3 / 2_510, per_token(large, short)),
        Row("DiT 7B, '74k' as 73,728 tokens", "GFLOP/token", 439e3 / 3_409, per_token(seven, long)),
        Row("DiT 7B, '74k' as 65,536 tokens", "GFLOP/token", 439e3 / 3_409, per_token(seven, middle)),
        Row("DiT 28B, 65,536 tokens", "GFLOP/token", 445e3 / 1_386, per_token(large, middle)),
    ]
    for name, model, at, figures in (
        ("ST-DiT 7B, 36,864 tokens", st_seven, st_short, (318.7, 7_984.5)),
        ("ST-DiT 7B, 73,728 tokens", st_seven, long, (335.6, 8_113.6)),
        ("ST-DiT 12B, 36,864 tokens", st_large, st_short, (402.5, 5_738.5)),
        ("ST-DiT 12B, 73,728 tokens", st_large, long, (381.1, 5_288.5)),
    ):
        published = 1e3 * figures[0] / figures[1]
        rows.append(Row(name, "GFLOP/token", published, per_token(model, at)))
        rows.append(Row(f"{name}, full attention's scores apart", "GFLOP/token", published,
                        per_token(model, at, without="full attention")))  # fmt: skip
    return rows


def table() -> list[Row]:
    """All of it."""
    model = nemotron()
    heads = Row("the same, were there as many heads of keys as of queries", "PFLOP", 10.1, all_heads(model))
    return [*nemotron_rows(), *nemotron_rows("causal"), sequence_row(), heads, *video_rows()]


def main() -> None:
    """Print, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the rows here")
    arguments = parser.parse_args()
    rows = table()
    print(f"MFU = {formula('full')}; peak: {H100}\n")
    print(f"{'':72} {'published':>10} {'ours':>8} {'off':>7}")
    for row in rows:
        print(f"{row.what:58} {row.unit:13} {row.published:10.2f} {row.ours:8.2f} {row.off:+7.1%}")
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) | {"off": row.off} for row in rows], indent=1))


if __name__ == "__main__":
    main()
