# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Loads one or more adapters into a model for sampling and refuses adapters that have no effect."""

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
from nemo_vfm.models.adapters.matrices import PlacedMatrices, insert_adapter
from nemo_vfm.parallel.apply.adapter_split import is_adapter
from nemo_vfm.parallel.apply.local_shard import whole

_PROBED, _ROWS, _PIECE = 64, 8, 1 << 24


class AdapterFile:
    """An adapter file to load.

    Args:
        path: a file, or a folder that contains one: ours, or of PEFT, diffusers, ComfyUI or Cosmos.
        strength: scales the adapter's contribution; 1 is the strength of training.
        alpha: alpha of every linear in place of the file's; None uses the file's, which not every file stores.

    Raises:
        ValueError: strength is 0, alpha is not positive, or either is not finite.
    """

    def __init__(self, *, path: Path, strength: float = 1.0, alpha: float | None = None) -> None:
        if strength == 0 or not isfinite(strength):
            raise ValueError(f"strength must be finite and not 0, got {strength}; remove an adapter to disable it")
        if alpha is not None and not (alpha > 0 and isfinite(alpha)):
            raise ValueError(f"alpha must be above 0, got {alpha}")
        self.path, self.strength, self.alpha = local(path, "an adapter"), strength, alpha


@dataclass(frozen=True, slots=True)
class AttachedAdapter:
    """An adapter whose parameters exist in a model but are not filled yet.

    Args:
        name: of the adapter in the model.
        file: its source.
        style: format of the file.
        base: fingerprint of the weights it was trained on; empty if the file has none.
        placed: its matrices and their places in the model.
    """

    name: str
    file: AdapterFile
    style: str
    base: str
    placed: Sequence[PlacedMatrices]


def load_adapters(model: nn.Module, files: Mapping[str, AdapterFile]) -> None:
    """Add adapters to a model on one device whose weights are loaded.

    Raises:
        UserError: a file does not exist.
        DataError: a file is damaged, belongs to another model or other weights, or has no effect.
    """
    fill_adapters(model, attach_adapters(model, files))


def attach_adapters(model: nn.Module, files: Mapping[str, AdapterFile]) -> list[AttachedAdapter]:
    """Add empty adapters before the model is split over ranks; `fill_adapters` must follow.

    Raises:
        UserError: a file does not exist.
        DataError: a file is damaged or belongs to another model.
    """
    attached = []
    for name, file in files.items():
        found = read_adapter(file.path, model, alpha=file.alpha)
        placed = insert_adapter(model, name, found.matrices, str(file.path), our_names=found.style == "ours")
        for one in placed:
            one.low.strength = file.strength
        attached.append(AttachedAdapter(name, file, found.style, found.base, placed))
    return attached


def fill_adapters(model: nn.Module, attached: Sequence[AttachedAdapter]) -> None:
    """Load the values of attached adapters after the model's weights; every rank must call it.

    Raises:
        DataError: an adapter was trained on other weights, or has no effect.
    """
    base = fingerprint(dict(model.named_parameters())) if attached else ""
    for one in attached:
        if one.base and one.base != base:
            raise DataError(f"{one.file.path} was trained on weights with fingerprint {one.base}, but this model has "
                            f"{base}; load the weights that it was trained on")  # fmt: skip
        for matrices in one.placed:
            matrices.fill()
        count = require_change(model, one.name, one.file.path)
        log.info(f"adapter {one.name}: {one.file.path} (style {one.style}), active on {count} linears")


@torch.no_grad()
def require_change(model: nn.Module, name: str, source: Path) -> int:
    """Count the linears whose output on random input the adapter changes; every rank must call it.

    Raises:
        DataError: no output changes.
    """
    adapted = [(place, linear) for place, linear in adapted_linears(model) if name in linear.adapters]
    changed = 0
    for place, linear in adapted:
        low = linear.adapters[name]
        assert isinstance(low, LowRank)
        plain, adapter = _unsharded_linear(linear), low.unsharded()
        x = torch.randn(_ROWS, plain.in_features, generator=generator(0, "probe", place)).to(plain.weight)
        output = plain(x)
        changed += int(not torch.equal(adapter(x, output, plain), output))
    if not changed:
        raise DataError(f"{source} changes the output of none of its {len(adapted)} linears: it was saved untrained, "
                        f"or its matrices are zero")  # fmt: skip
    return changed


def _unsharded_linear(linear: nn.Linear) -> nn.Linear:
    """Return a copy of a linear without adapters and with unsharded parameters."""
    plain = nn.Linear(linear.in_features, linear.out_features, bias=linear.bias is not None, device="meta")
    plain.weight = nn.Parameter(whole(linear.weight), requires_grad=False)
    if linear.bias is not None:
        plain.bias = nn.Parameter(whole(linear.bias), requires_grad=False)
    return plain


def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """Hash a model's weights to 16 hexadecimal digits: each name, shape, 64 sampled values, and the sum of all bits.

    The sum detects any single changed value, and the samples most permutations. The result depends neither on the
    weight file nor on a widened dtype. A sum reads memory once, while hashing all bytes of a model with billions of
    parameters would take minutes at each start. If ranks share weights, every rank must call it.
    """
    digest = sha256()
    for name in sorted(name for name in weights if not is_adapter(name)):
        tensor = whole(weights[name].detach())
        flat = tensor.reshape(-1)
        chosen = flat[:: max(1, len(flat) // _PROBED)][:_PROBED].float().cpu()
        digest.update(f"{name} {tuple(tensor.shape)} {_bits(flat)} ".encode() + chosen.numpy().tobytes())
    return digest.hexdigest()[:16]


def _bits(flat: Tensor) -> int:
    """Sum the values' fp32 bit patterns as integers, which does not depend on the order."""
    pieces: Sequence[Tensor] = torch.split(flat.detach(), _PIECE)
    return sum(int(piece.float().view(torch.int32).sum(dtype=torch.int64)) for piece in pieces)
