"""Compares our DiT's forward and backward with diffusers' WanTransformer3DModel and CosmosTransformer3DModel.

    python benchmarks/dit_step.py [--quick] [--json FILE] [--rounds N] [--only fp32|bf16]

All three: 4 layers, width 384, 6 heads, MLP 1536, patches (1, 2, 2), full self-attention over 1,024 video tokens and
cross-attention to 64 text tokens of width 256, batch 2, random weights (none left at zero), the same autocast, the same
loss. Rounds run A-B-C-A-B-C, so that a busy machine slows all alike; a ratio is the median over rounds of (time of the
faster peer / our time), above 1 where we are faster. `--quick` keeps the comparison at 2 layers and 256 video tokens.
CPU seconds of each side are printed as a cross-check of the wall clock.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import diffusers
import torch
from diffusers import CosmosTransformer3DModel, WanTransformer3DModel
from torch import Tensor, nn

from nemo_vfm.core import device
from nemo_vfm.models.dit import DiT

NO_BF16 = (
    " (this CPU has no bf16 products: torch's are scalar loops, which the peers use; "
    "ours round to bf16 and multiply in fp32)"
)
HEADS, HEAD_DIM, CHANNELS, TEXT_DIM, TEXT_TOKENS, BATCH = 6, 64, 16, 256, 64, 2


@dataclass(frozen=True)
class Shape:
    """What is computed: layers, and latents of frames x side x side."""

    layers: int
    frames: int
    side: int

    def tokens(self) -> int:
        """Video tokens of a sample."""
        return self.frames * (self.side // 2) ** 2


@dataclass
class Side:
    """One competitor and its measurements."""

    name: str
    model: nn.Module
    forward: Callable[[nn.Module], Tensor]
    wall_s: list[float]
    cpu_s: list[float]


def sides(shape: Shape) -> list[Side]:
    """Ours first, then the peers, on equal inputs."""
    torch.manual_seed(0)
    latents = torch.randn(BATCH, CHANNELS, shape.frames, shape.side, shape.side)
    text, mask = torch.randn(BATCH, TEXT_TOKENS, TEXT_DIM), torch.ones(BATCH, TEXT_TOKENS, dtype=torch.bool)
    noise, fps = torch.rand(BATCH), torch.full((BATCH,), 24.0)
    ours = DiT(in_channels=CHANNELS, text_dim=TEXT_DIM, width=HEADS * HEAD_DIM, depth=shape.layers, heads=HEADS)
    wan = WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=HEADS, attention_head_dim=HEAD_DIM, in_channels=CHANNELS,
        out_channels=CHANNELS, text_dim=TEXT_DIM, freq_dim=256, ffn_dim=4 * HEADS * HEAD_DIM, num_layers=shape.layers,
    )  # fmt: skip
    cosmos = CosmosTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=HEADS, attention_head_dim=HEAD_DIM, in_channels=CHANNELS,
        out_channels=CHANNELS, text_embed_dim=TEXT_DIM, num_layers=shape.layers, mlp_ratio=4.0,
        concat_padding_mask=False, extra_pos_embed_type=None,
    )  # fmt: skip

    def our_forward(model: nn.Module) -> Tensor:
        return model(latents_BCTHW=latents, noise_B=noise, text_BLD=text, text_mask_BL=mask, fps_B=fps)

    def wan_forward(model: nn.Module) -> Tensor:
        return model(latents, (1000 * noise).long(), text, return_dict=False)[0]

    def cosmos_forward(model: nn.Module) -> Tensor:
        return model(latents, noise, text, fps=24, return_dict=False)[0]

    return [
        Side("nemo_vfm DiT", awake(ours), our_forward, [], []),
        Side("WanTransformer3DModel", awake(wan), wan_forward, [], []),
        Side("CosmosTransformer3DModel", awake(cosmos), cosmos_forward, [], []),
    ]


def awake(model: nn.Module) -> nn.Module:
    """The model in training mode with no weight matrix at zero: a zero gate would make its gradients zeros."""
    for parameter in model.parameters():
        if parameter.ndim > 1 and not parameter.any():
            nn.init.normal_(parameter, std=0.02)
    return model.train()


def step(side: Side, dtype: torch.dtype) -> tuple[float, float]:
    """Wall and CPU seconds of one forward and backward."""
    side.model.zero_grad(set_to_none=True)
    wall, cpu = time.perf_counter(), time.process_time()
    with torch.autocast("cpu", dtype=dtype) if dtype != torch.float32 else nullcontext():
        output = side.forward(side.model)
    output.float().square().mean().backward()
    return time.perf_counter() - wall, time.process_time() - cpu


def measure(shape: Shape, dtype: torch.dtype, rounds: int, budget_s: float) -> float:
    """The ratio, after one unmeasured round; fewer rounds than asked, at least 1, where the budget would be passed."""
    competitors = sides(shape)
    begin = last = time.perf_counter()
    for side in competitors:
        step(side, dtype)
    done = 0
    while done < rounds:
        now = time.perf_counter()
        if done and now + (now - last) > begin + budget_s:
            print(
                f"  a round takes {now - last:.1f} s: {done} rounds instead of {rounds}, to stay near {budget_s:.0f} s"
            )
            break
        last = now
        for side in competitors:
            wall, cpu = step(side, dtype)
            side.wall_s.append(wall)
            side.cpu_s.append(cpu)
        done += 1
    return report(competitors, shape, done)


def report(competitors: list[Side], shape: Shape, rounds: int) -> float:
    """Print a line a side; the median over rounds of the faster peer's time over ours."""
    ours, *peers = competitors
    for side in competitors:
        wall, cpu = statistics.median(side.wall_s), statistics.median(side.cpu_s)
        count = sum(p.numel() for p in side.model.parameters())
        print(
            f"  {side.name:<25} {count / 1e6:6.2f} M parameters  {wall:8.3f} s ({cpu:.3f} CPU s)  "
            f"{BATCH * shape.tokens() / wall:9.1f} tokens/s"
        )
    peer = min(peers, key=lambda side: statistics.median(side.wall_s))
    ratio = statistics.median(theirs / own for theirs, own in zip(peer.wall_s, ours.wall_s, strict=True))
    by_cpu = statistics.median(theirs / own for theirs, own in zip(peer.cpu_s, ours.cpu_s, strict=True))
    print(f"  faster peer: {peer.name}; ratio {ratio:.3f} (by CPU seconds {by_cpu:.3f}), median of {rounds} rounds")
    if rounds < 7:
        print("  fewer than 7 rounds: an impression, not a figure; run without --quick on an idle machine for one")
    return ratio


