"""Encodes an image with a local CLIP to the tokens that Wan 2.1's image-to-video models attend to.

Shape letters: C channels, T frames, H height, W width, L tokens of an image, D width of a token.
"""

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from nemo_vfm.core.device import device
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.optional import needs_gpu, needs_packages
from nemo_vfm.core.storage.uri import local
from nemo_vfm.core.types.held_weights import HeldWeights
from nemo_vfm.models.pretrained import checked_folder, fingerprint_of
from nemo_vfm.models.vision import Pictures, load_encoder, read_config
from nemo_vfm.parallel.plan.static_memory import on_meta

_DESCRIPTION, _CLASS = "the image encoder of a pipeline", "CLIPVisionModel"


@needs_gpu()
@needs_packages("transformers")
class ClipImageTokens:
    """Hidden states of a CLIP image tower: one per patch and one for the whole image, in fp32.

    Weights are read at the first image.

    Args:
        folder: folder of the encoder, with config.json and safetensors.
        processor: folder of preprocessor_config.json; None if it is in `folder`.
        layer: index of the hidden state: 0 is the embedding, -1 the last block, -2 the one before it, as Wan uses.
    """

    def __init__(self, *, folder: Path, processor: Path | None = None, layer: int = -2) -> None:
        self.folder, self.layer = local(folder, _DESCRIPTION), layer
        self.processor = self.folder if processor is None else local(processor, _DESCRIPTION)

    @torch.no_grad()
    def image_tokens(self, image_CTHW: Tensor) -> Tensor:
        """See `ImageTokens`."""
        encoder, pictures = _load(self.folder, self.processor)
        encoder.to(device())
        pixels_TCHW = ((image_CTHW + 1) * 127.5).round().clamp(0, 255).byte().transpose(0, 1)
        ready = pictures.preprocess(pixels_TCHW).to(device())
        states = encoder(pixel_values=ready, output_hidden_states=True).hidden_states
        if not -len(states) <= self.layer < len(states):
            raise UserError(f"{self.folder} has {len(states)} hidden states; layer {self.layer} is out of range")
        tokens: Tensor = states[self.layer][0].float()
        return tokens

    def offload(self) -> None:
        """Move the weights to the CPU."""
        if _load.cache_info().currsize:
            _load(self.folder, self.processor)[0].to("cpu")

    def held_weights(self) -> HeldWeights:
        """See `HoldsWeights`; they are in fp32."""
        encoder = on_meta(lambda: load_encoder(checked_folder(self.folder), _CLASS))
        count = sum(parameter.numel() for parameter in encoder.parameters())
        return HeldWeights(f"image encoder {self.folder}", 4 * count)

    def fingerprint(self) -> str:
        """Identifies the model's bytes and settings."""
        return f"clip-image-tokens/1 {fingerprint_of(self.folder)} layer={self.layer}"


@lru_cache(maxsize=1)
def _load(folder: Path, processor: Path) -> tuple[nn.Module, Pictures]:
    config = read_config(checked_folder(folder), "config.json")
    if config.get("model_type") not in ("clip", "clip_vision_model"):
        raise UserError(f"{folder} holds a {str(config.get('model_type'))[:60]}; image tokens need a CLIP")
    encoder = load_encoder(folder, _CLASS).eval().requires_grad_(False)
    return encoder, Pictures(processor, read_config(processor, "preprocessor_config.json"))
