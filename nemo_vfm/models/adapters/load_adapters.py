"""Loads one or more adapters into a model for sampling and refuses adapters that have no effect."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from nemo_vfm.core import log
from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.seed import generator
from nemo_vfm.core.storage.uri import local
from nemo_vfm.models.adapters.adapter_file import read_adapter
from nemo_vfm.models.adapters.low_rank import LowRank
from nemo_vfm.models.adapters.low_rank_adapter import adapted_linears
from nemo_vfm.models.adapters.matrices import PlacedMatrices, insert_adapter, insert_changes
from nemo_vfm.models.noise_experts import NoiseExperts
from nemo_vfm.parallel.apply.local_shard import add_own, full_tensor
from nemo_vfm.parallel.plan.adapter_split import is_adapter

Network = Literal["transformer", "transformer_2"]
_PROBED, _ROWS, _PIECE = 64, 8, 1 << 24
_NOISE = re.compile(r"(high|low)[-_ ]?noise", re.IGNORECASE)


class AdapterFile:
    """An adapter file to load.

    Args:
        path: a file, or a folder that contains one: ours, or of PEFT, diffusers, ComfyUI or Cosmos.
        strength: scales the adapter's contribution; 1 is the strength of training.
        alpha: alpha of every linear in place of the file's; None uses the file's, which not every file stores.
        network: which network it is for, of a pipeline with two (Wan 2.2 A14B): `transformer`, for high noise levels,
            or `transformer_2`, for low ones; None if the model has one.
    """

    def __init__(
        self, *, path: Path, strength: float = 1.0, alpha: float | None = None, network: Network | None = None
    ) -> None:
        if strength == 0 or not isfinite(strength):
            raise ValueError(f"strength must be finite and not 0, got {strength}; remove an adapter to disable it")
        if alpha is not None and not (alpha > 0 and isfinite(alpha)):
            raise ValueError(f"alpha must be above 0, got {alpha}")
        self.path, self.strength, self.alpha = local(path, "an adapter"), strength, alpha
        self.network: Network | None = network

    def objection(self, *, to_two: bool) -> str | None:
        """Return why it cannot be loaded into a model of two networks, or of one; None if it can."""
        said = _NOISE.search(self.path.name)
        if to_two and self.network is None:
            return (f"the model has two networks, for high and for low noise levels; set network: transformer (high) "
                    f"or transformer_2 (low), whichever {self.path} is for")  # fmt: skip
        if not to_two and self.network is not None:
            return f"network is {self.network}, but this model has one network; remove network"
        if not to_two and said is not None:
            return (f"{self.path.name} calls itself an adapter for the {said[1].lower()}-noise network of Wan 2.2 "
                    f"A14B, but this model has only one network; rename the file if that is wrong")  # fmt: skip
        return None


@dataclass(frozen=True, slots=True)
class AttachedAdapter:
    """An adapter whose parameters exist in a model but are not filled yet."""

    name: str  #: of the adapter in the model
    file: AdapterFile  #: its source
    style: str  #: format of the file
    base: str  #: fingerprint of the weights it was trained on; empty if the file has none
    placed: Sequence[PlacedMatrices]  #: its matrices and their places in the model
    network: nn.Module  #: what it adapts: the model, or one of its two networks
    changes: Mapping[str, Tensor]  #: what is added to weights and biases of the network, by name


def load_adapters(model: nn.Module, files: Mapping[str, AdapterFile]) -> None:
    """Add adapters to a model on one device whose weights are loaded; DataError where a file does not fit them."""
    fill_adapters(attach_adapters(model, files))


def attach_adapters(model: nn.Module, files: Mapping[str, AdapterFile]) -> list[AttachedAdapter]:
    """Add empty adapters before the model is split over ranks; `fill_adapters` must follow."""
    attached = []
    for name, file in files.items():
        network = model
        if isinstance(model, NoiseExperts):
            if (objection := file.objection(to_two=True)) is not None:
                raise UserError(f"adapters.{name}: {objection}")
            network = model.high if file.network == "transformer" else model.low
        found = read_adapter(file.path, network, alpha=file.alpha)
        changes = insert_changes(network, found.changes, str(file.path))
        placed = insert_adapter(network, name, found.matrices, str(file.path), our_names=found.style == "ours")
        for one in placed:
            one.low.strength = file.strength
        attached.append(AttachedAdapter(name, file, found.style, found.base, placed, network, changes))
    return attached


def fill_adapters(attached: Sequence[AttachedAdapter]) -> None:
    """Load the values of attached adapters after the model's weights; every rank must call it.

    DataError where one was trained on other weights, or has no effect.
    """
    bases = {one.network: fingerprint(dict(one.network.named_parameters())) for one in attached if one.base}
    for one in attached:
        if one.base and one.base != (base := bases[one.network]):
            raise DataError(f"{one.file.path} was trained on weights with fingerprint {one.base}, but this model has "
                            f"{base}; load the weights that it was trained on")  # fmt: skip
        for matrices in one.placed:
            matrices.fill()
    for one in attached:  # after the others, which may look at the base
        parameters = dict(one.network.named_parameters())
        for name, change in one.changes.items():
            add_own(parameters[name], one.file.strength * change)
        count = require_change(one.network, one.name, one.file.path) if one.placed else 0
        changes = f", {len(one.changes)} weights and biases changed" if one.changes else ""
        log.info(f"adapter {one.name}: {one.file.path} (style {one.style}), active on {count} linears{changes}")


@torch.no_grad()
def require_change(model: nn.Module, name: str, source: Path) -> int:
    """Count the linears whose output on random input the adapter changes; every rank must call it."""
    adapted = [(place, linear) for place, linear in adapted_linears(model) if name in linear.adapters]
    changed = 0
    for place, linear in adapted:
        low = linear.adapters[name]
        assert isinstance(low, LowRank)
        plain = nn.Linear(linear.in_features, linear.out_features, bias=linear.bias is not None, device="meta")
        plain.weight = nn.Parameter(full_tensor(linear.weight), requires_grad=False)
        if linear.bias is not None:
            plain.bias = nn.Parameter(full_tensor(linear.bias), requires_grad=False)
        x = torch.randn(_ROWS, plain.in_features, generator=generator(0, "probe", place)).to(plain.weight)
        output = plain(x)
        changed += int(not torch.equal(low.gather()(x, output, plain), output))
    if not changed:
        raise DataError(f"{source} changes the output of none of its {len(adapted)} linears: it was saved untrained, "
                        f"or its matrices are zero")  # fmt: skip
    return changed


def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """Hash a model's weights to 16 hexadecimal digits: each name, shape, 64 sampled values, and the sum of all bits.

    The sum detects any single changed value, and the samples most permutations. The result depends neither on the
    weight file nor on a widened dtype. A sum reads memory once, while hashing all bytes of a model with billions of
    parameters would take minutes at each start. If ranks share weights, every rank must call it.
    """
    digest = sha256()
    for name in sorted(name for name in weights if not is_adapter(name)):
        tensor = full_tensor(weights[name].detach())
        flat = tensor.reshape(-1)
        chosen = flat[:: max(1, len(flat) // _PROBED)][:_PROBED].float().cpu()
        # The values' fp32 bit patterns as integers, whose sum does not depend on the order.
        pieces: Sequence[Tensor] = torch.split(flat, _PIECE)
        bits = sum(int(piece.float().view(torch.int32).sum(dtype=torch.int64)) for piece in pieces)
        digest.update(f"{name} {tuple(tensor.shape)} {bits} ".encode() + chosen.numpy().tobytes())
    return digest.hexdigest()[:16]