def main() -> None:
    """Measure and print; write JSON where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="2 layers, 256 video tokens, within 60 s")
    parser.add_argument("--json", type=Path, help="write {figure: number} here")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each precision, at least 7 for a figure")
    parser.add_argument("--only", choices=["fp32", "bf16"], help="one precision alone")
    options = parser.parse_args()
    torch.set_num_threads(2)
    shape = Shape(2, 1, 32) if options.quick else Shape(4, 4, 32)
    print(f"torch {torch.__version__}, diffusers {diffusers.__version__}, {device.describe()}")
    print(
        f"{shape.layers} layers, width {HEADS * HEAD_DIM}, {HEADS} heads, MLP {4 * HEADS * HEAD_DIM}, "
        f"{shape.tokens()} video and {TEXT_TOKENS} text tokens, batch {BATCH}"
    )
    figures = {}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        if options.only in (None, name):
            slow = dtype == torch.bfloat16 and not device.has_fast_bf16()
            print(f"{name}{' autocast' if name == 'bf16' else ''}{NO_BF16 if slow else ''}:")
            budget_s = 15.0 if options.quick else 600.0
            figures[f"tokens_per_s_ratio_{name}"] = measure(shape, dtype, options.rounds, budget_s)
    for name, value in figures.items():
        print(f"{name} {value:.4f}")
    if options.json:
        options.json.write_text(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
