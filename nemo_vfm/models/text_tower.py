"""Loads the text part of a transformers folder and runs it so that padding has no influence.

Shape letters: B batch, T tokens, D width of a token.
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
from nemo_vfm.core.optional import require
from nemo_vfm.core.precision import Precision
from nemo_vfm.core.storage.files import read_json
from nemo_vfm.core.types.component import no_component
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.pretrained import checked_folder
from nemo_vfm.parallel.plan.static_memory import on_meta

_ONE_AT_A_TIME = threading.Lock()  # a fast tokenizer that two threads use raises "Already borrowed"
_PARTS = ("language_model", "text_model")  # of a model with pictures beside the text
_FINAL_NORMS = ("norm", "final_layer_norm", "final_norm", "ln_f")


@dataclass(frozen=True, slots=True)
class TextConfig:
    """What config.json says of the text part.

    Args:
        kind: model_type of the folder.
        width: D.
        depth: blocks.
        most_tokens: positions that it knows; None where they are relative.
    """

    kind: str
    width: int
    depth: int
    most_tokens: int | None

    def chosen(self, layers: Literal["all"] | Sequence[int]) -> list[int]:
        """Indices of hidden states, from 0, the embedding, to `depth`.

        Raises:
            UserError: one does not exist.
        """
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
    """What the folder holds, without its weights.

    Raises:
        UserError: the folder cannot be loaded, comes with code of its own, or is quantised.
    """
    config = _config(folder)
    text = config.get_text_config(encoder=True) if config.is_encoder_decoder else config.get_text_config()
    most = getattr(text, "max_position_embeddings", None)
    return TextConfig(str(config.model_type), int(text.hidden_size), int(text.num_hidden_layers), most)


def text_parameters(folder: Path) -> int:
    """How many numbers the text part has, without its weights.

    Raises:
        UserError: see `read_config`.
    """
    config, transformers = _config(folder), require("transformers", purpose="A text encoder from a folder")
    kind = _kind(transformers, config)
    with _folder_errors(folder):
        kind._model_mapping[type(config)]  # imported here: tensors that a module makes on the meta device stay there
        model = on_meta(lambda: kind.from_config(config))
        return sum(parameter.numel() for parameter in _text_part(model).parameters())


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
    """A tokenizer and the text part of a model.

    Args:
        folder: it came from.
        model: text part.
        words: tokenizer of transformers.
    """

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
        """Token ids and a mask, (B, T), padded on the right to the longest text or, if `padded`, to `most`.

        Raises:
            UserError: the model cannot read so many tokens.
        """
        limit = self._limit()
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

    def _limit(self) -> int | None:
        most = self._config.most_tokens
        return None if most is None else min(most, int(self._words.model_max_length))

    def states(self, ids_BT: Tensor, mask_BT: Tensor, layers: Sequence[int], final_norm: str) -> list[Tensor]:
        """Hidden states (B, T, D), fp32, of the layers, which count from 0.

        Raises:
            UserError: `final_norm` asks for a norm that cannot be found.
        """
        seen_BT = torch.ones_like(mask_BT) if self._reads_padding else mask_BT.clone()
        seen_BT[:, 0] = True  # a softmax over nothing is NaN
        with _before(self._norm() if final_norm != "last" else None) as raw:
            found = self._model(input_ids=ids_BT, attention_mask=seen_BT.long(), output_hidden_states=True)
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


@contextmanager
def _before(norm: nn.Module | None) -> Iterator[list[Tensor]]:
    """What the norm is given."""
    raw: list[Tensor] = []
    handle = norm and norm.register_forward_pre_hook(lambda _, given: raw.append(given[0]))
    try:
        yield raw
    finally:
        if handle:
            handle.remove()


@lru_cache(maxsize=1)
def load(folder: Path, tokenizer: Path, precision: Precision) -> Tower:
    """The text part of a folder on this process's device.

    Raises:
        UserError: it cannot be loaded, or weights are missing.
    """
    config = _config(folder)
    transformers = require("transformers", purpose="A text encoder from a folder")
    local = {"local_files_only": True, "trust_remote_code": False}
    with _folder_errors(folder):
        model, report = _kind(transformers, config).from_pretrained(
            folder,
            config=config,
            use_safetensors=True,
            dtype=precision.resolved()[0],
            output_loading_info=True,
            **local,
        )
    part = _text_part(model)
    _refuse_missing(folder, model, part, report["missing_keys"])
    return Tower(folder, part.to(device()).eval(), _tokenizer(tokenizer))


def count_tokens(folder: Path, tokenizer: Path, texts: Sequence[str]) -> list[int]:
    """The tokens of each whole text, marks of its beginning and end included."""
    with _folder_errors(folder), _ONE_AT_A_TIME:
        return [len(ids) for ids in _tokenizer(tokenizer)(list(texts), truncation=False)["input_ids"]]


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


def _refuse_missing(folder: Path, model: nn.Module, part: nn.Module, missing: Sequence[str]) -> None:
    """Weights that no hidden state depends on may be absent: other parts, and the pooled vector's layer."""
    used = {id(parameter) for name, parameter in part.named_parameters() if "pooler" not in name.split(".")}
    known = dict(model.named_parameters(remove_duplicate=False))
    lacking = sorted(name for name in missing if name not in known or id(known[name]) in used)
    if lacking:
        raise UserError(f"{folder} lacks {len(lacking)} weights, such as {lacking[0]}")
