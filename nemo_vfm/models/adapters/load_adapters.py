# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Loads adapters into a model for sampling, several at once, and refuses those that would change nothing."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from math import isfinite
from pathlib import Path

import torch
from torch import Tensor, nn

from nemo_vfm.core import log
from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.seed import generator
from nemo_vfm.core.storage.uri import local
from nemo_vfm.models.adapters.adapter_file import read_adapter
from nemo_vfm.models.adapters.low_rank import LowRank
from nemo_vfm.models.adapters.low_rank_adapter import adapted_linears
from nemo_vfm.models.adapters.matrices import put_into
from nemo_vfm.parallel.apply.beside_linear import is_adapter
from nemo_vfm.parallel.apply.local_shard import spread

_PROBED, _ROWS, _PIECE = 64, 8, 1 << 24


class AdapterFile:
    """An adapter to be loaded.

    Args:
        path: of a file, or of a folder with one: ours, or of PEFT, diffusers, ComfyUI or Cosmos.
        strength: what the adapter adds is multiplied by this besides; 1 is as it was trained.
        alpha: of every linear, for a file that does not say it; None takes what the file says.

    Raises:
        ValueError: a strength of 0, or numbers that are not finite.
    """

    def __init__(self, *, path: Path, strength: float = 1.0, alpha: float | None = None) -> None:
        if strength == 0 or not isfinite(strength):
            raise ValueError(f"strength is {strength}; at 0 an adapter changes nothing, so leave it out")
        if alpha is not None and not (alpha > 0 and isfinite(alpha)):
            raise ValueError(f"alpha must be above 0, got {alpha}")
        self.path, self.strength, self.alpha = local(path, "an adapter"), strength, alpha


def load_adapters(model: nn.Module, files: Mapping[str, AdapterFile]) -> None:
    """Put adapters beside a model's linears, after its weights are there.

    Raises:
        UserError: there is no such file, or the model is spread over ranks already.
        DataError: it is damaged, of another model or of other weights, or changes nothing.
    """
    if files and any(spread(parameter) is not None for parameter in model.parameters()):
        raise UserError("adapters are loaded before a model is spread over ranks, which spreads them with it; this one "
                        "is spread already")  # fmt: skip
    base = fingerprint(dict(model.named_parameters())) if files else ""
    for name, file in files.items():
        found = read_adapter(file.path, model, alpha=file.alpha)
        if found.base and found.base != base:
            raise DataError(f"{file.path} was trained on weights of the fingerprint {found.base}, and this model has "
                            f"{base}; load it on the weights that it was trained on")  # fmt: skip
        put_into(model, name, found.matrices, str(file.path), own=found.style == "ours")
        for _, linear in adapted_linears(model):
            if name in linear.adapters:
                low = linear.adapters[name]
                assert isinstance(low, LowRank)
                low.strength = file.strength
        count = require_change(model, name, file.path)
        log.info(f"adapter {name}: {file.path} in the style {found.style}, on {count} linears")


@torch.no_grad()
def require_change(model: nn.Module, name: str, source: Path) -> int:
    """Ask each linear with and without the adapter; how many answer otherwise.

    Raises:
        DataError: none does.
    """
    own = [(place, linear) for place, linear in adapted_linears(model) if name in linear.adapters]
    changed = 0
    for place, linear in own:
        x = torch.randn(_ROWS, linear.in_features, generator=generator(0, "probe", place)).to(linear.weight)
        adapter = linear.adapters[name]
        plain = linear.forward(x)
        changed += int(not torch.equal(adapter(x, plain, linear), plain))
    if not changed:
        raise DataError(f"{source} changes none of the {len(own)} linears that it is for: it was saved untrained, or "
                        f"its numbers are zeros")  # fmt: skip
    return changed


def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """16 hexadecimal digits of the weights: of each its name, its shape, 64 numbers of it, and the sum of all its bits.

    No number can change without the sum, and hardly two trade places without the 64. It does not depend on the file
    that weights came from, nor on whether their dtype was widened. A sum reads memory once; to hash all bytes of a
    model of billions would take minutes at each start.
    """
    digest = sha256()
    for name in sorted(name for name in weights if not is_adapter(name)):
        tensor = weights[name]
        flat = tensor.detach().reshape(-1)
        chosen = flat[:: max(1, len(flat) // _PROBED)][:_PROBED].float().cpu()
        digest.update(f"{name} {tuple(tensor.shape)} {_bits(flat)} ".encode() + chosen.numpy().tobytes())
    return digest.hexdigest()[:16]


def _bits(flat: Tensor) -> int:
    """The sum of its numbers' bits as fp32, read as integers; in whatever order, it is the same."""
    pieces: Sequence[Tensor] = torch.split(flat.detach(), _PIECE)
    return sum(int(piece.float().view(torch.int32).sum(dtype=torch.int64)) for piece in pieces)
