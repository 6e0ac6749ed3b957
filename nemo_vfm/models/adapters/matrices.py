# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Holds the matrices of an adapter as other libraries keep them: one pair for each of their linears.

Letters: R rank, I inputs, O outputs.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from nemo_vfm.core.errors import CorruptCheckpoint, DataError
from nemo_vfm.models.adapters.low_rank import WHOLE, LowRank, Method, Rank
from nemo_vfm.models.adapters.low_rank_adapter import adapted_linears, attach, parts_of
from nemo_vfm.models.convert.tensor_map import TensorMap
from nemo_vfm.models.convert.video.transformer_folder import family_of
from nemo_vfm.parallel.apply.local_shard import copy_own
from nemo_vfm.parallel.checkpoint.mapped_file import MappedFile
from nemo_vfm.parallel.checkpoint.tensor_file import read_header

#: No adapter of a model of billions has as many bytes.
_MOST_BYTES = 64 << 30


@dataclass(frozen=True, slots=True)
class Matrices:
    """What is beside one linear.

    Args:
        a: (R, I).
        b: (O, R).
        alpha: B A is multiplied by alpha / R.
        magnitude: of DoRA, (O,); None of LoRA.
    """

    a: Tensor
    b: Tensor
    alpha: float
    magnitude: Tensor | None = None


@contextmanager
def opened_adapter(path: Path) -> Iterator[MappedFile]:
    """A file of safetensors.

    Raises:
        DataError: it is none, or too large.
    """
    from safetensors import SafetensorError

    try:
        if path.stat().st_size > _MOST_BYTES:
            raise DataError(
                f"{path.name} has {path.stat().st_size:,} bytes, and an adapter has at most {_MOST_BYTES:,}"
            )
        read_header(path)  # strict where the library is not
        file = MappedFile(path)
        yield file
    except (SafetensorError, CorruptCheckpoint, OSError) as error:
        raise DataError(f"{path.name} cannot be read as safetensors: {error}") from error
    file.close()


def require_pairs(name: str, found: Mapping[str, Matrices]) -> None:
    """Refuse matrices that do not belong together.

    Raises:
        DataError: with the linear and both shapes; or there is no adapter at all.
    """
    if not found:
        raise DataError(f"{name} holds no adapter: it has no pair of matrices of low rank")
    for linear, one in found.items():
        if one.a.ndim != 2 or one.b.ndim != 2 or one.a.shape[0] != one.b.shape[1]:
            raise DataError(f"{name}: the matrices of {linear} have the shapes {tuple(one.a.shape)} and "
                            f"{tuple(one.b.shape)}, which have no rank in common")  # fmt: skip
        if one.magnitude is not None and one.magnitude.shape != (one.b.shape[0],):
            raise DataError(f"{name}: the magnitudes of {linear} have the shape {tuple(one.magnitude.shape)}, expected "
                            f"{(one.b.shape[0],)}")  # fmt: skip
    if len({one.magnitude is None for one in found.values()}) > 1:
        raise DataError(f"{name} has magnitudes (DoRA) of some linears and not of others")


def taken_from(model: nn.Module, adapter: str, *, own: bool) -> dict[str, Matrices]:
    """An adapter of a model, by linear.

    Args:
        model: that has it.
        adapter: its name there.
        own: name linears as they are here, with the part of a joint one; else as diffusers does.
    """
    found: dict[str, Matrices] = {}
    maps = _maps(model, own=own)
    for place, linear in adapted_linears(model):
        one = linear.adapters[adapter]
        assert isinstance(one, LowRank)
        for part, (name, order) in _rows(model, place, maps).items():
            if part not in one.ranks:
                continue
            a, b = (one.get_parameter(f"{part}_{which}").detach() for which in "ab")
            magnitude = one.get_parameter(f"{part}_magnitude").detach()[order] if one.method == "dora" else None
            found[name] = Matrices(a, b[order], one.ranks[part].alpha, magnitude)
    return found


