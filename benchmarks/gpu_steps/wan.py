"""Measures a LoRA training step and a forward of Wan 2.1 1.3B on one GPU, ours beside diffusers with PEFT.

    python benchmarks/gpu_steps/wan.py [--json FILE] [--only WORDS] [--quick]

One 480p video of 81 frames (32,760 tokens), random weights stored in bf16, rank 16 on all linears of both attentions
and the perceptron, blocks recomputed, AdamW. The FLOPs are those of the network without adapters.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from timing import DEVICE, Figures, by_kind, cleared, default_dtype, drawn, mfu, report_of, timed
from torch import nn

from nemo_vfm.core.precision import Precision
from nemo_vfm.models.adapters.low_rank_adapter import AdaptedModel, AdapterTarget, LowRankAdapter
from nemo_vfm.models.wan import Wan
from nemo_vfm.parallel.engine.step_runner import EngineInputs
from nemo_vfm.parallel.engine.torch_engine import TorchEngine
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.perf.flops import forward_flops, training_flops
from nemo_vfm.perf.memory import facts, memory
from tests.support.measured_step import MadeUp, made_up

RANK, ALPHA = 16, 32.0
ADAMW = partial(torch.optim.AdamW, lr=1e-4)


@dataclass(frozen=True)
class Size:
    """Of the network, and of its latents and text."""

    width: int = 1536
    depth: int = 30
    heads: int = 12
    mlp_hidden: int = 8960
    text_dim: int = 4096
    text_tokens: int = 512
    latents: tuple[int, ...] = (1, 16, 21, 60, 104)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the inputs."""
        return {"latents_BCTHW": self.latents, "text_BLD": (1, self.text_tokens, self.text_dim)}

    def network(self) -> Wan:
        """Without adapters."""
        return Wan(in_channels=16, patch=(1, 2, 2), width=self.width, depth=self.depth, heads=self.heads,
                   mlp_hidden=self.mlp_hidden, text_dim=self.text_dim)  # fmt: skip

    def adapted(self) -> AdaptedModel:
        """With adapters."""
        kinds = "self_attention", "cross_attention", "mlp"
        targets = {kind: AdapterTarget(modules=f"blocks.*.{kind}.*", rank=RANK, alpha=ALPHA) for kind in kinds}
        return AdaptedModel(self.network, LowRankAdapter(targets=targets))


TINY = Size(width=96, depth=2, heads=4, mlp_hidden=192, text_dim=64, text_tokens=16, latents=(1, 16, 3, 8, 8))


def ours(size: Size, compile: bool, profiled: bool) -> Figures:
    """The engine's step, the memory that is planned for it, and its forward."""
    build = size.adapted()
    inputs = EngineInputs(partial(drawn, build), MadeUp(), ADAMW, Precision("bf16"), 0, ParallelPlan())
    runner = TorchEngine(recompute="blocks", compile=compile).start(inputs)
    batch = made_up(size.shapes, 1).to(DEVICE)

    def step() -> None:
        runner.step([batch])

    found = _measured(size, step, lambda: runner.evaluate(batch))
    with torch.device("meta"):
        known = facts(build(), size.shapes, ADAMW)
    planned = memory(known, ParallelPlan(), precision="bf16", recompute="blocks")
    found |= {"planned_gb": round(planned.total / 1e9, 3), "fullest": planned.moment}
    return {**found, **(by_kind(step, 1) if profiled else {})}


def theirs(size: Size, compile: bool) -> Figures:
    """Diffusers' network with PEFT's adapters and gradient checkpointing."""
    model = _their_model(size, compile)
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = ADAMW(learning)
    latents = torch.randn(size.latents, device=DEVICE, dtype=torch.bfloat16)
    text = torch.randn(size.shapes["text_BLD"], device=DEVICE, dtype=torch.bfloat16)
    level = torch.full((1,), 500.0, device=DEVICE)

    def forward() -> torch.Tensor:
        with torch.autocast(DEVICE.type, torch.bfloat16):
            return model(latents, level, text, return_dict=False)[0]

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        forward().float().square().mean().backward()
        nn.utils.clip_grad_norm_(learning, 1.0)
        optimizer.step()

    def evaluate() -> None:
        with torch.no_grad():
            forward()

    return _measured(size, step, evaluate)


def _their_model(size: Size, compile: bool) -> nn.Module:
    import peft
    from diffusers import WanTransformer3DModel

    with default_dtype(torch.bfloat16), DEVICE:
        model = WanTransformer3DModel(
            patch_size=(1, 2, 2), num_attention_heads=size.heads, attention_head_dim=size.width // size.heads,
            in_channels=16, out_channels=16, text_dim=size.text_dim, freq_dim=256, ffn_dim=size.mlp_hidden,
            num_layers=size.depth,
        )  # fmt: skip
    model.to(DEVICE)  # its rotary table is made elsewhere
    model.requires_grad_(False)
    targets = ["to_q", "to_k", "to_v", "to_out.0", "ffn.net.0.proj", "ffn.net.2"]
    model.add_adapter(peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=targets))
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    model.train()
    model.enable_gradient_checkpointing()
    if compile:
        for block in model.blocks:
            block.compile()
    return model


def _measured(size: Size, step: Callable[[], object], forward: Callable[[], object]) -> Figures:
    count = 1 if size is TINY else 2
    with torch.device("meta"):
        ops = size.network().ops(size.shapes)
    found = timed(step, count)
    found |= mfu(training_flops(ops, frozen=True), found)
    cleared()
    alone = timed(forward, count)
    return {**found, "forward": {**alone, **mfu(forward_flops(ops), alone)}}


def main() -> None:
    """Eager sides before compiled ones, which take minutes to start."""
    report = report_of(__doc__)
    size = TINY if report.quick else Size()
    for compile in (False, True):
        how = "compiled" if compile else "eager"
        report.side(f"ours, {how}", partial(ours, size, compile, profiled=not compile))
        report.side(f"diffusers with PEFT, {how}", partial(theirs, size, compile))


if __name__ == "__main__":
    main()
