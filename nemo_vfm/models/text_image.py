"""Embeds texts and pictures in one vector space, by a CLIP or a SigLIP from a local folder.

Shape letters: N texts or pictures, D width of a vector, H height, W width, C colours (RGB).
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nemo_vfm.core.device import device
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.optional import require
from nemo_vfm.core.storage.files import read_json
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.pretrained import checked_folder

if TYPE_CHECKING:  # this room loads where only torch is installed
    import numpy as np
    from numpy.typing import NDArray

_KINDS = {"clip": "CLIPModel", "siglip": "SiglipModel", "siglip2": "Siglip2Model"}
_GROUP = 64


def text_vectors(folder: Path, texts: Sequence[str]) -> Tensor:
    """The vector of each text, (N, D); texts beyond the model's length are cut."""
    model, processor = _load(folder)
    length = int(model.config.text_config.max_position_embeddings)
    found = []
    for first in range(0, len(texts), _GROUP):
        # SigLIP was trained on texts padded to full length, and CLIP masks padding out.
        tokens = processor.tokenizer(
            list(texts[first : first + _GROUP]), padding="max_length", truncation=True, max_length=length,
            return_tensors="pt",
        )  # fmt: skip
        wanted = {name: tokens[name].to(device()) for name in ("input_ids", "attention_mask") if name in tokens}
        with torch.inference_mode():
            found.append(_tensor(model.get_text_features(**wanted)))
    return torch.cat(found)


def picture_vectors(folder: Path, frames_NHWC: "NDArray[np.uint8]") -> Tensor:
    """The vector of each picture, (N, D)."""
    model, processor = _load(folder)
    pixels = processor.image_processor(list(frames_NHWC), return_tensors="pt")["pixel_values"].to(device())
    with torch.inference_mode():
        return _tensor(model.get_image_features(pixel_values=pixels))


def _tensor(output: Json) -> Tensor:
    """transformers 5 gives an output whose pooled part is the vector; 4 gave the vector."""
    vectors: Tensor = output if isinstance(output, Tensor) else output.pooler_output
    return vectors.float().cpu()


@lru_cache(maxsize=1)
def _load(folder: Path) -> Json:
    transformers = require("transformers", purpose="Comparing captions with pictures")
    kind = str(read_json(checked_folder(folder) / "config.json").get("model_type"))
    if kind not in _KINDS:
        raise UserError(f"{folder} holds a model of the kind {kind!r}, expected one of {', '.join(_KINDS)}")
    local = {"local_files_only": True, "trust_remote_code": False}
    try:
        processor = transformers.AutoProcessor.from_pretrained(folder, **local)
        model = getattr(transformers, _KINDS[kind]).from_pretrained(folder, use_safetensors=True, **local)
    except (ValueError, OSError, KeyError, ImportError) as error:
        raise UserError(f"{folder} cannot be loaded as a model of texts and pictures: {error}") from error
    return model.to(device()).eval(), processor
