"""Builds models whose first weights follow from a seed, and fills them with others' weights."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from nemo_vfm.core.errors import CorruptCheckpoint
from nemo_vfm.core.seed import derive
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.parallel.apply.apply_parallelism import Drawn
from nemo_vfm.parallel.apply.local_shard import copy_own, mismatch
from nemo_vfm.parallel.plan.adapter_split import is_adapter


def build_model(factory: Factory[[], nn.Module], seed: int) -> nn.Module:
    """A model whose initial weights are a function of `seed` alone, whatever was drawn before.

    On the meta device, too: embedding tables keep the seed and draw their rows when they get memory.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "initial weights"))
        return factory()


def build_unfilled(factory: Factory[[], nn.Module], seed: int) -> tuple[nn.Module, bool]:
    """The model, and whether it is on the meta device, as it is where it may be too large for one device.

    A model that brings weights of its own keeps them.
    """
    with torch.device("meta"):
        model = build_model(factory, seed)
    if isinstance(model, Drawn) and not list(model.buffers()) and all(one.is_meta for one in model.parameters()):
        return model, True
    return build_model(factory, seed), False


def require_same_weights(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Refuse weights of another model, with the differences as text. CorruptCheckpoint if names or shapes differ."""
    surplus = weights.keys() - own.keys()
    if surplus and not any(map(is_adapter, own)) and all(map(is_adapter, surplus)):
        raise CorruptCheckpoint("The checkpoint holds only adapters, as saved by training adapters. Load the model "
                                "that they were trained on, and the adapters beside it: write them with nemo-vfm "
                                "convert RUN FOLDER --adapter ours, and name the folder in adapters.NAME.path."
                                )  # fmt: skip
    here, there = ({name: tuple(one.shape) for name, one in of.items()} for of in (own, weights))
    if differences := mismatch(here, there):
        raise CorruptCheckpoint(
            f"The checkpoint is from another model ({differences}). Use the recipe that trained it."
        )  # fmt: skip


def load_weights_into(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Strict loading of whole weights, of which a rank takes its part. CorruptCheckpoint if names or shapes differ."""
    own = model.state_dict()
    require_same_weights(own, weights)
    for name, tensor in own.items():
        copy_own(tensor, weights[name])
