"""Compares our DiT's training step on one GPU with a plain PyTorch DiT of the same shape: tokens per second and MFU.

    python benchmarks/gpu.py [--json FILE] [--tokens 8192,33792] [--depth N] [--rounds N] [--no-compile]
                             [--recipes current,block]
    python benchmarks/gpu.py --device cpu         tiny shapes, to see that it works; the numbers say nothing

It needs torch and this repository, nothing else. Both models: width 4096, 32 heads of 128, MLP 4 x as wide,
modulations of rank 256, cross-attention to 512 text tokens of 1024, patches (1, 2, 2) of 16 channels, batch 1, as many
blocks as fit (the same for both). A step is forward, backward and fused AdamW, fp32 weights under bf16 autocast,
without recomputation. Rounds run A-B-A-B, so that a warm GPU slows both alike; a time is the median of the rounds.

With FP8 our DiT runs against itself in bf16, by each recipe of --recipes, then against the plain one whose linears are
Transformer Engine's, where that can be imported: `speedups` has tokens a second over those of the other side. A recipe
that ends in -te has Transformer Engine's kernels in our linears. A device without FP8 products emulates ours, which the
output says; such a number says nothing. MFU is over the bf16 peak in FP8, too.

MFU = FLOPs of the matmuls / (seconds x peak). The matmuls of a step are three times those of the forward (the backward
has two for each), and a forward of a block on S tokens of width D, with L text tokens of E:
    8 S D^2 (q, k, v, out) + 4 S^2 D (attention) + 4 S D^2 + 4 L E D + 4 S L D (cross-attention) + 4 S D M (MLP)
with M = 4 D; modulations, norms, embeddings and the optimizer count as nothing. The peak is the dense bf16 one of the
GPU's data sheet, named in the output, or --peak-tflops.
"""

import argparse
import gc
import importlib.util
import json
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nemo_vfm.core.fp8 import Fp8
from nemo_vfm.models.dit import DiT
from nemo_vfm.parallel.apply.apply_parallelism import compile_blocks
from nemo_vfm.parallel.engine.history_updater import HistoryUpdater
from nemo_vfm.parallel.fp8.fp8_product import is_native
from nemo_vfm.parallel.fp8.use_fp8 import use_fp8

#: Dense bf16 TFLOP/s of data sheets, without sparsity; the first name that the device's contains counts.
PEAKS = {"H200": 989.4, "H100 PCIe": 756.0, "H100": 989.4, "A100": 312.0, "L40S": 362.0, "B200": 2250.0}
CHANNELS, RANK = 16, 256
DEPTHS = (12, 8, 6, 4, 3, 2, 1)  # tried in turn where none is asked for


@dataclass(frozen=True)
class Shape:
    """What is computed. `grid` is tokens along time, height and width."""

    grid: tuple[int, int, int]
    width: int
    heads: int
    depth: int
    text_tokens: int
    text_dim: int

    @property
    def tokens(self) -> int:
        """S."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    def flops(self) -> float:
        """Of a step's products, by the formula above."""
        s, d, text, dim = self.tokens, self.width, self.text_tokens, self.text_dim
        own = 8 * s * d * d + 4 * s * s * d
        cross = 4 * s * d * d + 4 * text * dim * d + 4 * s * text * d
        return 3.0 * self.depth * (own + cross + 16 * s * d * d)


@dataclass(frozen=True)
class Row:
    """One line of the table; `failed` says why it has no numbers."""

    tokens: int
    depth: int
    side: str
    step_ms: float | None = None
    spread_ms: float | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None
    peak_memory_gb: float | None = None
    failed: str = ""


