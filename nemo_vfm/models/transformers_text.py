"""Embeds captions with the text encoder or language model of a local transformers folder; padding has no influence.

Shape letters: B batch, T tokens that the model reads, L text tokens, D width of a token.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from nemo_vfm.core.device import device
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.optional import needs_gpu, needs_packages, require
from nemo_vfm.core.precision import Precision, PrecisionName
from nemo_vfm.core.storage.files import read_json
from nemo_vfm.core.types.component import no_component
from nemo_vfm.core.types.held_weights import HeldWeights
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.pretrained import checked_folder, fingerprint_of, tokenizer_fingerprint
from nemo_vfm.models.text_encoder import warn_of_cut
from nemo_vfm.parallel.plan.static_memory import on_meta

_ONE_AT_A_TIME = threading.Lock()  # a fast tokenizer that two threads use raises "Already borrowed"
_PARTS = ("language_model", "text_model")  # of a model with pictures beside the text
_FINAL_NORMS = ("norm", "final_layer_norm", "final_norm", "ln_f")
FinalNorm = Literal["last", "all", "none"]
Pooling = Literal["none", "mean", "first", "last"]


@dataclass(frozen=True, slots=True)
class TextConfig:
    """What config.json says of the text part."""

    kind: str  #: model_type of the folder
    width: int  #: D
    depth: int  #: blocks
    max_tokens: int | None  #: positions that it knows; None where they are relative

    def layer_indices(self, layers: Literal["all"] | Sequence[int]) -> list[int]:
        """Indices of hidden states, from 0, the embedding, to `depth`."""
        if isinstance(layers, str):
            return list(range(1, self.depth + 1))
        for layer in layers:
            if not -self.depth - 1 <= layer <= self.depth:
                raise UserError(
                    f"there is no layer {layer} in a {self.kind} of {self.depth} blocks: expected {-self.depth - 1} to "
                    f"{self.depth}, where 0 is the embedding"
                )
        return [layer % (self.depth + 1) for layer in layers]


@lru_cache(maxsize=8)
def read_config(folder: Path) -> TextConfig:
    """What the folder holds, without its weights; UserError where it has code of its own, or is quantised."""
    config = _config(folder)
    text = config.get_text_config(encoder=True) if config.is_encoder_decoder else config.get_text_config()
    most = getattr(text, "max_position_embeddings", None)
    return TextConfig(str(config.model_type), int(text.hidden_size), int(text.num_hidden_layers), most)


def _kind(transformers: Json, config: Json) -> Json:
    """The class that loads it; of encoder-decoders one that loads the encoder alone."""
    kind = transformers.AutoModelForTextEncoding
    return kind if type(config) in kind._model_mapping else transformers.AutoModel


def _config(folder: Path) -> Json:
    raw = read_json(checked_folder(folder) / "config.json")
    _refuse_code(folder / "config.json", raw)
    if "quantization_config" in raw:
        raise UserError(f"{folder} holds quantised weights; give the folder of the model before quantisation")
    transformers = require("transformers", purpose="A text encoder from a folder")
    with _folder_errors(folder):
        return transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _refuse_code(path: Path, content: Json) -> None:
    if isinstance(content, dict) and "auto_map" in content:
        raise UserError(
            f"{path} asks to run its own Python code (auto_map), which is never done; use a model that transformers "
            f"itself supports"
        )


@contextmanager
def _folder_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # of any kind, by what is wrong in the folder
        raise UserError(f"{folder} cannot be loaded as a text encoder: {error}") from error


@no_component
class Tower:
    """A tokenizer of transformers and the text part of a model, from a folder."""

    def __init__(self, folder: Path, model: nn.Module, words: Json) -> None:
        self._folder, self._model, self._words = folder, model, words
        self._config = read_config(folder)
        # Trained on texts that are padded to full length, padding seen: masked, it gives other vectors.
        self._reads_padding = self._config.kind.startswith("siglip")

    def to(self, device: torch.device) -> "Tower":
        """The same, its weights on a device."""
        self._model.to(device)
        return self

    def tokens(self, texts: Sequence[str], most: int, *, padded: bool = False) -> tuple[Tensor, Tensor]:
        """Token ids and a mask, (B, T), padded on the right to the longest text or, if `padded`, to `most`."""
        limit = self._config.max_tokens
        limit = None if limit is None else min(limit, int(self._words.model_max_length))
        if limit is not None and most > limit:
            raise UserError(
                f"{self._folder} reads {limit} tokens at most, and {most} are asked for (max_tokens and drop_tokens "
                f"together); lower max_tokens by {most - limit}"
            )
        with _folder_errors(self._folder), _ONE_AT_A_TIME:
            rows = self._words(list(texts), truncation=True, max_length=most, padding=False)["input_ids"]
        length = max(1, *map(len, rows)) if limit is None or not self._reads_padding else limit
        length = most if padded else length
        ids_BT = torch.full((len(rows), length), self._words.pad_token_id or 0)
        mask_BT = torch.zeros(len(rows), length, dtype=torch.bool)
        for row, (ids, mask) in enumerate(zip(ids_BT, mask_BT, strict=True)):
            ids[: len(rows[row])], mask[: len(rows[row])] = torch.tensor(rows[row], dtype=torch.int64), True
        return ids_BT, mask_BT

    def states(self, ids_BT: Tensor, mask_BT: Tensor, layers: Sequence[int], final_norm: str) -> list[Tensor]:
        """Hidden states (B, T, D), fp32, of the layers, which count from 0."""
        seen_BT = torch.ones_like(mask_BT) if self._reads_padding else mask_BT.clone()
        seen_BT[:, 0] = True  # a softmax over nothing is NaN
        raw: list[Tensor] = []  # what enters the final norm
        norm = self._norm() if final_norm != "last" else None
        handle = norm and norm.register_forward_pre_hook(lambda _, given: raw.append(given[0]))
        try:
            found = self._model(input_ids=ids_BT, attention_mask=seen_BT.long(), output_hidden_states=True)
        finally:
            if handle:
                handle.remove()
        last, depth = found.last_hidden_state, self._config.depth
        if len(found.hidden_states) != depth + 1:
            raise UserError(f"{self._folder} gave {len(found.hidden_states)} hidden states, expected {depth + 1}")
        inner = [*found.hidden_states[:depth], raw[0] if raw else last]
        if final_norm == "all":
            return [(last if layer == depth else self._norm()(inner[layer])).float() for layer in layers]
        return [inner[layer].float() for layer in layers]

    def _norm(self) -> nn.Module:
        """The norm after the last block, by the names that transformers gives it."""
        own = [getattr(self._model, name) for name in _FINAL_NORMS if hasattr(self._model, name)]
        # T5EncoderModel keeps it one level down; ModernBERT has another norm there, in its embedding.
        inner = [getattr(part, name) for part in self._model.children() for name in _FINAL_NORMS if hasattr(part, name)]
        found = own or inner
        if len(found) != 1:
            raise UserError(
                f"{self._folder} ({self._config.kind}) has no final norm that is known here; set final_norm to last"
            )
        norm: nn.Module = found[0]
        return norm


@lru_cache(maxsize=1)
def load(folder: Path, tokenizer: Path, precision: Precision) -> Tower:
    """The text part of a folder on this process's device."""
    config = _config(folder)
    transformers = require("transformers", purpose="A text encoder from a folder")
    local = {"local_files_only": True, "trust_remote_code": False}
    with _folder_errors(folder):
        model, report = _kind(transformers, config).from_pretrained(
            folder, config=config, use_safetensors=True, dtype=precision.resolve()[0], output_loading_info=True, **local
        )
    part = _text_part(model)
    # Weights that no hidden state depends on may be absent: other parts, and the pooled vector's layer.
    used = {id(parameter) for name, parameter in part.named_parameters() if "pooler" not in name.split(".")}
    known = dict(model.named_parameters(remove_duplicate=False))
    lacking = sorted(name for name in report["missing_keys"] if name not in known or id(known[name]) in used)
    if lacking:
        raise UserError(f"{folder} lacks {len(lacking)} weights, such as {lacking[0]}")
    return Tower(folder, part.to(device()).eval(), _tokenizer(tokenizer))


