"""Measures how far scores and losses of our GPT are from those of transformers, converted in both directions.

    python benchmarks/gpt_parity.py [--quick] [--json FILE]

For each family: transformers saves a model with random norms and biases (ones and zeros would hide errors), and
`load_gpt` reads it; `write_gpt` writes ours, and transformers loads it again. Scores of every vocabulary entry after
every token are compared in fp32. Ours are compared with theirs, theirs of our folder with theirs, and ours token by
token with a cache with ours at once. Numbers are the largest difference over all scores, beside the largest score. Then
come one forward and backward with the loss: its difference, and the largest relative difference of a weight's gradient
(norm of the difference over norm). It fails above 1e-4. `--quick` takes narrow models.
"""

import argparse
import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from nemo_vfm.models.convert.gpt_folder import load_gpt, write_gpt
from nemo_vfm.models.convert.gpt_weights import tensor_map
from nemo_vfm.models.gpt import GPT

BOUND = 1e-4
BATCH, WORDS = 2, 1_000
LONG = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64}  # fmt: skip
FAMILIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "Llama": (transformers.LlamaConfig, {}),
    "Llama 3.1, tied": (transformers.LlamaConfig, {"rope_parameters": LONG, "tie_word_embeddings": True}),
    "Mistral": (transformers.MistralConfig, {"sliding_window": None}),
    "Mistral in windows": (transformers.MistralConfig, {"sliding_window": 24}),
    "Phi-3 in windows": (transformers.Phi3Config, {"sliding_window": 24, "pad_token_id": None}),
    "Phi-3, longrope": (transformers.Phi3Config, {
        "partial_rotary_factor": 0.5, "original_max_position_embeddings": 32, "pad_token_id": None,
        "rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}),
    "Gemma 3": (transformers.Gemma3TextConfig, {
        "pad_token_id": None,  # whose embedding transformers would not train
        "sliding_window": 24, "sliding_window_pattern": 2, "query_pre_attn_scalar": 30, "rope_local_base_freq": 100.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
    "Qwen 3 MoE": (transformers.Qwen3MoeConfig, {
        "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True,
        "mlp_only_layers": [1]}),
    "Qwen 2, yarn": (transformers.Qwen2Config, {"use_sliding_window": False, "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}}),
    "Qwen 2": (transformers.Qwen2Config, {"use_sliding_window": False}),
    "Qwen 3": (transformers.Qwen3Config, {"use_sliding_window": False}),
    "Nemotron": (transformers.NemotronConfig, {"partial_rotary_factor": 0.5, "hidden_act": "relu2"}),
}  # fmt: skip


@dataclass
class Row:
    """One family: the largest differences."""

    family: str
    ours: float  #: our scores of their folder, from theirs
    written: float  #: their scores of our folder, from theirs
    cached: float  #: our scores token by token with a cache, from ours at once
    loss: float
    gradient: float  #: relative, of the worst weight
    largest: float  #: the largest score

    def worst(self) -> float:
        """Of all differences."""
        return max(self.ours, self.written, self.cached, self.loss, self.gradient)


def random_model(family: str, *, quick: bool) -> transformers.PreTrainedModel:
    """Drawn from one seed."""
    kind, own = FAMILIES[family]
    width, layers, length = (64, 2, 64) if quick else (256, 4, 256)
    if own.get("rope_parameters", {}).get("rope_type") == "longrope":
        factors = [1.0 + number / 8 for number in range(width // 32)]
        own = own | {"rope_parameters": own["rope_parameters"] | {
            "short_factor": factors, "long_factor": [2 * one for one in factors]}}  # fmt: skip
    config = kind(
        vocab_size=WORDS, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=layers,
        num_attention_heads=8, num_key_value_heads=2, head_dim=width // 8, max_position_embeddings=length,
        initializer_range=0.06, **own,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            torch.nn.init.normal_(parameter, 0.5, 0.2)
    return model


def compare(family: str, folder: Path, *, quick: bool) -> Row:
    """All of a family."""
    theirs = random_model(family, quick=quick)
    theirs.save_pretrained(folder / "theirs")
    ours = load_gpt(folder / "theirs").eval()
    write_gpt(ours, dict(ours.named_parameters()), folder / "ours", max_tokens=theirs.config.max_position_embeddings)
    again = transformers.AutoModelForCausalLM.from_pretrained(folder / "ours", attn_implementation="eager").eval()
    words = torch.randint(WORDS, (BATCH, theirs.config.max_position_embeddings + 1))
    tokens, labels = words[:, :-1].contiguous(), words[:, 1:].contiguous()
    with torch.no_grad():
        expected = theirs(tokens).logits
        ours_at_once, written = scores(ours, tokens, tokens.shape[1]), again(tokens).logits
        cached = scores(ours, tokens, 1)
    loss, gradient = learned(ours, theirs, tokens, labels)
    return Row(family, *(float((one - other).abs().max()) for one, other in (
        (ours_at_once, expected), (written, expected), (cached, ours_at_once))), loss, gradient,
        float(expected.abs().max()))  # fmt: skip


def scores(model: GPT, tokens_BS: Tensor, at_once: int) -> Tensor:
    """(B, S, V), read so many tokens at once."""
    cache = model.cache(torch.zeros(len(tokens_BS), dtype=torch.long), tokens_BS.shape[1], torch.float32)
    return torch.cat([model.scores(part, cache, last=False) for part in tokens_BS.split(at_once, 1)], 1)


def learned(ours: GPT, theirs: transformers.PreTrainedModel, tokens: Tensor, labels: Tensor) -> tuple[float, float]:
    """Differences of the loss and of the worst gradient."""
    loss = ours(tokens, labels).mean()
    expected = theirs(input_ids=tokens, shift_labels=labels, labels=labels).loss
    loss.backward()
    expected.backward()
    wanted = unstacked({name: parameter.grad for name, parameter in theirs.named_parameters()})
    fused, used, worst = any("qkv_proj" in name for name in wanted), set(), 0.0
    for own, parameter in ours.named_parameters():
        one = tensor_map(own, ours.sizes, fused)
        expected_grad = one.join([wanted[name] for name in one.names])
        used |= set(one.names)
        worst = max(worst, float((parameter.grad - expected_grad).norm() / expected_grad.norm()))
    assert used == wanted.keys()
    return abs(loss.item() - expected.item()), worst


def unstacked(given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gradients by the names of files, where each expert has its own."""
    found = {}
    for name, grad in given.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            found[name] = grad
            continue
        module, _, kind = name.rpartition(".")
        for expert, one in enumerate(grad):
            parts = (
                zip(("gate_proj", "up_proj"), one.chunk(2), strict=True) if kind == "gate_up_proj" else [(kind, one)]
            )
            found |= {f"{module}.{expert}.{part}.weight": rows for part, rows in parts}
    return found


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    rows = []
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, fp32")
    print("| family | ours of theirs | theirs of ours | with a cache | largest score | loss | gradient |")
    print("|---|---|---|---|---|---|---|")
    for family in FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            row = compare(family, Path(folder), quick=given.quick)
        rows.append(row)
        print(f"| {row.family} | {row.ours:.1e} | {row.written:.1e} | {row.cached:.1e} | {row.largest:.1f} | "
              f"{row.loss:.1e} | {row.gradient:.1e} |", flush=True)  # fmt: skip
    if given.json:
        given.json.write_text(
            json.dumps({"worst": max(row.worst() for row in rows), "rows": [asdict(r) for r in rows]})
        )
    return int(any(row.worst() > BOUND for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