class PlainBlock(nn.Module):
    """What a good engineer writes in an afternoon: torch's own modules, fused qkv, its scaled_dot_product_attention."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        d = shape.width
        self.heads = shape.heads
        self.qkv, self.out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.cross_q, self.cross_out = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
        self.cross_kv = nn.Linear(shape.text_dim, 2 * d, bias=False)
        self.norms = nn.ModuleList(nn.RMSNorm(d // shape.heads, eps=1e-6) for _ in range(4))
        self.low = nn.ModuleList(nn.Sequential(nn.Linear(d, RANK, bias=False), nn.Linear(RANK, 3 * d, bias=False))
                                 for _ in range(3))  # fmt: skip
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d, bias=False), nn.GELU(approximate="tanh"),
                                 nn.Linear(4 * d, d, bias=False))  # fmt: skip

    def forward(self, x: Tensor, condition: Tensor, shared: Tensor, rope: Tensor, text: Tensor) -> Tensor:
        """Self-attention, cross-attention, perceptron."""
        chunks = (torch.cat([low(condition) for low in self.low], -1) + shared).unsqueeze(1).chunk(9, dim=-1)
        x = x + chunks[2] * self._self(_modulated(x, chunks[0], chunks[1]), rope)
        x = x + chunks[5] * self._cross(_modulated(x, chunks[3], chunks[4]), text)
        return x + chunks[8] * self.mlp(_modulated(x, chunks[6], chunks[7]))

    def _self(self, x: Tensor, rope: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        q, k = _rotated(self.norms[0](q), rope), _rotated(self.norms[1](k), rope)
        return self.out(F.scaled_dot_product_attention(q, k, v.to(q.dtype)).transpose(1, 2).flatten(2))

    def _cross(self, x: Tensor, text: Tensor) -> Tensor:
        q = self.cross_q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.cross_kv(text).chunk(2, dim=-1))
        q, k = self.norms[2](q).to(v.dtype), self.norms[3](k).to(v.dtype)
        return self.cross_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class PlainDiT(nn.Module):
    """The same network as ours, in the plainest way."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        d = shape.width
        self.enter, self.leave = nn.Linear(4 * CHANNELS, d), nn.Linear(d, 4 * CHANNELS)
        self.time = nn.Sequential(nn.Linear(d, d), nn.SiLU(), nn.Linear(d, d))
        self.shared = nn.Linear(d, 9 * d, bias=False)
        self.blocks = nn.ModuleList(PlainBlock(shape) for _ in range(shape.depth))
        self.register_buffer("rope", _rope(shape), persistent=False)

    def forward(self, patches: Tensor, noise: Tensor, text: Tensor) -> Tensor:
        """Patches (B, S, 64) to patches."""
        d = self.enter.out_features
        rates = torch.exp(-torch.arange(0, d, 2, device=noise.device) / d * 9.2)
        condition = F.silu(self.time(torch.cat([(noise[:, None] * rates).cos(), (noise[:, None] * rates).sin()], -1)))
        x, shared = self.enter(patches), self.shared(condition)
        for block in self.blocks:
            x = block(x, condition, shared, self.rope, text)
        return self.leave(F.layer_norm(x, x.shape[-1:]))


def _modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift


