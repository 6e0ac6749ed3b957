"""Creates adapters with PEFT on tiny diffusers video models, and loads adapters there."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.support.video_peers import PEERS, called, inputs, made

RANK, ALPHA = 4, 8.0
TARGETS = {
    "wan 2.1 text": ["attn1.to_q", "attn1.to_k", "attn1.to_v", "attn1.to_out.0", "attn2.to_k", "ffn.net.0.proj",
                     "ffn.net.2"],
    "cosmos 2": ["attn1.to_q", "attn1.to_v", "attn2.to_v", "ff.net.0.proj"],
}  # fmt: skip


def adapted(family: str, *, dora: bool = False, alpha: float = ALPHA, **changes: Any) -> nn.Module:
    """Build the peer's transformer with a nonzero PEFT adapter, in which one linear has another rank and alpha.

    Args:
        family: key of `TARGETS`.
        dora: also learn the norm of each row.
        alpha: of all linears but one.
        changes: further arguments of PEFT's LoraConfig.
    """
    import peft

    first = TARGETS[family][0]
    names = [f"{block}.{first}" for block in ("blocks.0", "transformer_blocks.0")]
    patterns = {"rank_pattern": dict.fromkeys(names, 2), "alpha_pattern": dict.fromkeys(names, 3.0)}
    config = peft.LoraConfig(
        r=RANK, lora_alpha=alpha, target_modules=TARGETS[family], use_dora=dora, **(patterns | changes)
    )
    model: nn.Module = peft.get_peft_model(made(PEERS[family]), config).eval()
    torch.manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.add_(0.2 * torch.rand_like(parameter))
    return model


def output(family: str, model: Any) -> Tensor:
    return called(PEERS[family], model, inputs(PEERS[family]))


def pipeline(family: str) -> Any:
    """Build a Wan pipeline that has only a transformer."""
    import diffusers

    kind = diffusers.WanPipeline
    parts = dict.fromkeys(["tokenizer", "text_encoder", "vae", "scheduler", "transformer_2"])
    return kind(**parts, transformer=made(PEERS[family]))


def saved_by_diffusers(family: str, folder: Path, *, dora: bool = False) -> None:
    """Save an adapter as diffusers' training scripts do, with its configuration in the header."""
    import diffusers
    import peft

    model = made(PEERS[family])
    config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=TARGETS[family], use_dora=dora)
    model.add_adapter(config)  # type: ignore[operator]
    torch.manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.add_(0.2 * torch.rand_like(parameter))
    kind = diffusers.WanPipeline if PEERS[family].is_wan else diffusers.Cosmos2_5_PredictBasePipeline
    kind.save_lora_weights(
        folder, transformer_lora_layers=peft.get_peft_model_state_dict(model, adapter_name="default"),
        transformer_lora_adapter_metadata=config.to_dict(),
    )  # fmt: skip
    torch.save(output(family, model), folder / "output.pt")


def far(one: Tensor, other: Tensor) -> float:
    """Return the largest difference divided by the standard deviation."""
    return float((one - other).abs().max() / other.std())
