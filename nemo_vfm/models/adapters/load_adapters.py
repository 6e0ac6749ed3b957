# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Loads adapters into a model for sampling, several at once, and refuses those that would change nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import isfinite
from pathlib import Path

import torch
from torch import Tensor, nn

from nemo_vfm.core import log
from nemo_vfm.core.errors import DataError
from nemo_vfm.core.seed import generator
from nemo_vfm.core.storage.uri import local
from nemo_vfm.models.adapters.adapter_file import read_adapter
from nemo_vfm.models.adapters.low_rank import LowRank
from nemo_vfm.models.adapters.low_rank_adapter import adapted_linears
from nemo_vfm.models.adapters.matrices import Placed, put_into
from nemo_vfm.parallel.apply.beside_linear import is_adapter
from nemo_vfm.parallel.apply.local_shard import whole

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


@dataclass(frozen=True, slots=True)
class AttachedAdapter:
    """An adapter that a model has, and whose numbers are still to come.

    Args:
        name: in the model.
        file: it comes from.
        style: of the file.
        base: fingerprint of the weights that it was trained on; empty where the file does not say it.
        placed: its matrices.
    """

    name: str
    file: AdapterFile
    style: str
    base: str
    placed: Sequence[Placed]


def load_adapters(model: nn.Module, files: Mapping[str, AdapterFile]) -> None:
    """Put adapters beside a model's linears, after its weights are there.

    Raises:
        UserError: there is no such file, or the model is spread over ranks already.
        DataError: it is damaged, of another model or of other weights, or changes nothing.
    """
    fill_adapters(model, attach_adapters(model, files))


def attach_adapters(model: nn.Module, files: Mapping[str, AdapterFile]) -> list[AttachedAdapter]:
    """Put adapters beside a model's linears, before the model is split over ranks; `fill_adapters` comes after.

    Raises:
        UserError: there is no such file.
        DataError: it is damaged, or of another model.
    """
    attached = []
    for name, file in files.items():
        found = read_adapter(file.path, model, alpha=file.alpha)
        placed = put_into(model, name, found.matrices, str(file.path), own=found.style == "ours")
        for one in placed:
            one.low.strength = file.strength
        attached.append(AttachedAdapter(name, file, found.style, found.base, placed))
    return attached


def fill_adapters(model: nn.Module, attached: Sequence[AttachedAdapter]) -> None:
    """Give attached adapters their numbers, after the model's weights are there; every rank must call it.

    Raises:
        DataError: an adapter is of other weights, or changes nothing.
    """
    base = fingerprint(dict(model.named_parameters())) if attached else ""
    for one in attached:
        if one.base and one.base != base:
            raise DataError(f"{one.file.path} was trained on weights of the fingerprint {one.base}, and this model has "
                            f"{base}; load it on the weights that it was trained on")  # fmt: skip
        for matrices in one.placed:
            matrices.fill()
        count = require_change(model, one.name, one.file.path)
        log.info(f"adapter {one.name}: {one.file.path} in the style {one.style}, on {count} linears")


@torch.no_grad()
def require_change(model: nn.Module, name: str, source: Path) -> int:
    """Ask each linear with and without the adapter; how many answer otherwise. Every rank must call it.

    Raises:
        DataError: none does.
    """
    own = [(place, linear) for place, linear in adapted_linears(model) if name in linear.adapters]
    changed = 0
    for place, linear in own:
        low = linear.adapters[name]
        assert isinstance(low, LowRank)
        plain, adapter = _whole_linear(linear), low.whole()
        x = torch.randn(_ROWS, plain.in_features, generator=generator(0, "probe", place)).to(plain.weight)
        output = plain(x)
        changed += int(not torch.equal(adapter(x, output, plain), output))
    if not changed:
        raise DataError(f"{source} changes none of the {len(own)} linears that it is for: it was saved untrained, or "
                        f"its numbers are zeros")  # fmt: skip
    return changed


def _whole_linear(linear: nn.Linear) -> nn.Linear:
    """The linear without what stands beside it and, where ranks share it, with all of its weight."""
    plain = nn.Linear(linear.in_features, linear.out_features, bias=linear.bias is not None, device="meta")
    plain.weight = nn.Parameter(whole(linear.weight), requires_grad=False)
    if linear.bias is not None:
        plain.bias = nn.Parameter(whole(linear.bias), requires_grad=False)
    return plain


def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """16 hexadecimal digits of the weights: of each its name, its shape, 64 numbers of it, and the sum of all its bits.

    No number can change without the sum, and two that trade places hardly without the 64. It does not depend on the
    file that weights came from, nor on whether their dtype was widened. A sum reads memory once; to hash all bytes of a
    model of billions would take minutes at each start. Where ranks share weights, every rank must call it.
    """
    digest = sha256()
    for name in sorted(name for name in weights if not is_adapter(name)):
        tensor = whole(weights[name].detach())
        flat = tensor.reshape(-1)
        chosen = flat[:: max(1, len(flat) // _PROBED)][:_PROBED].float().cpu()
        digest.update(f"{name} {tuple(tensor.shape)} {_bits(flat)} ".encode() + chosen.numpy().tobytes())
    return digest.hexdigest()[:16]


def _bits(flat: Tensor) -> int:
    """The sum of its numbers' bits as fp32, read as integers; in whatever order, it is the same."""
    pieces: Sequence[Tensor] = torch.split(flat.detach(), _PIECE)
    return sum(int(piece.float().view(torch.int32).sum(dtype=torch.int64)) for piece in pieces)
