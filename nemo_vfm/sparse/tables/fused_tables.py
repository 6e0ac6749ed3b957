"""Holds all embedding tables of a device, looks them up together, and updates each touched row once a step.

The backward of a lookup keeps the gradients of the bags, not of the rows.
Shape letters: B samples of a feature, N values, G bags, D width.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.tables import row_kernels
from nemo_vfm.sparse.tables.packed_gradients import PackedGradients, PendingGradient
from nemo_vfm.sparse.tables.row_kernels import sum_bags
from nemo_vfm.sparse.tables.row_optimizer import RowOptimizer
from nemo_vfm.sparse.tables.row_storage import RowStorage
from nemo_vfm.sparse.tables.table_spec import TableSpec


@dataclass(frozen=True)
class FeatureLookup:
    """A feature to look up."""

    feature: str  #: its name
    number: int  #: in its storage, in the order of the tables
    table: str  #: the name of its table
    pooling: str  #: of its table; of a sequence each value is a bag, else each sample is one
    jagged: Jagged  #: ids, lengths and weights


@dataclass(frozen=True)
class CallOrder:
    """Where the samples of a call stand among those of the step."""

    number: int  #: of the call
    keep_samples: bool  #: whether the samples of bags are needed to restore their order
    places_B: Tensor | None  #: in the global batch, or None


class FusedTables(nn.Module):
    """Embedding tables whose rows are no parameters: backward keeps ids and gradients, `update` changes the rows.

    A step is any number of microbatches (`lookup`, loss, backward) and one `update`, or `forget` where the step is
    refused. Gradients of a row that came up many times are summed first; so microbatches give what one batch gives, and
    clipping can look at the whole gradient before any row changes. The rows are part of a model's state dict, as
    TABLE.weight; they are in no `parameters()`, so that no other optimizer, no FSDP and no all-reduce sees them.

    Args:
        tables: by name. Tables of one dtype and width share a storage, and one lookup reads all of them.
        optimizer: updates the touched rows.
        seed: of initial values and of stochastic rounding. Both depend on (seed, table name, row, column), not on what
            other tables there are.
        device: where the rows are; None is torch's default device. On meta there are no values.

    Raises:
        ValueError: there is no table, or two tables have a feature of one name.
    """

    def __init__(
        self, tables: Mapping[str, TableSpec], optimizer: RowOptimizer, seed: int = 0,
        device: torch.device | str | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        device = torch.get_default_device() if device is None else torch.device(device)
        self.tables, self.optimizer, self.step = dict(tables), optimizer, 0
        self._table_of: dict[str, str] = {}
        for name, spec in self.tables.items():
            for feature in spec.features:
                if (other := self._table_of.setdefault(feature, name)) != name:
                    raise ValueError(
                        f"feature {feature!r} belongs to the tables {other!r} and {name!r}, but may belong to only one"
                    )
        if not self._table_of:
            raise ValueError("expected at least one table, got none")
        groups: dict[tuple[str, int], dict[str, TableSpec]] = {}
        for name, spec in self.tables.items():
            groups.setdefault((spec.dtype, spec.width), {})[name] = spec
        self._storages = [RowStorage(group, optimizer, seed, device) for group in groups.values()]
        self._storage_of = {name: storage for storage in self._storages for name in storage.tables}
        self._anchor = torch.zeros((), device=device, requires_grad=True)
        self._calls = 0
        if device.type != "meta":
            row_kernels.announce(str(device))

    def lookup(self, features: Mapping[str, Jagged], places_B: Tensor | None = None) -> dict[str, Tensor]:
        """The vectors of these features, fp32: (B, width) where pooled, (N, width) as a sequence.

        Args:
            features: some or all that the tables know; ids in int64. Each may have its own number of samples.
            places_B: the place of each sample in the global batch, int64, all different in a step. With them, sums do
                not depend on how the samples are distributed or permuted, to the last bit.

        Raises:
            ValueError: a feature is unknown, ids are not int64, a sequence has weights, or a feature has not one
                sample a place.
            DataError: lengths do not fit the values, or an id is no row of its table.
        """
        for feature in features:
            if feature not in self._table_of:
                near = get_close_matches(feature, self._table_of, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known are {sorted(self._table_of)}."
                raise ValueError(f"no table looks up the feature {feature!r}: {hint}")
        self._calls += 1
        out: dict[str, Tensor] = {}
        for storage in self._storages:
            # Where two features have a table together, values of a row come feature by feature, not by sample.
            is_shared = any(len(spec.features) > 1 for spec in storage.tables.values())
            order = CallOrder(self._calls, places_B is not None or is_shared, places_B)
            if wanted := self._lookups(storage, features, places_B):
                # Each has a tensor of its own: one large one would be given back to the system and zeroed in each step.
                weights = [None if one.jagged.weights_N is None else one.jagged.weights_N.float() for one in wanted]
                # The anchor requires a gradient, so that autograd asks for ours; it gets none.
                found = _Lookup.apply(self._anchor, storage, wanted, order, *weights)  # type: ignore[no-untyped-call]
                out |= {one.feature: vectors for one, vectors in zip(wanted, found, strict=True)}
        return {feature: out[feature] for feature in features}

    def exchange(self, gather: Callable[[PackedGradients], Sequence[PackedGradients]]) -> None:
        """Take the gradients of every rank's lookups in place of this one's, so that all ranks update alike.

        Args:
            gather: gives each rank's, by rank; every rank must call it equally often.
        """
        for storage in self._storages:
            storage.replace(gather(storage.pack_pending()))

    def has_finite_gradients(self) -> bool:
        """Whether every number that waits is finite; much quicker than `squared_norm`."""
        return all(storage.has_finite_gradients() for storage in self._storages)

    def squared_norm(self, global_weight: float | Tensor) -> Tensor:
        """Sum of squares of all rows' gradients after division, fp64: not finite where a gradient is not.

        No row changes: for clipping, and for refusing a step. The sums are kept for `update`: of each touched row an
        fp32 row, until `update`, `forget` or another backward.
        """
        return torch.stack([storage.squared_norm(global_weight) for storage in self._storages]).sum()

    def update(
        self, global_weight: float | Tensor, clip_factor: float | Tensor | None = None, lr_factor: float = 1.0
    ) -> None:
        """End the step: update each touched row once with (sum of its gradients) / global_weight * clip_factor.

        Args:
            global_weight: what the summed gradients of all microbatches are divided by.
            clip_factor: None is 1.
            lr_factor: of a schedule; it multiplies the optimizer's learning rate.

        Raises:
            ValueError: `global_weight` is not above 0 and finite; nothing has changed then.
        """
        if not (0 < float(global_weight) < math.inf):
            raise ValueError(f"global_weight {float(global_weight)} must be above 0 and finite; refuse such a step")
        for storage in self._storages:
            storage.touched_rows()  # what can fail does so before any row changes
        self.step += 1
        for storage in self._storages:
            storage.apply(self.optimizer, global_weight, clip_factor, self.step, lr_factor)
        self._calls = 0

    def forget(self) -> None:
        """Refuse the step: drop its gradients. Rows, state and the step counter stay."""
        for storage in self._storages:
            storage.forget()
        self._calls = 0

    def state(self) -> dict[str, Tensor]:
        """Everything a checkpoint needs, by name: TABLE.weight and TABLE.STATE as views, and step."""
        found = {"step": torch.tensor(self.step)}
        for name, storage in self._storage_of.items():
            tensors = {"weight": storage.rows_RD, **storage.state}
            found |= {f"{name}.{what}": storage.of_table(one, name) for what, one in tensors.items()}
        return found

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` gave, and drop pending gradients.

        Raises:
            ValueError: names, shapes or dtypes differ; nothing has changed then.
        """
        own = self.state()
        if own.keys() != state.keys():
            missing, unknown = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
            raise ValueError(
                f"the state belongs to other tables or another optimizer: missing {missing}, unknown {unknown}"
            )
        for name, tensor in own.items():
            if tensor.shape != state[name].shape or tensor.dtype != state[name].dtype:
                raise ValueError(
                    f"{name} is {state[name].dtype} of shape {tuple(state[name].shape)}; these tables hold "
                    f"{tensor.dtype} of shape {tuple(tensor.shape)}"
                )
        for name, tensor in own.items():
            tensor.copy_(state[name])
        self.step = int(state["step"])
        self.forget()

    def optimizer_state(self) -> dict[str, Tensor]:
        """`state` without the rows, which a model's state dict has."""
        return {name: tensor for name, tensor in self.state().items() if not name.endswith(".weight")}

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        for name, storage in self._storage_of.items():
            destination[f"{prefix}{name}.weight"] = storage.of_table(storage.rows_RD, name)

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, local_metadata: Any, strict: bool,
        missing_keys: list[str], unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        for name, storage in self._storage_of.items():
            key, rows_RD = f"{prefix}{name}.weight", storage.of_table(storage.rows_RD, name)
            if key not in state_dict:
                missing_keys.append(key)
            elif state_dict[key].shape != rows_RD.shape:
                error_msgs.append(f"{key} has shape {tuple(state_dict[key].shape)}, here {tuple(rows_RD.shape)}")
            else:
                rows_RD.copy_(state_dict[key])
        known = {f"{prefix}{name}.weight" for name in self._storage_of}
        unexpected_keys += [key for key in state_dict if strict and key.startswith(prefix) and key not in known]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "FusedTables":
        """Follow a model to another device; its dtype is each table's own."""
        device = fn(torch.empty(0, device=self._anchor.device)).device
        for storage in self._storages:
            storage.to(device)
        self._anchor = torch.zeros((), device=device, requires_grad=True)
        return self

    def _lookups(
        self, storage: RowStorage, features: Mapping[str, Jagged], places_B: Tensor | None
    ) -> list[FeatureLookup]:
        """In the order of the tables, whatever the order of the batch's features."""
        found = []
        for number, (feature, name) in enumerate(storage.features.items()):
            if (jagged := features.get(feature)) is not None:
                spec = storage.tables[name]
                if jagged.values_N.dtype != torch.int64:
                    raise ValueError(f"{feature}: ids are {jagged.values_N.dtype}; they must be int64")
                if not _looks_valid(jagged, spec.rows):
                    jagged.require_valid(spec.rows, feature)  # slower: it finds the place
                if spec.pooling == "sequence" and jagged.weights_N is not None:
                    raise ValueError(
                        f"{feature}: a sequence has no sum to weight; multiply its vectors, or pool its table"
                    )
                if places_B is not None and len(places_B) != len(jagged):
                    raise ValueError(
                        f"{feature}: {len(jagged)} samples, but {len(places_B)} places; look it up in a separate call"
                    )
                found.append(FeatureLookup(feature, number, name, spec.pooling, jagged))
        return found


