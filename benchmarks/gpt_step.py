"""Compares our GPT's forward and backward with transformers' LlamaForCausalLM (sdpa) with the same weights.

    python benchmarks/gpt_step.py [--quick] [--json FILE] [--rounds N] [--only bf16|fp32]

Both: 8 layers, width 512, 8 heads, 4 of keys and values, MLP 1376, vocabulary 32,000, 2 x 512 tokens, the same
autocast, the loss included; theirs computes it itself, given labels. The losses must be equal (1e-5 in fp32, 2e-3 under
bf16, whose products round in other orders), and the gradients' norms, too. Rounds run A-B-A-B; a ratio is the median
over rounds of their time over ours, above 1 where we are faster. `--quick` keeps 2 layers and 2 x 128 tokens.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from nemo_vfm.core import device
from nemo_vfm.core.types.sample_batches import TokenBatch
from nemo_vfm.language.next_token_task import NextToken
from nemo_vfm.models.convert.gpt_folder import load_gpt

CLOSE = {torch.float32: 1e-5, torch.bfloat16: 2e-3}
BATCH, WORDS = 2, 32_000


@dataclass
class Side:
    """One competitor and its measurements."""

    name: str
    model: nn.Module
    loss: Callable[[], Tensor]
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)


def sides(layers: int, length: int) -> list[Side]:
    """Ours first, with the other's weights, on the same words."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=512, intermediate_size=1376, num_hidden_layers=layers, num_attention_heads=8,
        num_key_value_heads=4, max_position_embeddings=length, attn_implementation="sdpa", use_cache=False,
    )  # fmt: skip
    theirs = LlamaForCausalLM(config).train()
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours = load_gpt(Path(folder)).train()
    words = torch.randint(WORDS, (BATCH, length + 1))
    tokens, labels = words[:, :-1].contiguous(), words[:, 1:].contiguous()
    rows = TokenBatch(0, ("a", "b"), torch.ones(BATCH), tokens_BS=tokens, labels_BS=labels)

    def our_loss() -> Tensor:
        prepared = NextToken().prepare(rows, seed=0, training=True)
        losses = NextToken().losses(ours(**prepared.inputs), prepared)
        return (losses * prepared.weight_B).sum() / prepared.weight_B.sum()

    def their_loss() -> Tensor:
        return theirs(input_ids=tokens, shift_labels=labels, labels=labels).loss

    return [Side("nemo_vfm GPT", ours, our_loss), Side("LlamaForCausalLM", theirs, their_loss)]


def step(side: Side, dtype: torch.dtype) -> tuple[float, float, float]:
    """Wall and CPU seconds of one forward and backward, and the loss."""
    side.model.zero_grad(set_to_none=True)
    wall, cpu = time.perf_counter(), time.process_time()
    with torch.autocast("cpu", dtype=dtype) if dtype != torch.float32 else nullcontext():
        loss = side.loss()
    loss.backward()
    return time.perf_counter() - wall, time.process_time() - cpu, float(loss.detach())


def require_equal(competitors: list[Side], dtype: torch.dtype) -> None:
    """Stop where the two do not compute the same."""
    (_, _, ours), (_, _, theirs) = (step(side, dtype) for side in competitors)
    norms = [float(sum(p.grad.double().square().sum() for p in side.model.parameters()) ** 0.5) for side in competitors]
    apart = max(abs(ours / theirs - 1), abs(norms[0] / norms[1] - 1))
    print(f"  loss {ours:.6f} and {theirs:.6f}, gradient norm {norms[0]:.6f} and {norms[1]:.6f}")
    if apart > CLOSE[dtype]:
        raise SystemExit(f"the two differ by {apart:.1e}, more than {CLOSE[dtype]}: there is nothing to compare")


def measure(layers: int, length: int, dtype: torch.dtype, rounds: int, budget_s: float) -> float:
    """The ratio; fewer rounds than asked, at least 1, where the budget would be passed."""
    competitors = sides(layers, length)
    require_equal(competitors, dtype)
    begin = time.perf_counter()
    while len(competitors[0].wall_s) < rounds:
        done, passed = len(competitors[0].wall_s), time.perf_counter() - begin
        if done and passed * (done + 1) / done > budget_s:
            print(f"  {done} rounds instead of {rounds}, to stay near {budget_s:.0f} s")
            break
        for side in competitors:
            wall, cpu, _ = step(side, dtype)
            side.wall_s.append(wall)
            side.cpu_s.append(cpu)
    return report(competitors, BATCH * length)


def report(competitors: list[Side], tokens: int) -> float:
    """Print a line a side; the median over rounds of their time over ours."""
    for side in competitors:
        wall, cpu = statistics.median(side.wall_s), statistics.median(side.cpu_s)
        count = sum(p.numel() for p in side.model.parameters())
        print(f"  {side.name:<18} {count / 1e6:6.2f} M parameters  {wall:8.3f} s ({cpu:.3f} CPU s)  "
              f"{tokens / wall:9.1f} tokens/s")  # fmt: skip
    ours, theirs = competitors
    ratio = statistics.median(their / our for their, our in zip(theirs.wall_s, ours.wall_s, strict=True))
    by_cpu = statistics.median(their / our for their, our in zip(theirs.cpu_s, ours.cpu_s, strict=True))
    rounds = len(ours.wall_s)
    print(f"  ratio {ratio:.3f} (by CPU seconds {by_cpu:.3f}), median of {rounds} rounds")
    if rounds < 7:
        print("  fewer than 7 rounds: an impression, not a figure; run without --quick on an idle machine for one")
    return ratio


def main() -> None:
    """Measure and print; write JSON where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="2 layers, 2 x 128 tokens, within 60 s")
    parser.add_argument("--json", type=Path, help="write {figure: number} here")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each precision, at least 7 for a figure")
    parser.add_argument("--only", choices=["bf16", "fp32"], help="one precision alone")
    options = parser.parse_args()
    torch.set_num_threads(2)
    layers, length = (2, 128) if options.quick else (8, 512)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {device.describe()}")
    print(f"{layers} layers, width 512, 8 heads (4 of keys and values), MLP 1376, vocabulary {WORDS:,}, "
          f"{BATCH} x {length} tokens")  # fmt: skip
    figures = {}
    for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        if options.only in (None, name):
            slow = dtype == torch.bfloat16 and not device.has_fast_bf16()
            print(f"{name}{' autocast' * (name == 'bf16')}{' (no bf16 products here)' * slow}:")
            figure = "tokens_per_s_ratio" + "_fp32" * (name == "fp32")
            figures[figure] = measure(layers, length, dtype, options.rounds, 15.0 if options.quick else 600.0)
    for name, value in figures.items():
        print(f"{name} {value:.4f}")
    if options.json:
        options.json.write_text(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
