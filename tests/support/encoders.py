"""Writes a tiny CLIP or SigLIP as transformers does, and labelled clips."""

import json
from itertools import pairwise
from pathlib import Path

import torch
from safetensors.torch import save_file

from nemo_vfm.data.shards.shard_files import ShardWriter
from nemo_vfm.data.video.encode import encode_mp4
from tests.support.films import FPS, pan

_TEXT = {
    "vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "max_position_embeddings": 8, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1,
}  # fmt: skip
_VISION = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip


def tiny_clip(folder: Path) -> Path:
    """Both towers, 12 numbers a picture of 32 x 32; weights large enough that pictures differ."""
    from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel

    torch.manual_seed(0)
    model = CLIPModel(CLIPConfig(text_config=_TEXT, vision_config=_VISION, projection_dim=12))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=32).save_pretrained(folder)
    return folder


def tiny_siglip(folder: Path) -> Path:
    """Both towers, 16 numbers a picture of 32 x 32."""
    from transformers import SiglipConfig, SiglipImageProcessorPil, SiglipModel

    torch.manual_seed(0)
    SiglipModel(SiglipConfig(text_config=_TEXT | {"projection_size": 16}, vision_config=_VISION)).save_pretrained(
        folder
    )
    SiglipImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


def tiny_head(path: Path, *widths: int) -> Path:
    """Linear layers of these widths, drawn."""
    torch.manual_seed(1)
    weights = {}
    for layer, (before, after) in enumerate(pairwise(widths)):
        weights[f"layers.{layer}.weight"] = torch.randn(after, before) / before**0.5
        weights[f"layers.{layer}.bias"] = torch.randn(after)
    save_file(weights, path)
    return path


def labelled_clips(folder: Path, count: int = 8, scale: int = 1) -> Path:
    """Clip shards of pans, 96 * scale high, with `brightness` in the index, `aesthetic` and `tone` in the json."""
    folder.mkdir(parents=True, exist_ok=True)
    with ShardWriter(folder) as writer:
        for seed in range(count):
            film, path = pan(seed).repeat(scale, axis=1).repeat(scale, axis=2), folder / "film.mp4"
            encode_mp4(path, film, FPS, crf=20, preset="veryfast")
            level = float(film.mean()) / 255
            facts = {"width": film.shape[2], "height": film.shape[1], "num_frames": len(film), "fps": float(FPS)}
            more = {"tone": "light" if level > 0.5 else "dark", "scores": {"aesthetic": 10 * level}}
            members = {"mp4": path.read_bytes(), "txt": b"a pan", "json": json.dumps({**facts, **more}).encode()}
            writer.write(f"{seed:032x}", members, {**facts, "brightness": level})
            path.unlink()
    return folder
