# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Another run in, its weights in a new model out; the optimizer, the step and the order of samples begin anew."""

from collections.abc import Mapping, Sequence
from typing import Literal

from torch import Tensor, nn

from nemo_vfm.core import log
from nemo_vfm.core.errors import CorruptCheckpoint, UserError
from nemo_vfm.core.place import Place, place
from nemo_vfm.core.types import Json
from nemo_vfm.parallel.checkpoint import load_weights, verify
from nemo_vfm.parallel.checkpoint_store import opened
from nemo_vfm.parallel.engine import load_weights_into


class WarmStart:
    """Begins with the weights of another run. A run that has a checkpoint of its own goes on from that instead.

    Args:
        path: a run folder, a step's folder, a folder of checkpoints (the newest whole one is taken), or a checkpoint;
            here or in an object store.
        weights: which of its weights; None takes the averaged ones (ema) where there are some, else the model's own.
        may_differ: names of weights, or what they begin with up to a dot, that may be absent there, unknown here or of
            another shape; those keep the values that the seed gives them. Everything else must fit.
    """

    def __init__(
        self, *, path: Place, weights: Literal["ema", "model"] | None = None, may_differ: Sequence[str] = ()
    ) -> None:
        self.path, self.weights, self.may_differ = place(path), weights, tuple(may_differ)

    def load_into(self, model: nn.Module) -> dict[str, Json]:
        """Put the weights in.

        Returns:
            What was taken from where, for the record.

        Raises:
            UserError: there are none, or they do not fit; the text shows how.
        """
        with opened(self.path) as found:
            chosen, manifest = found.name, verify(found.path)
            group = self.weights or ("ema" if "ema.safetensors" in manifest["files"] else "model")
            given = load_weights(found.path, group)
        new = self._put(model, given, chosen)
        sha256 = manifest["files"][f"{group}.safetensors"]["sha256"]
        log.info(f"begins with the {group} weights of {chosen} (sha256 {sha256[:12]}...)")
        if new:
            log.warn(f"not from there, but as the seed gives them or left out: {_some(new)}")
        return {"path": chosen, "run": manifest["run"], "step": manifest["step"], "weights": group,
                "sha256": sha256, "not_taken": new}  # fmt: skip

    def _put(self, model: nn.Module, given: Mapping[str, Tensor], chosen: str) -> list[str]:
        """Load what fits; the names that did not, and may differ."""
        own = model.state_dict()
        unfit = [n for n in sorted(own.keys() | given.keys()) if n not in own or n not in given
                 or own[n].shape != given[n].shape]  # fmt: skip
        self._require_known(own.keys() | given.keys(), chosen)
        new = [name for name in unfit if any(_below(name, prefix) for prefix in self.may_differ)]
        kept = {name: tensor for name, tensor in given.items() if name not in new}
        try:
            load_weights_into(model, kept | {name: own[name] for name in new if name in own})
        except CorruptCheckpoint as error:
            first = next(name for name in unfit if name not in new).partition(".")[0]
            raise UserError(f"The weights of {chosen} do not fit this model. {str(error).partition(' Use ')[0]} "
                            f"Where some may be new: start_from.may_differ=[{first}]") from error  # fmt: skip
        return new

    def _require_known(self, names: "Sequence[str] | set[str]", chosen: str) -> None:
        for prefix in self.may_differ:
            if not any(_below(name, prefix) for name in names):
                some = _some(sorted({name.partition(".")[0] for name in names}))
                raise UserError(
                    f"may_differ: neither this model nor {chosen} has weights below {prefix!r}; they have {some}."
                )


def _below(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
