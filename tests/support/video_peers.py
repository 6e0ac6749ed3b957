"""Makes tiny random transformers of diffusers, one for each family of video models, with inputs as its pipelines give.

Each is called as diffusers' pipeline calls it, and ours as our own does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.support.torchvision_resize import stand_in

BATCH, FRAMES, HEIGHT, WIDTH = 2, 3, 4, 6
COSMOS = {
    "in_channels": 4, "out_channels": 4, "num_attention_heads": 2, "attention_head_dim": 24, "num_layers": 2,
    "text_embed_dim": 16, "adaln_lora_dim": 8, "max_size": (4, 8, 12),
}  # fmt: skip
COSMOS_2 = COSMOS | {"in_channels": 5, "extra_pos_embed_type": None, "rope_scale": (1.0, 3.0, 3.0)}
WAN = {
    "num_attention_heads": 2, "attention_head_dim": 24, "in_channels": 4, "out_channels": 4, "text_dim": 16,
    "freq_dim": 32, "ffn_dim": 96, "num_layers": 2,
}  # fmt: skip
IMAGE = {"in_channels": 9, "image_dim": 20, "added_kv_proj_dim": 48}


@dataclass(frozen=True)
class Peer:
    """One family.

    Args:
        config: of diffusers' transformer.
        text: tokens of a text, and their width.
        frame_levels: whether each latent frame has a noise level.
        condition: further channels.
        images: of each sample, with 7 features each.
        fps: frames a second, as far as the peer takes them.
    """

    config: dict[str, Any]
    text: tuple[int, int] = (5, 16)
    frame_levels: bool = False
    condition: int = 0
    images: int = 0
    fps: int | None = None

    @property
    def is_wan(self) -> bool:
        """Whether it is a Wan, else a Cosmos."""
        return "ffn_dim" in self.config

    @property
    def any_fps(self) -> float:
        """Of a peer that takes none: Wan and Cosmos 2.5 must not see it, others are as at 24."""
        return 10.0 if self.is_wan or "use_crossattn_projection" in self.config else 24.0


PEERS = {
    "cosmos 1": Peer(COSMOS, fps=12),
    "cosmos 1 video": Peer(COSMOS | {"in_channels": 5}, condition=1, fps=30),
    "cosmos 2": Peer(COSMOS_2, frame_levels=True, condition=1, fps=16),
    "cosmos 2 image": Peer(COSMOS_2 | {"in_channels": 4}),
    "cosmos 2.5": Peer(COSMOS_2 | {"use_crossattn_projection": True, "crossattn_proj_in_channels": 40,
                                   "encoder_hidden_states_channels": 16}, (5, 40), True, 1),
    "wan 2.1 text": Peer(WAN, (512, 16)),
    "wan 2.1 image": Peer(WAN | IMAGE, (512, 16), condition=5, images=1),
    "wan 2.1 first and last": Peer(WAN | IMAGE | {"pos_embed_seq_len": 14}, (512, 16), condition=5, images=2),
    "wan 2.2 ti2v": Peer(WAN, (512, 16), frame_levels=True),
    "wan 2.2 a14b image": Peer(WAN | {"in_channels": 9}, (512, 16), condition=5),
}  # fmt: skip


def made(peer: Peer, seed: int = 0) -> nn.Module:
    """The peer's transformer, random and without zeros."""
    stand_in()
    import diffusers

    torch.manual_seed(seed)
    kind = diffusers.WanTransformer3DModel if peer.is_wan else diffusers.CosmosTransformer3DModel
    model: nn.Module = kind(**peer.config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def inputs(peer: Peer, seed: int = 1) -> dict[str, Tensor]:
    """As our models take them."""
    torch.manual_seed(seed)
    given = {
        "latents_BCTHW": torch.randn(BATCH, 4, FRAMES, HEIGHT, WIDTH),
        "noise_B": torch.rand((BATCH, FRAMES) if peer.frame_levels else (BATCH,)),
        "text_BLD": torch.randn(BATCH, *peer.text), "text_mask_BL": torch.ones(BATCH, peer.text[0], dtype=torch.bool),
        "fps_B": torch.full((BATCH,), float(peer.fps or peer.any_fps)),
    }  # fmt: skip
    if peer.condition:
        given["condition_BCTHW"] = torch.randn(BATCH, peer.condition, FRAMES, HEIGHT, WIDTH)
    if peer.images:
        given["image_BLD"] = torch.randn(BATCH, 7 * peer.images, 20)
    return given


@torch.no_grad()
def called(peer: Peer, model: Callable[..., Any], given: dict[str, Tensor]) -> Tensor:
    """The peer's output, called as its pipeline calls it."""
    latents, noise, text = given["latents_BCTHW"], given["noise_B"], given["text_BLD"]
    condition = given.get("condition_BCTHW")
    if peer.is_wan:
        joined = latents if condition is None else torch.cat([latents, condition], 1)
        times = 1000 * noise
        if peer.frame_levels:  # one for each token
            times = times.repeat_interleave(HEIGHT * WIDTH // 4, 1)
        image = given.get("image_BLD")
        image = None if image is None else image.reshape(BATCH * peer.images, 7, -1)
        output: Tensor = model(joined, times, text, encoder_hidden_states_image=image).sample
        return output
    times = noise[:, None, :, None, None] if peer.frame_levels else noise
    mask = torch.zeros(1, 1, 8 * HEIGHT, 8 * WIDTH)
    output = model(latents, times, text, fps=peer.fps, condition_mask=condition, padding_mask=mask).sample
    return output