@dataclass(frozen=True, slots=True)
class Placed:
    """Matrices of a file and where they belong in a model.

    Args:
        low: of the linear.
        part: of the linear.
        order: where each of the file's rows is in the part.
        given: the matrices.
    """

    low: LowRank
    part: str
    order: Tensor
    given: Matrices

    def fill(self) -> None:
        """Copy the numbers, of which a model that is spread over ranks takes its part."""
        a, b = (self.low.get_parameter(f"{self.part}_{which}") for which in "ab")
        copy_own(a, self.given.a)
        copy_own(b, self._in_order(self.given.b))
        if self.given.magnitude is not None:
            copy_own(self.low.get_parameter(f"{self.part}_magnitude"), self._in_order(self.given.magnitude))

    def _in_order(self, rows: Tensor) -> Tensor:
        placed = torch.empty_like(rows)
        placed[self.order] = rows
        return placed


def put_into(
    model: nn.Module, adapter: str, given: Mapping[str, Matrices], source: str, *, own: bool
) -> list[Placed]:  # fmt: skip
    """Give a model an adapter, whose numbers `Placed.fill` brings.

    Args:
        model: that gets it.
        adapter: its name there.
        given: by linear; see `taken_from`.
        source: where it is from, for messages.
        own: see `taken_from`.

    Raises:
        DataError: a linear there is none of here, or of another size.
    """
    maps = _maps(model, own=own)
    places = {name: (place, part, order) for place in _linears(model)
              for part, (name, order) in _rows(model, place, maps).items()}  # fmt: skip
    ranks: dict[str, dict[str, Rank]] = {}
    for name, one in given.items():
        if name not in places:
            raise DataError(f"{source} changes {name}, which this {type(model).__name__} does not have; it is an "
                            f"adapter of another model")  # fmt: skip
        place, part, _ = places[name]
        ranks.setdefault(place, {})[part] = Rank(one.a.shape[0], one.alpha)
    attach(model, adapter, ranks, _method(given))
    linears, found = dict(adapted_linears(model)), []
    for name, one in given.items():
        place, part, order = places[name]
        low = linears[place].adapters[adapter]
        assert isinstance(low, LowRank)
        _require_shapes(low, part, one, source, name)
        found.append(Placed(low, part, order, one))
    return found


def _require_shapes(low: LowRank, part: str, given: Matrices, source: str, name: str) -> None:
    a, b = (low.get_parameter(f"{part}_{which}") for which in "ab")
    if given.a.shape != a.shape or given.b.shape != b.shape:
        raise DataError(f"{source}: the matrices of {name} have the shapes {tuple(given.a.shape)} and "
                        f"{tuple(given.b.shape)}, and this model takes {tuple(a.shape)} and {tuple(b.shape)}; it is an "
                        f"adapter of another model")  # fmt: skip


def _method(given: Mapping[str, Matrices]) -> Method:
    return "lora" if next(iter(given.values())).magnitude is None else "dora"


def _linears(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]


def _rows(model: nn.Module, place: str, maps: Mapping[str, TensorMap] | None) -> dict[str, tuple[str, Tensor]]:
    """Part -> (its name, where each of its rows there is among the part's rows here); nothing without a name."""
    parts, linear = parts_of(model, place), model.get_submodule(place)
    assert isinstance(linear, nn.Linear)
    if maps is None:
        count = torch.arange(linear.out_features // len(parts.names))
        return {part: (place if part == WHOLE else f"{place}.{part}", count) for part in parts.names}
    of = maps.get(f"{place}.weight")
    numbers = torch.arange(linear.out_features)[:, None]
    if of is None or len(of.names) != len(parts.names) or (theirs := _split(of, numbers)) is None:
        return {}
    found = {}
    for part, name, rows in zip(parts.names, of.names, theirs, strict=True):
        ours = parts.rows(numbers, part).flatten()
        where = torch.empty(linear.out_features, dtype=torch.int64)
        where[ours] = torch.arange(len(ours))
        found[part] = (name.removesuffix(".weight"), where[rows.flatten()])
    return found


def _split(of: TensorMap, numbers: Tensor) -> list[Tensor] | None:
    """The rows there; None of a weight that has another shape there, such as a convolution's."""
    try:
        return of.split(numbers)
    except RuntimeError:
        return None


def _maps(model: nn.Module, *, own: bool) -> dict[str, TensorMap] | None:
    """Where each weight is in diffusers; None where names are our own."""
    if own:
        return None
    family, bare = family_of(model)
    return family.tensors_of(bare)