@lru_cache(maxsize=1)
def _tokenizer(folder: Path) -> Json:
    transformers = require("transformers", purpose="A text encoder from a folder")
    settings = folder / "tokenizer_config.json"
    if settings.is_file():
        _refuse_code(settings, read_json(settings))
    with _folder_errors(folder):
        return transformers.AutoTokenizer.from_pretrained(
            folder, truncation_side="right", local_files_only=True, trust_remote_code=False
        )


def _text_part(model: Json) -> nn.Module:
    if model.config.is_encoder_decoder:
        part: nn.Module = model.get_encoder()
        return part
    part = next((getattr(model, name) for name in _PARTS if hasattr(model, name)), model)
    return part


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
        layers = read_config(self.folder).layer_indices(self.layers)
        tower = load(self.folder, self.tokenizer, Precision(self.precision)).to(device())
        texts = self._texts(captions)
        warn_of_cut(self.num_cut(captions), self.max_tokens)
        ids_BT, mask_BT = tower.tokens(texts, self.max_tokens + self.drop_tokens, padded=self.reads_padding)
        mask_BT = torch.ones_like(mask_BT) if self.reads_padding else mask_BT
        with torch.inference_mode():
            states = tower.states(ids_BT.to(device()), mask_BT.to(device()), layers, self.final_norm)
            if self.normalize:
                states = [(x - x.mean(2, keepdim=True)) / (x.std(2, keepdim=True) + 1e-8) for x in states]
            text_BTD = torch.cat(list(states), 2)
        text_BTD, mask_BT = text_BTD[:, self.drop_tokens :], mask_BT[:, self.drop_tokens :].to(device())
        if self.pooling == "none":
            kept = min(text_BTD.shape[1], self.max_tokens)
            text_BLD = text_BTD.new_zeros(len(text_BTD), self.max_tokens, text_BTD.shape[2])
            mask_BL = mask_BT.new_zeros(len(mask_BT), self.max_tokens)
            mask_BL[:, :kept] = mask_BT[:, :kept]
            text_BLD[:, :kept] = text_BTD[:, :kept].masked_fill(~mask_BT[:, :kept, None], 0)
            return text_BLD, mask_BL
        count_B = mask_BT.sum(1)
        if self.pooling == "mean":
            weight_BT = mask_BT / count_B.clamp(min=1)[:, None]
        else:
            place_B = torch.zeros_like(count_B) if self.pooling == "first" else (count_B - 1).clamp(min=0)
            weight_BT = torch.nn.functional.one_hot(place_B, mask_BT.shape[1]) * mask_BT
        known_BTD = text_BTD.masked_fill(~mask_BT[..., None], 0)
        return (weight_BT.to(text_BTD.dtype)[:, None] @ known_BTD), mask_BT.any(1, keepdim=True)

    def num_cut(self, captions: Sequence[str]) -> int:
        most = self.max_tokens + self.drop_tokens
        with _folder_errors(self.folder), _ONE_AT_A_TIME:
            # Whole texts, marks of their beginning and end included.
            ids = _tokenizer(self.tokenizer)(self._texts(captions), truncation=False)["input_ids"]
        return sum(len(one) > most for one in ids)

    def _texts(self, captions: Sequence[str]) -> list[str]:
        return [self.template.replace("{caption}", caption) for caption in captions]

    def offload(self) -> None:
        """Move the weights to the CPU."""
        if load.cache_info().currsize:
            load(self.folder, self.tokenizer, Precision(self.precision)).to(torch.device("cpu"))

    def held_weights(self) -> HeldWeights:
        """Bytes of the weights, counted without reading them."""
        width, config = 4 if self.precision == "fp32" else 2, _config(self.folder)
        kind = _kind(require("transformers", purpose="A text encoder from a folder"), config)
        with _folder_errors(self.folder):
            kind._model_mapping[type(config)]  # imports it: tensors that a module makes on the meta device stay there
            count = sum(one.numel() for one in _text_part(on_meta(lambda: kind.from_config(config))).parameters())
        return HeldWeights(f"text encoder {self.folder} in {width} bytes", width * count)

    def text_shape(self) -> tuple[int, int]:
        """(L, D), from config.json alone."""
        config = read_config(self.folder)
        return 1 if self.pooling != "none" else self.max_tokens, config.width * len(config.layer_indices(self.layers))

    def fingerprint(self) -> str:
        """The bytes of model and tokenizer, what is taken of it, and in what it is computed."""
        dtype = str(Precision(self.precision).resolve()[0]).removeprefix("torch.")
        read = f"tokens={self.max_tokens} drop={self.drop_tokens} template={self.template!r}"
        read += " padding" if self.reads_padding else ""
        taken = f"layers={self.layers} norm={self.final_norm} normalize={self.normalize} pooling={self.pooling}"
        words = "" if self.tokenizer == self.folder else f" tokenizer={tokenizer_fingerprint(self.tokenizer)}"
        return f"transformers-text/1 {fingerprint_of(self.folder)}{words} {read} {taken} {dtype}"
