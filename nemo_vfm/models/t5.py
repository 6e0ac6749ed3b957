# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Captions in, one vector a token out: the encoder of a T5 from a local folder.

Shape letters: B batch, L text tokens, D width of a token.
"""

import threading
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from nemo_vfm.core.device import device
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.files import read_json
from nemo_vfm.core.optional import require
from nemo_vfm.core.precision import Precision, PrecisionName
from nemo_vfm.core.types import Json
from nemo_vfm.models.pretrained import checked_folder, fingerprint_of

_ONE_AT_A_TIME = threading.Lock()  # a fast tokenizer that two threads use raises "Already borrowed"


class T5TextEncoder:
    """The encoder of a T5 (T5, Flan-T5, UMT5), as transformers writes it. Weights are read at the first `encode`.

    Vectors are those of the text's own tokens, the end mark among them; the rest of the `max_tokens` rows is zero and
    not masked in, as Cosmos has it.

    Args:
        folder: with config.json, safetensors and a tokenizer.
        max_tokens: L; further tokens are cut off, the end mark is kept.
        precision: of weights and arithmetic: auto, bf16 or fp32.
    """

    def __init__(self, *, folder: Path, max_tokens: int = 512, precision: PrecisionName = "auto") -> None:
        if max_tokens < 2:
            raise ValueError(f"max_tokens is {max_tokens}, but a token and the end mark take 2")
        self.folder, self.max_tokens, self.precision = folder, max_tokens, precision

    def encode(self, captions: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Vectors (B, L, D), fp32, zero after the text's end, and a mask (B, L), True at tokens."""
        model, tokenizer = _loaded(self.folder, Precision(self.precision))
        with _ONE_AT_A_TIME:
            tokens = tokenizer(
                list(captions), padding="max_length", truncation=True, max_length=self.max_tokens, return_tensors="pt"
            )
        ids_BL, mask_BL = tokens["input_ids"].to(device()), tokens["attention_mask"].to(device()).bool()
        longest = max(1, int(mask_BL.sum(1).max()))  # what is beyond is zero anyway
        with torch.inference_mode():
            known_BLD = model(input_ids=ids_BL[:, :longest], attention_mask=mask_BL[:, :longest]).last_hidden_state
        text_BLD = torch.zeros(len(captions), self.max_tokens, known_BLD.shape[2], device=device())
        text_BLD[:, :longest] = known_BLD.float() * mask_BL[:, :longest, None]
        return text_BLD, mask_BL

    def text_shape(self) -> tuple[int, int]:
        """(L, D)."""
        return self.max_tokens, int(read_json(checked_folder(self.folder) / "config.json")["d_model"])

    def fingerprint(self) -> str:
        """The bytes of the model, and in what it is computed."""
        dtype = str(Precision(self.precision).resolved()[0]).removeprefix("torch.")
        return f"t5/1 {fingerprint_of(self.folder)} tokens={self.max_tokens} {dtype}"


@lru_cache(maxsize=1)
def _loaded(folder: Path, precision: Precision) -> Json:
    """(encoder, tokenizer)."""
    transformers = require("transformers", install="nemo_vfm[transformers]", purpose="T5TextEncoder")
    kind = str(read_json(checked_folder(folder) / "config.json").get("model_type"))
    classes = {"t5": "T5EncoderModel", "umt5": "UMT5EncoderModel", "mt5": "MT5EncoderModel"}
    if kind not in classes:
        raise UserError(f"{folder} holds a model of the kind {kind!r}, expected one of {', '.join(classes)}")
    local = {"local_files_only": True, "trust_remote_code": False}
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **local)
        model_class = getattr(transformers, classes[kind])
        model, report = model_class.from_pretrained(
            folder, use_safetensors=True, dtype=precision.resolved()[0], output_loading_info=True, **local
        )
    except (ValueError, OSError, KeyError, ImportError) as error:
        raise UserError(f"{folder} cannot be loaded as a T5 encoder: {error}") from error
    if report["missing_keys"]:
        raise UserError(f"{folder} lacks {len(report['missing_keys'])} weights, such as {min(report['missing_keys'])}")
    return model.to(device()).eval(), tokenizer
