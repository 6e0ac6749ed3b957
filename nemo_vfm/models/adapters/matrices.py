"""Converts adapters between a model and the per-linear matrices that other libraries use.

Letters: R rank, I inputs, O outputs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from nemo_vfm.core.errors import DataError
from nemo_vfm.models.adapters.low_rank import WHOLE, LowRank, Rank
from nemo_vfm.models.adapters.low_rank_adapter import adapted_linears, attach, projections_of
from nemo_vfm.models.convert.gpt_weights import tensor_map
from nemo_vfm.models.convert.tensor_map import TensorMap
from nemo_vfm.models.convert.video.transformer_folder import family_of
from nemo_vfm.models.gpt import GPT
from nemo_vfm.parallel.apply.local_shard import copy_own, full_tensor
from nemo_vfm.parallel.plan.adapter_split import is_adapter

#: Initializations that take B0 A0 out of the base: its leading singular vectors, or the leading part of its QR.
Initial = Literal["pissa", "olora"]


@dataclass(frozen=True, slots=True)
class Matrices:
    """The matrices of one adapted linear."""

    a: Tensor  #: (R, I)
    b: Tensor  #: (O, R)
    alpha: float  #: B A is multiplied by alpha / R
    magnitude: Tensor | None = None  #: DoRA's magnitudes, (O,); None for LoRA
    #: how A and B began, if that part was taken out of the base: they are then for W - (alpha / R) B0 A0
    initial: Initial | None = None
    base: Tensor | None = None  #: the base's weight, (O, I), if the file has it to compare

    @property
    def rank(self) -> Rank:
        """Rank and alpha on the unchanged base; see `on_unchanged_base`."""
        rank = self.a.shape[0]
        whole_rank = rank if self.initial is None else min(2 * rank, self.a.shape[1])
        return Rank(whole_rank, self.alpha * whole_rank / rank)

    def on_unchanged_base(self, weight: Tensor) -> "Matrices":
        """Return matrices that compute on W, (O, I), what these compute on W - s B0 A0, where s is alpha / R.

        W - s B0 A0 + s B A = W + s [B, -B0] [A; A0], of rank 2 R. PiSSA: Meng et al. 2024 (arXiv 2404.02948),
        equations 2 to 4; OLoRA: Büyükakyüz 2024 (arXiv 2406.01775), algorithm 1.
        """
        rank, weight = self.a.shape[0], weight.float()
        if self.initial == "pissa":
            u, values, v = torch.linalg.svd(weight, full_matrices=False)
            roots = (values[:rank] * rank / self.alpha).sqrt()
            b, a = u[:, :rank] * roots, roots[:, None] * v[:rank]
        else:
            q, r = torch.linalg.qr(weight)
            b, a = q[:, :rank], r[:rank]
        # The two products nearly cancel. Factors of their difference keep it where bf16 would round it away.
        q_b, r_b = torch.linalg.qr(torch.cat([self.b.to(b), -b], 1))
        q_a, r_a = torch.linalg.qr(torch.cat([self.a.to(a), a]).t())
        return Matrices(q_a.t(), q_b @ r_b @ r_a.t(), self.rank.alpha, self.magnitude)


def require_pairs(name: str, found: Mapping[str, Matrices]) -> None:
    """Refuse matrices whose shapes do not match."""
    if not found:
        raise DataError(f"{name} contains no adapter: it has no pair of low-rank matrices")
    for linear, one in found.items():
        if one.a.ndim != 2 or one.b.ndim != 2 or one.a.shape[0] != one.b.shape[1]:
            raise DataError(f"{name}: the matrices of {linear} have shapes {tuple(one.a.shape)} and "
                            f"{tuple(one.b.shape)}, which do not share a rank")  # fmt: skip
        if one.magnitude is not None and one.magnitude.shape != (one.b.shape[0],):
            raise DataError(f"{name}: the magnitudes of {linear} have shape {tuple(one.magnitude.shape)}, expected "
                            f"{(one.b.shape[0],)}")  # fmt: skip
    if len({one.magnitude is None for one in found.values()}) > 1:
        raise DataError(f"{name} has magnitudes (DoRA) for some linears but not for others")


def extract_adapter(model: nn.Module, adapter: str, *, our_names: bool) -> dict[str, Matrices]:
    """Extract an adapter's matrices from a model, by linear.

    With `our_names`, projections of a fused linear have a suffix; else names are those of diffusers or transformers.
    """
    found: dict[str, Matrices] = {}
    maps = _maps(model, our_names=our_names)
    for place, linear in adapted_linears(model):
        one = linear.adapters[adapter]
        assert isinstance(one, LowRank)
        rows = _rows(model, place, maps)
        if one.ranks.keys() - rows.keys():
            raise DataError(f"{place} is not a separate linear in other libraries, so only the style ours can store "
                            f"its adapter")  # fmt: skip
        for part in one.ranks:
            name, order = rows[part]
            a, b = (one.get_parameter(f"{part}_{which}").detach() for which in "ab")
            magnitude = one.get_parameter(f"{part}_magnitude").detach()[order] if one.method == "dora" else None
            found[name] = Matrices(a, b[order], one.ranks[part].alpha, magnitude)
    return found


@dataclass(frozen=True, slots=True)
class PlacedMatrices:
    """Matrices from a file and their place in a model."""

    low: LowRank  #: the adapter to fill
    linear: nn.Linear  #: what it adapts
    part: str  #: projection of the linear
    order: Tensor  #: for each row of the file, its index in the projection
    given: Matrices  #: matrices from the file
    name: str  #: of the linear in the file

    def fill(self) -> None:
        """Copy the values; a rank of a split model copies its shard, but every rank must call it."""
        given = self.given
        if given.initial is not None or given.base is not None:
            weight = self.low.parts.rows(full_tensor(self.linear.weight.detach()), self.part)[self.order]
            if given.initial is not None:
                given = given.on_unchanged_base(weight)
            elif given.base is None or given.base.shape != weight.shape or not given.base.to(weight).equal(weight):
                raise DataError(f"{self.name} has its own weight beside its adapter, which is not the base's: it "
                                f"was trained, or enlarged for more tokens; merge it with the library that made "
                                f"it")  # fmt: skip
        copy_own(self.low.get_parameter(f"{self.part}_a"), given.a)
        for which, rows in (("b", given.b), ("magnitude", given.magnitude)):
            if rows is not None:
                reordered = torch.empty_like(rows)
                reordered[self.order] = rows
                copy_own(self.low.get_parameter(f"{self.part}_{which}"), reordered)


def insert_adapter(
    model: nn.Module, adapter: str, given: Mapping[str, Matrices], source: str, *, our_names: bool
) -> list[PlacedMatrices]:  # fmt: skip
    """Add an empty adapter to a model; `PlacedMatrices.fill` then copies its values."""
    maps = _maps(model, our_names=our_names)
    linear_names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    places = {name: (place, part, order) for place in linear_names
              for part, (name, order) in _rows(model, place, maps).items()}  # fmt: skip
    ranks: dict[str, dict[str, Rank]] = {}
    for name, one in given.items():
        if name not in places:
            raise of_another_model(source, name, model)
        place, part, _ = places[name]
        ranks.setdefault(place, {})[part] = one.rank
    if given:
        attach(model, adapter, ranks, "lora" if next(iter(given.values())).magnitude is None else "dora")
    linears, found = dict(adapted_linears(model)), []
    for name, one in given.items():
        place, part, order = places[name]
        low = linears[place].adapters[adapter]
        assert isinstance(low, LowRank)
        a, b = (low.get_parameter(f"{part}_{which}") for which in "ab")
        if (one.a.shape[1], one.b.shape[0]) != (a.shape[1], b.shape[0]):
            raise DataError(f"{source}: the matrices of {name} have shapes {tuple(one.a.shape)} and "
                            f"{tuple(one.b.shape)}, but this model needs {tuple(a.shape)} and {tuple(b.shape)}; it is "
                            f"an adapter for another model")  # fmt: skip
        found.append(PlacedMatrices(low, linears[place], part, order, one, name))
    return found


def of_another_model(source: str, name: str, model: nn.Module) -> DataError:
    """Return the error of an adapter for a module that a model lacks; some names say what they are for."""
    if name == "lm_head" and getattr(model, "tied", False):
        return DataError(f"{source} adapts lm_head, which is tied to the embedding in this model and cannot have its "
                         f"own adapter; merge it with the library that made it, into a separate head")  # fmt: skip
    for_image = any(word in name for word in ("add_k_proj", "add_v_proj", "image_embedder", "_img", "img_emb"))
    what = "an image-to-video model of Wan 2.1, but this one takes no image" if for_image else "another model"
    return DataError(f"{source} adapts {name[:200]}, which this {type(model).__name__} does not have; it is an adapter "
                     f"for {what}")  # fmt: skip


def insert_changes(model: nn.Module, given: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """Return changes of weights and biases, given under diffusers' names, by this package's names and in its layout."""
    if not given:
        return {}
    parameters, left, found = dict(model.named_parameters()), dict(given), dict[str, Tensor]()
    for place, of in _maps_of_video(model).items():
        if left.keys().isdisjoint(of.names):
            continue
        zeros = of.split(torch.zeros(parameters[place].shape))
        parts = [left.pop(name, none) for name, none in zip(of.names, zeros, strict=True)]
        for name, part, none in zip(of.names, parts, zeros, strict=True):
            if part.shape != none.shape:
                raise DataError(f"{source} changes {name} by a tensor of shape {tuple(part.shape)}, but this model's "
                                f"is {tuple(none.shape)}; it is for another model")  # fmt: skip
        found[place] = of.join([part.float() for part in parts])
    if left:
        raise of_another_model(source, next(iter(left)), model)
    return found


def _rows(model: nn.Module, place: str, maps: Mapping[str, TensorMap] | None) -> dict[str, tuple[str, Tensor]]:
    """Map each projection to its name and row order in the other naming; empty if it has no name there."""
    parts, linear = projections_of(model, place), model.get_submodule(place)
    assert isinstance(linear, nn.Linear)
    if maps is None:
        order = {part: torch.arange(parts.count(linear.out_features, part)) for part in parts.names}
        return {part: (place if part == WHOLE else f"{place}.{part}", rows) for part, rows in order.items()}
    of = maps.get(f"{place}.weight")
    numbers = torch.arange(linear.out_features)[:, None]
    if of is None or len(of.names) != len(parts.names):
        return {}
    try:
        theirs = of.split(numbers)  # row numbers as diffusers has them
    except RuntimeError:  # the weight has another shape there, such as a convolution's
        return {}
    found = {}
    for part, name, rows in zip(parts.names, of.names, theirs, strict=True):
        ours = parts.rows(numbers, part).flatten()
        where = torch.empty(linear.out_features, dtype=torch.int64)
        where[ours] = torch.arange(len(ours))
        found[part] = (name.removesuffix(".weight"), where[rows.flatten()])
    return found


def _maps(model: nn.Module, *, our_names: bool) -> dict[str, TensorMap] | None:
    """Return the maps from our weights to those of diffusers or transformers; None for our own names."""
    if our_names:
        return None
    if isinstance(model, GPT):
        names = [name for name, _ in model.named_parameters() if not is_adapter(name)]  # a tied head has none
        return {name: tensor_map(name, model.sizes) for name in names}
    return _maps_of_video(model)


def _maps_of_video(model: nn.Module) -> dict[str, TensorMap]:
    family, bare = family_of(model)
    try:
        return family.tensors_of(bare)
    except KeyError as error:
        raise DataError(f"diffusers has no network like this {type(model).__name__}: it has no {error.args[0]}; only "
                        f"adapters in the style ours fit it") from error  # fmt: skip