def _rope(shape: Shape) -> Tensor:
    """Angles (S, head dimension / 2): a part of the dimensions turns with each of time, height and width."""
    half = shape.width // shape.heads // 2
    parts = (half - 2 * (half // 3), half // 3, half // 3)
    places = torch.meshgrid(*(torch.arange(n, dtype=torch.float32) for n in shape.grid), indexing="ij")
    rates = [10_000.0 ** -(torch.arange(n, dtype=torch.float32) / n) for n in parts]
    return torch.cat([place.flatten()[:, None] * rate for place, rate in zip(places, rates, strict=True)], dim=1)


def _rotated(x: Tensor, angles: Tensor) -> Tensor:
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    one, two = x.chunk(2, dim=-1)
    return torch.cat([one * cos - two * sin, two * cos + one * sin], dim=-1)


@dataclass
class Side:
    """One competitor with its optimizer."""

    name: str
    model: nn.Module
    forward: Callable[[], Tensor]
    optimizer: torch.optim.Optimizer
    context: Callable[[], AbstractContextManager[object]] = nullcontext


def side(name: str, shape: Shape, device: torch.device) -> Side:
    """`ours`, a recipe of FP8 or none, then `compiled` or `eager`: awake, on the device, each block compiled if asked.

    `plain` is the plain one, `te` the plain one with Transformer Engine's linears.
    """
    torch.manual_seed(0)
    text = torch.randn(1, shape.text_tokens, shape.text_dim, device=device)
    noise = torch.rand(1, device=device)
    model: nn.Module
    if name.startswith("ours"):
        model = _ours(shape, device)
        with device:
            latents = torch.randn(1, CHANNELS, shape.grid[0], 2 * shape.grid[1], 2 * shape.grid[2])
            mask, fps = torch.ones(1, shape.text_tokens, dtype=torch.bool), torch.full((1,), 24.0)
        inputs = {"latents_BCTHW": latents, "noise_B": noise, "text_BLD": text, "text_mask_BL": mask, "fps_B": fps}
    else:
        with device:
            model = PlainDiT(shape)
            patches = torch.randn(1, shape.tokens, 4 * CHANNELS)
        inputs = {"patches": patches, "noise": noise, "text": text}
    context: Callable[[], AbstractContextManager[object]] = nullcontext
    recipe, _, kernels = "".join(name.split()[1:-1]).partition("-")
    if name.startswith("ours") and recipe:
        use_fp8(model, Fp8(recipe=recipe, kernels=kernels or "torch"))  # type: ignore[arg-type]
    elif name.startswith("te"):
        context = _te_linears(model)
    model.to(device).train()
    if name.startswith("ours") and "compiled" in name:
        compile_blocks(model)
    elif "compiled" in name:
        for block in model.blocks:
            block.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    return Side(name, model, lambda: model(**inputs), optimizer, context)


def _ours(shape: Shape, device: torch.device) -> nn.Module:
    """Our DiT, drawn on the device: its own start, drawn on the CPU, takes longer than all rounds.

    A gate at zero would make gradients zeros, so none is.
    """
    with torch.device("meta"):
        model = DiT(in_channels=CHANNELS, text_dim=shape.text_dim, width=shape.width, depth=shape.depth,
                    heads=shape.heads, modulation_rank=RANK)  # fmt: skip
    model.to_empty(device=device)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02) if parameter.ndim > 1 else nn.init.ones_(parameter)
    return model


def _te_linears(model: nn.Module) -> Callable[[], AbstractContextManager[object]]:
    """Put Transformer Engine's linears in the place of those over tokens, and return the context that they need."""
    import transformer_engine.pytorch as te
    from transformer_engine.common.recipe import Float8CurrentScaling

    for block in model.blocks:
        for parent in (block, block.mlp):
            for at, linear in list(parent.named_children()):
                if isinstance(linear, nn.Linear):
                    sizes = linear.in_features, linear.out_features
                    setattr(parent, at, te.Linear(*sizes, bias=False, params_dtype=torch.float32))
    return lambda: te.autocast(enabled=True, recipe=Float8CurrentScaling())


def te_missing() -> str:
    """Why Transformer Engine cannot be a side; empty where it can."""
    if importlib.util.find_spec("transformer_engine") is None:
        return "Transformer Engine is not installed"
    try:
        import transformer_engine.pytorch  # noqa: F401
    except Exception as error:  # without its kernels the package raises RuntimeError
        return f"Transformer Engine cannot be imported: {str(error).partition(chr(10))[0][:150]}"
    return ""


def step(one: Side, device: torch.device) -> float:
    """Seconds of one training step."""
    _settle(device)
    begin = time.perf_counter()
    one.optimizer.zero_grad(set_to_none=True)
    with torch.autocast(device.type, torch.bfloat16) if device.type == "cuda" else nullcontext(), one.context():
        output = one.forward()
    output.float().square().mean().backward()
    one.optimizer.step()
    HistoryUpdater(one.model, None).apply()  # of histories, where it has any
    _settle(device)
    return time.perf_counter() - begin


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _cleared(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def pair(names: tuple[str, str], shape: Shape, rounds: int, peak: float | None, device: torch.device) -> list[Row]:
    """Both sides, three steps each unmeasured, then rounds in turns.

    Raises:
        torch.OutOfMemoryError: they do not fit, not even one after the other.
    """
    most = {name: _alone(name, shape, device) for name in names}
    both = [side(name, shape, device) for name in names]
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds + 1):
        for one in both:
            seconds = step(one, device)
            if number:
                times[one.name].append(seconds)
    return [_row(name, shape, times[name], most[name], peak) for name in names]


def _alone(name: str, shape: Shape, device: torch.device) -> float | None:
    """Peak memory in GB of one side with nothing beside it; it also compiles it."""
    _cleared(device)
    one = side(name, shape, device)
    for _ in range(2):
        step(one, device)
    return torch.cuda.max_memory_allocated(device) / 1e9 if device.type == "cuda" else None


def _row(name: str, shape: Shape, times: list[float], memory_gb: float | None, peak: float | None) -> Row:
    seconds, spread = statistics.median(times), max(times) - min(times)
    mfu = None if peak is None else shape.flops() / seconds / (peak * 1e12)
    return Row(shape.tokens, shape.depth, name, 1e3 * seconds, 1e3 * spread, shape.tokens / seconds, mfu, memory_gb)


def fitted(
    names: tuple[str, str], shapes: list[Shape], rounds: int, peak: float | None, device: torch.device
) -> list[Row]:
    """The deepest of the shapes that fits; where compiling fails, what it said."""
    for shape in shapes:
        try:
            return pair(names, shape, rounds, peak, device)
        except torch.OutOfMemoryError:
            print(f"{shape.tokens} tokens, {shape.depth} blocks: out of memory, fewer are tried", flush=True)
        except Exception as error:
            if "eager" in names[0]:
                raise
            return [Row(shape.tokens, shape.depth, name, failed=str(error).partition("\n")[0][:200]) for name in names]
        _cleared(device)
    return [Row(shapes[-1].tokens, shapes[-1].depth, name, failed="out of memory") for name in names]


def peak_of(device: torch.device, asked: float | None) -> tuple[float | None, str]:
    """Dense bf16 TFLOP/s, and where the number is from."""
    if asked is not None:
        return asked, "as --peak-tflops said"
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    for known, value in PEAKS.items():
        if known in name:
            return value, f"data sheet of {known}, dense bf16; the device says {name}"
    return None, f"none is known for {name}, so there is no MFU; --peak-tflops gives one"


def shapes_of(given: argparse.Namespace, tokens: int) -> list[Shape]:
    """Shapes of so many tokens, the deepest first."""
    depths = (given.depth,) if given.depth else DEPTHS
    if given.device == "cpu":
        grid = (tokens // 16, 4, 4)
        return [Shape(grid, 64, 4, given.depth or 2, 8, 32)]
    return [Shape((tokens // 1024, 32, 32), 4096, 32, depth, 512, 1024) for depth in depths]


def pairs(how: str, recipes: list[str]) -> list[tuple[str, str]]:
    """Who runs against whom; the last pair only where Transformer Engine is."""
    ours = [(f"ours {recipe} {how}", f"ours {how}") for recipe in recipes]
    return [(f"ours {how}", f"plain {how}"), *ours, *((one, f"te {how}") for one, _ in ours[:1])]


def measured(names: tuple[str, str], shapes: list[Shape], given: argparse.Namespace, peak: float | None) -> list[Row]:
    """Both sides of a pair; where one cannot be, what is the matter."""
    device = torch.device(given.device)
    for name in names:
        if "te" in name.replace("-", " ").split() and (why := te_missing()):
            return [Row(shapes[-1].tokens, shapes[-1].depth, name, failed=why)]
    return fitted(names, shapes, given.rounds, peak, device)


def speedup(found: list[Row]) -> dict[str, float]:
    """Tokens a second of the first side over the second's, where both have run."""
    if len(found) < 2 or found[0].tokens_per_s is None or found[1].tokens_per_s is None:
        return {}
    first, second = found
    return {f"{first.tokens} tokens: {first.side} over {second.side}": found[0].tokens_per_s / found[1].tokens_per_s}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tokens", help="comma-separated; multiples of 1024, on a CPU of 16")
    parser.add_argument("--depth", type=int)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--peak-tflops", type=float)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--recipes", default="current", help="of FP8, comma-separated; empty for none")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no GPU here; --device cpu tries the script with tiny shapes")
    device = torch.device(given.device)
    (peak, source), rows = peak_of(device, given.peak_tflops), list[Row]()
    recipes = [one for one in given.recipes.split(",") if one]
    te_missing()  # imported before torch loads its cuDNN, or another copy of it may be loaded beside it
    counts = [int(n) for n in (given.tokens or ("32,64" if given.device == "cpu" else "8192,33792")).split(",")]
    if recipes and not is_native(device):
        print(f"FP8 is emulated on this {device.type} device: its rows say that it runs, and nothing of its speed")
    print(f"torch {torch.__version__}; peak {peak} TFLOP/s ({source})\n{'tokens':>7} {'blocks':>6}  {'side':15} "
          f"{'ms/step':>9} {'spread':>7} {'tokens/s':>10} {'MFU':>6} {'GB':>6}")  # fmt: skip
    speedups: dict[str, float] = {}
    for tokens in counts:
        for how in ["eager"] if given.no_compile else ["eager", "compiled"]:
            for names in pairs(how, recipes):
                found = measured(names, shapes_of(given, tokens), given, peak)
                rows, speedups = [*rows, *found], speedups | speedup(found)
                print("\n".join(map(_told, found)), flush=True)
    for what, ratio in speedups.items():
        print(f"{what}: {ratio:.2f}x")
    if given.json:
        said = {"torch": torch.__version__, "peak_tflops": peak, "peak_source": source, "rows": list(map(asdict, rows)),
                "fp8_emulated": not is_native(device), "speedups": speedups}  # fmt: skip
        given.json.write_text(json.dumps(said, indent=1) + "\n")


def _told(row: Row) -> str:
    start = f"{row.tokens:7} {row.depth:6}  {row.side:15} "
    if row.step_ms is None or row.tokens_per_s is None or row.spread_ms is None:
        return f"{start} {row.failed}"
    mfu = "-" if row.mfu is None else f"{100 * row.mfu:.1f}%"
    memory = "-" if row.peak_memory_gb is None else f"{row.peak_memory_gb:.1f}"
    return f"{start}{row.step_ms:9.1f} {row.spread_ms:7.1f} {row.tokens_per_s:10.0f} {mfu:>6} {memory:>6}"


if __name__ == "__main__":
    main()
