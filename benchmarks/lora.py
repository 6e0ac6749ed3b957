"""Compares a training step of our LoRA with PEFT's on diffusers' WanTransformer3DModel with the same weights.

    python benchmarks/lora.py [--quick] [--json FILE] [--rounds N]

Both: a Wan of 4 layers, width 384, 6 heads, MLP 1536, 1,024 video tokens and 64 text tokens of width 256, batch 2,
fp32; adapters of rank 16 and alpha 32 on every linear of attention and perceptron, with the same numbers; the same
loss; torch's AdamW over what has gradients. A step is forward, loss, backward and the optimizer. The losses and the
norms of the gradients must be equal (1e-5 and 1e-4), before and after five steps.

tokens_per_s_ratio: rounds run A-B-A-B; the median over rounds of their time over ours, above 1 where we are faster.
memory_over_peft: our peak over theirs. The peak is counted by torch's profiler, which sees every allocation, from the
building of the model to the end of a third step; it counts weights, adapters, optimizer state and activations.
file_over_adapter: bytes of our adapter's file over those of its numbers in fp32.

`--quick` keeps the comparison at 2 layers and 256 video tokens.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import diffusers
import peft
import torch
from diffusers import WanTransformer3DModel
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the measurement lies beside the tests

from nemo_vfm.core import device
from nemo_vfm.models.adapters.adapter_file import write_adapter
from nemo_vfm.models.adapters.load_adapters import AdapterFile, load_adapters
from nemo_vfm.models.adapters.matrices import extract_adapter
from nemo_vfm.models.convert.video.transformer_folder import load_video_model
from tests.support.measured_step import max_allocated

HEADS, HEAD_DIM, CHANNELS, TEXT_DIM, TEXT_TOKENS, BATCH = 6, 64, 16, 256, 64, 2
RANK, ALPHA, NAME = 16, 32.0, "mine"
LINEARS = ["to_q", "to_k", "to_v", "to_out.0", "ffn.net.0.proj", "ffn.net.2"]
ADAMW = partial(torch.optim.AdamW, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.01)


@dataclass(frozen=True)
class Shape:
    """What is computed: layers, and latents of frames x side x side."""

    layers: int
    frames: int
    side: int

    def tokens(self) -> int:
        """Video tokens of a sample."""
        return self.frames * (self.side // 2) ** 2

    def peer(self) -> WanTransformer3DModel:
        """The peer's model, its weights drawn anew."""
        return WanTransformer3DModel(
            patch_size=(1, 2, 2), num_attention_heads=HEADS, attention_head_dim=HEAD_DIM, in_channels=CHANNELS,
            out_channels=CHANNELS, text_dim=TEXT_DIM, freq_dim=256, ffn_dim=4 * HEADS * HEAD_DIM,
            num_layers=self.layers,
        )  # fmt: skip


@dataclass
class Side:
    """One competitor and its measurements."""

    name: str
    model: nn.Module
    forward: Callable[[], Tensor]
    wanted: Tensor
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.learning = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = ADAMW(self.learning)

    def step(self) -> float:
        """Forward, loss, backward and the optimizer; the loss."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = (self.forward() - self.wanted).square().mean()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def norm(self) -> float:
        """Of the last step's gradients."""
        return float(sum(p.grad.double().square().sum() for p in self.learning if p.grad is not None) ** 0.5)


def prepare(shape: Shape, folder: Path) -> None:
    """Write the base and an adapter whose B is not zero."""
    torch.manual_seed(0)
    base = shape.peer()
    with torch.no_grad():
        for parameter in base.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    base.save_pretrained(folder / "base")
    config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=LINEARS, init_lora_weights=False)
    peft.get_peft_model(base, config).save_pretrained(folder / "adapter")


def our_side(shape: Shape, folder: Path) -> Side:
    """Our model as `AdaptedModel` makes it, with the numbers of the folder."""
    model = load_video_model(folder / "base").train()
    model.requires_grad_(False)
    load_adapters(model, {NAME: AdapterFile(path=folder / "adapter")})
    latents, levels, text, wanted = inputs(shape)
    mask, fps = torch.ones(BATCH, TEXT_TOKENS, dtype=torch.bool), torch.full((BATCH,), 16.0)

    def forward() -> Tensor:
        output: Tensor = model(latents_BCTHW=latents, noise_B=levels / 1000, text_BLD=text, text_mask_BL=mask,
                               fps_B=fps)  # fmt: skip
        return output

    return Side("nemo_vfm Wan + LoRA", model, forward, wanted)


def their_side(shape: Shape, folder: Path) -> Side:
    """PEFT on diffusers' model; its weights are copied, since mapped files are no allocations."""
    from safetensors.torch import load_file

    base = shape.peer().train()
    base.load_state_dict(load_file(next((folder / "base").glob("*.safetensors"))))
    model = peft.PeftModel.from_pretrained(base, folder / "adapter", is_trainable=True)
    latents, levels, text, wanted = inputs(shape)

    def forward() -> Tensor:
        output: Tensor = model(latents, levels.long(), text, return_dict=False)[0]
        return output

    return Side("PEFT on WanTransformer3DModel", model, forward, wanted)


