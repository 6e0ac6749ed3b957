"""Embeds captions with the text encoder or language model of a local transformers folder.

Shape letters: B batch, T tokens that the model reads, L text tokens, D width of a token.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from nemo_vfm.core.device import device
from nemo_vfm.core.optional import needs_gpu, needs_packages
from nemo_vfm.core.precision import Precision, PrecisionName
from nemo_vfm.core.types.held_weights import HeldWeights
from nemo_vfm.models.pretrained import fingerprint_of, tokenizer_fingerprint
from nemo_vfm.models.text_encoder import warn_of_cut
from nemo_vfm.models.text_tower import count_tokens, load, read_config, text_parameters

FinalNorm = Literal["last", "all", "none"]
Pooling = Literal["none", "mean", "first", "last"]


@needs_gpu()
@needs_packages("transformers")
class TransformersTextEncoder:
    """Hidden states of any model that `transformers.AutoModel` loads: T5, UMT5, CLIP, SigLIP, BERT, a language model.

    Nothing is downloaded, no code of the folder is run, and only safetensors are read. Of a model with several parts
    the text part is used: the encoder of a T5, the text tower of a CLIP, the language model of a Qwen-VL, without its
    output head. Weights are read at the first `encode`. Each text is embedded as if it were alone: padding is masked
    out. SigLIP is the exception, since it was trained on texts padded to its full length: it always reads that length.

    Args:
        folder: with config.json, safetensors and a tokenizer.
        max_tokens: L, the most tokens of a text that are kept; further ones are cut off. `drop_tokens` come on top.
        layers: hidden states that are joined along D, by their index: 0 is the embedding, 1 the first block, -1 the
            last. `all` is every block.
        final_norm: which of them pass the model's final norm: `last` only the last layer, as in transformers; `all`,
            as for CLIP with skipped layers in Stable Diffusion 1; or `none`.
        normalize: whether each layer's vectors are brought to mean 0 and standard deviation 1 before they are joined,
            as in Cosmos-Predict 2.5.
        pooling: `none` keeps a vector a token; otherwise a text gets one: the `mean`, the `first` (BERT's [CLS]) or
            the `last` (CLIP's end mark, a language model's summary).
        template: what the model reads; `{caption}` stands for the caption.
        drop_tokens: tokens at the beginning that the model reads and that are not kept, such as the template's.
        reads_padding: whether the model reads padding up to `max_tokens` and keeps its vectors, as Cosmos 2.5 does.
            Vectors then depend on `max_tokens`, and the mask hides nothing.
        tokenizer: folder of the tokenizer; None where it is in `folder`.
        precision: of weights and arithmetic: auto, bf16 or fp32.

    Raises:
        ValueError: no layers, numbers out of range, or a template without `{caption}`.
    """

    def __init__(
        self, *, folder: Path, max_tokens: int = 512, layers: Literal["all"] | Sequence[int] = (-1,),
        final_norm: FinalNorm = "last", normalize: bool = False, pooling: Pooling = "none",
        template: str = "{caption}", drop_tokens: int = 0, reads_padding: bool = False, tokenizer: Path | None = None,
        precision: PrecisionName = "auto",
    ) -> None:  # fmt: skip
        if max_tokens < 2:
            raise ValueError(f"max_tokens is {max_tokens}, but a token and the end mark take 2")
        if drop_tokens < 0:
            raise ValueError(f"drop_tokens is {drop_tokens}, expected 0 or more")
        if template.count("{caption}") != 1:
            raise ValueError(f"template {template!r} must hold {{caption}} once")
        if not layers:
            raise ValueError("layers is empty; use [-1] for the last layer")
        self.folder, self.tokenizer, self.max_tokens = folder, tokenizer or folder, max_tokens
        self.layers: Literal["all"] | tuple[int, ...] = "all" if isinstance(layers, str) else tuple(layers)
        self.final_norm, self.normalize, self.pooling = final_norm, normalize, pooling
        self.template, self.drop_tokens, self.precision = template, drop_tokens, precision
        self.reads_padding = reads_padding

    def encode(self, captions: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Vectors (B, L, D), fp32, zero after the text's end, and a mask (B, L), True at tokens."""
        layers = read_config(self.folder).chosen(self.layers)
        tower = load(self.folder, self.tokenizer, Precision(self.precision)).to(device())
        texts = self._texts(captions)
        warn_of_cut(self.num_cut(captions), self.max_tokens)
        ids_BT, mask_BT = tower.tokens(texts, self.max_tokens + self.drop_tokens, padded=self.reads_padding)
        mask_BT = torch.ones_like(mask_BT) if self.reads_padding else mask_BT
        with torch.inference_mode():
            states = tower.states(ids_BT.to(device()), mask_BT.to(device()), layers, self.final_norm)
            text_BTD = torch.cat([_scaled(state) if self.normalize else state for state in states], 2)
        return self._placed(text_BTD[:, self.drop_tokens :], mask_BT[:, self.drop_tokens :].to(device()))

    def num_cut(self, captions: Sequence[str]) -> int:
        """See `CutsTexts`."""
        most = self.max_tokens + self.drop_tokens
        return sum(count > most for count in count_tokens(self.folder, self.tokenizer, self._texts(captions)))

    def _texts(self, captions: Sequence[str]) -> list[str]:
        return [self.template.replace("{caption}", caption) for caption in captions]

    def offload(self) -> None:
        """See `Offloadable`."""
        if load.cache_info().currsize:
            load(self.folder, self.tokenizer, Precision(self.precision)).to(torch.device("cpu"))

    def held_weights(self) -> HeldWeights:
        """See `HoldsWeights`."""
        width = 4 if self.precision == "fp32" else 2
        return HeldWeights(f"text encoder {self.folder} in {width} bytes", width * text_parameters(self.folder))

    def _placed(self, text_BTD: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
        if self.pooling != "none":
            return _pooled(text_BTD, mask_BT, self.pooling), mask_BT.any(1, keepdim=True)
        kept = min(text_BTD.shape[1], self.max_tokens)
        text_BLD = text_BTD.new_zeros(len(text_BTD), self.max_tokens, text_BTD.shape[2])
        mask_BL = mask_BT.new_zeros(len(mask_BT), self.max_tokens)
        mask_BL[:, :kept] = mask_BT[:, :kept]
        text_BLD[:, :kept] = text_BTD[:, :kept].masked_fill(~mask_BT[:, :kept, None], 0)
        return text_BLD, mask_BL

    def text_shape(self) -> tuple[int, int]:
        """(L, D), from config.json alone."""
        config = read_config(self.folder)
        return 1 if self.pooling != "none" else self.max_tokens, config.width * len(config.chosen(self.layers))

    def fingerprint(self) -> str:
        """The bytes of model and tokenizer, what is taken of it, and in what it is computed."""
        dtype = str(Precision(self.precision).resolved()[0]).removeprefix("torch.")
        read = f"tokens={self.max_tokens} drop={self.drop_tokens} template={self.template!r}"
        read += " padding" if self.reads_padding else ""
        taken = f"layers={self.layers} norm={self.final_norm} normalize={self.normalize} pooling={self.pooling}"
        words = "" if self.tokenizer == self.folder else f" tokenizer={tokenizer_fingerprint(self.tokenizer)}"
        return f"transformers-text/1 {fingerprint_of(self.folder)}{words} {read} {taken} {dtype}"


def _scaled(state_BTD: Tensor) -> Tensor:
    return (state_BTD - state_BTD.mean(2, keepdim=True)) / (state_BTD.std(2, keepdim=True) + 1e-8)


def _pooled(text_BTD: Tensor, mask_BT: Tensor, pooling: Pooling) -> Tensor:
    """(B, 1, D); zeros for a text without a token."""
    count_B = mask_BT.sum(1)
    if pooling == "mean":
        weight_BT = mask_BT / count_B.clamp(min=1)[:, None]
    else:
        place_B = torch.zeros_like(count_B) if pooling == "first" else (count_B - 1).clamp(min=0)
        weight_BT = torch.nn.functional.one_hot(place_B, mask_BT.shape[1]) * mask_BT
    known_BTD = text_BTD.masked_fill(~mask_BT[..., None], 0)
    return weight_BT.to(text_BTD.dtype)[:, None] @ known_BTD