def tables_of(model: nn.Module) -> dict[str, FusedTables]:
    """The embedding tables of a model, by the name of their module."""
    return {name: one for name, one in model.named_modules() if isinstance(one, FusedTables)}


def count_rows(model: nn.Module) -> tuple[int, int]:
    """(tables, numbers in their rows), which no count of a model's parameters has."""
    specs = [spec for one in tables_of(model).values() for spec in one.tables.values()]
    return len(specs), sum(spec.rows * spec.width for spec in specs)


class _Lookup(Function):
    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, storage: RowStorage, wanted: Sequence[FeatureLookup], order: CallOrder,
        *weights: Tensor | None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        ctx.storage, ctx.wanted, ctx.order = storage, wanted, order
        ctx.save_for_backward(*weights)
        ctx.set_materialize_grads(False)
        found = []
        for one, weights_N in zip(wanted, weights, strict=True):
            rows_RD, ids_N = storage.of_table(storage.rows_RD, one.table), one.jagged.values_N
            if one.pooling == "sequence":
                found.append(rows_RD.index_select(0, ids_N).float())
                continue
            out_BD = sum_bags(rows_RD, ids_N, one.jagged.offsets, weights_N)
            found.append(out_BD.div_(_divisors(one)) if one.pooling == "mean" else out_BD)
        return tuple(found)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        storage, order, of_weights = ctx.storage, ctx.order, list[Tensor | None]()
        given = zip(ctx.wanted, ctx.saved_tensors, grads, ctx.needs_input_grad[4:], strict=True)
        for one, weights_N, grad_GD, is_weighed in given:
            if grad_GD is None:
                of_weights.append(None)
                continue
            grad_GD = grad_GD.float().contiguous()
            grad_GD = grad_GD / _divisors(one) if one.pooling == "mean" else grad_GD
            ids_N, lengths_B = one.jagged.values_N, one.jagged.lengths_B
            lengths_G = torch.ones_like(ids_N) if one.pooling == "sequence" else lengths_B
            samples_G = order.places_B if order.keep_samples else None  # a number a bag that rises with the samples
            if order.keep_samples and samples_G is None:
                samples_G = torch.arange(len(one.jagged), device=ids_N.device)
            if samples_G is not None and one.pooling == "sequence":
                samples_G = torch.repeat_interleave(samples_G, lengths_B)
            has_places = order.places_B is not None
            storage.add(
                PendingGradient(order.number, one.number, ids_N, lengths_G, weights_N, samples_G, has_places, grad_GD)
            )
            if not is_weighed:
                of_weights.append(None)
                continue
            # d loss / d weight of a value is the product of its row and its bag's gradient.
            rows_ND = storage.of_table(storage.rows_RD, one.table).index_select(0, ids_N).float()
            of_weights.append((rows_ND * torch.repeat_interleave(grad_GD, lengths_B, dim=0)).sum(1))
        return (*(None,) * 4, *of_weights)


def _divisors(one: FeatureLookup) -> Tensor:
    return one.jagged.lengths_B.clamp(min=1).float()[:, None]


def _looks_valid(jagged: Jagged, rows: int) -> bool:
    """Two passes over the ids instead of five."""
    count, weights = len(jagged.values_N), jagged.weights_N
    fit = int(jagged.offsets[-1]) == count and (weights is None or len(weights) == count)
    if not fit or not len(jagged):
        return False
    low, high = jagged.values_N.aminmax() if count else (0, 0)
    return int(jagged.lengths_B.min()) >= 0 and int(low) >= 0 and int(high) < rows