def inputs(shape: Shape) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Latents, noise levels in thousandths, text, and what the output is to be."""
    numbers = torch.Generator().manual_seed(1)
    size = BATCH, CHANNELS, shape.frames, shape.side, shape.side
    latents, wanted = (torch.randn(size, generator=numbers) for _ in range(2))
    text = torch.randn(BATCH, TEXT_TOKENS, TEXT_DIM, generator=numbers)
    return latents, torch.tensor([250.0, 750.0]), text, wanted


def require_equal(competitors: list[Side]) -> None:
    """Five steps; stop where the two do not learn the same."""
    for number in range(5):
        losses, norms = zip(*((side.step(), side.norm()) for side in competitors), strict=True)
        apart = abs(losses[0] / losses[1] - 1), abs(norms[0] / norms[1] - 1)
        if number in (0, 4):
            print(f"  step {number + 1}: loss {losses[0]:.6f} and {losses[1]:.6f}, gradient norm {norms[0]:.6f} and "
                  f"{norms[1]:.6f}")  # fmt: skip
        if apart[0] > 1e-5 or apart[1] > 1e-4:
            raise SystemExit(f"the losses differ by {apart[0]:.1e}, the norms by {apart[1]:.1e}: they do not learn the "
                             f"same, so there is nothing to compare")  # fmt: skip


def measured_speed(competitors: list[Side], shape: Shape, rounds: int, budget_s: float) -> float:
    """The ratio; fewer rounds than asked, at least 1, where the budget would be passed."""
    begin = time.perf_counter()
    while len(competitors[0].wall_s) < rounds:
        done, passed = len(competitors[0].wall_s), time.perf_counter() - begin
        if done and passed * (done + 1) / done > budget_s:
            print(f"  {done} rounds instead of {rounds}, to stay near {budget_s:.0f} s")
            break
        for side in competitors:
            wall, cpu = time.perf_counter(), time.process_time()
            side.step()
            side.wall_s.append(time.perf_counter() - wall)
            side.cpu_s.append(time.process_time() - cpu)
    return report(competitors, BATCH * shape.tokens())


def report(competitors: list[Side], tokens: int) -> float:
    """Print a line a side; the median over rounds of their time over ours."""
    for side in competitors:
        wall, cpu = statistics.median(side.wall_s), statistics.median(side.cpu_s)
        count, learning = (sum(p.numel() for p in own) / 1e6 for own in (side.model.parameters(), side.learning))
        print(f"  {side.name:<30} {count:6.2f} M parameters, {learning:.3f} M learn  {wall:7.3f} s ({cpu:.3f} CPU s)  "
              f"{tokens / wall:9.1f} tokens/s")  # fmt: skip
    ours, theirs = competitors
    ratio, by_cpu = (
        statistics.median(their / our for their, our in zip(b, a, strict=True))
        for a, b in ((ours.wall_s, theirs.wall_s), (ours.cpu_s, theirs.cpu_s))
    )
    rounds = len(ours.wall_s)
    print(f"  ratio {ratio:.3f} (by CPU seconds {by_cpu:.3f}), median of {rounds} rounds")
    if rounds < 7:
        print("  fewer than 7 rounds: an impression, not a figure; run without --quick on an idle machine for one")
    return ratio


def peak(made: Callable[[Shape, Path], Side], shape: Shape, folder: Path) -> int:
    """Bytes at the fullest moment of two steps after a first one."""
    sides: list[Side] = []

    def begin() -> None:
        sides.append(made(shape, folder))
        sides[0].step()

    def go_on() -> None:
        for _ in range(2):
            sides[0].step()

    return max_allocated(begin, go_on)


def measured_file(ours: Side, folder: Path) -> float:
    """Bytes of the file over those of the numbers in it."""
    matrices = extract_adapter(ours.model, NAME, our_names=True)
    file = write_adapter(folder, "ours", matrices, ours.model, base=16 * "0")
    numbers = sum(4 * parameter.numel() for parameter in ours.learning)
    print(f"file: {file.stat().st_size:,} bytes for {numbers:,} bytes of numbers")
    return file.stat().st_size / numbers


def measure(shape: Shape, rounds: int, budget_s: float, folder: Path) -> dict[str, float]:
    """All figures."""
    prepare(shape, folder)
    competitors = [our_side(shape, folder), their_side(shape, folder)]
    require_equal(competitors)
    ratio = measured_speed(competitors, shape, rounds, budget_s)
    size = measured_file(competitors[0], folder)
    competitors.clear()
    ours, theirs = (peak(made, shape, folder) for made in (our_side, their_side))
    print(f"peak of allocations: {ours / 1e6:.1f} MB, theirs {theirs / 1e6:.1f} MB")
    return {"tokens_per_s_ratio": ratio, "memory_over_peft": ours / theirs, "file_over_adapter": size}


def main() -> None:
    """Measure and print; write JSON where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="2 layers, 256 video tokens, within 60 s")
    parser.add_argument("--json", type=Path, help="write {figure: number} here")
    parser.add_argument("--rounds", type=int, default=15, help="rounds, at least 7 for a figure")
    options = parser.parse_args()
    torch.set_num_threads(2)
    shape = Shape(2, 1, 32) if options.quick else Shape(4, 4, 32)
    print(f"torch {torch.__version__}, diffusers {diffusers.__version__}, peft {peft.__version__}, {device.describe()}")
    print(
        f"{shape.layers} layers, width {HEADS * HEAD_DIM}, {HEADS} heads, MLP {4 * HEADS * HEAD_DIM}, rank {RANK}, "
        f"{shape.tokens()} video and {TEXT_TOKENS} text tokens, batch {BATCH}, fp32"
    )
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(shape, options.rounds, 15.0 if options.quick else 600.0, Path(folder))
    for name, value in figures.items():
        print(f"{name} {value:.4f}")
    if options.json:
        options.json.write_text(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
