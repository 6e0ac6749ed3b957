"""Says where the weights of a training come from, such as another run, and which of them it trains or only reads."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from torch import nn

from nemo_vfm.core import log
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.storage.uri import Address, Place, place
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.adapters.low_rank_adapter import AdaptedModel, LowRankAdapter, begin

if TYPE_CHECKING:
    from nemo_vfm.parallel.checkpoint.checkpoint import Checkpoint


class WarmStart:
    """Starts from the weights of another run. A run that has its own checkpoint resumes from that instead.

    An embedding table may have more rows than there: the old ones are taken, and the new ones begin as the seed says.
    The optimizer state of rows that are taken is taken, too, where the table's optimizer is the same.

    Args:
        path: a run folder, a step's folder, a folder of checkpoints (the newest whole one is taken), or a checkpoint;
            local or in an object store. Or a local transformers folder of a language model, or a local diffusers
            folder of a video model (Cosmos, Wan): the pipeline's or the transformer's. Convert files of other programs
            first; the message says how.
        weights: which of its weights; None takes the averaged ones (ema) where there are some, else the model's own.
        may_differ: names of weights, or what they begin with up to a dot, that may be absent there, unknown here or of
            another shape; those keep the values that the seed gives them. Everything else must fit.
    """

    def __init__(
        self, *, path: Place, weights: Literal["ema", "model"] | None = None, may_differ: Sequence[str] = ()
    ) -> None:
        self.path, self.weights, self.may_differ = place(path), weights, tuple(may_differ)

    def load_into(self, model: nn.Module, slot: str = "weights.start_from") -> dict[str, Json]:
        """See `loaded_weights.load_into`."""
        from nemo_vfm.train import loaded_weights

        return loaded_weights.load_into(model, self.path, self.weights, self.may_differ, slot)


class FrozenModel:
    """A second model, which the task reads and nothing trains: each rank holds all of it, and no checkpoint does.

    Args:
        model: builds it.
        start_from: whose weights it has, as for `weights.start_from`. Each start reads them again, and a resume refuses
            others, so name a step's folder where that run may go on.
    """

    def __init__(self, *, model: Factory[[], nn.Module], start_from: Place | WarmStart) -> None:
        self.model = model
        self.start_from = start_from if isinstance(start_from, WarmStart) else WarmStart(path=start_from)
        if self.start_from.may_differ:
            raise ValueError("a frozen model learns nothing, so its weights must all be there; leave may_differ out")


class Weights:
    """Where a training's weights come from. Without anything given they are drawn from the seed, and all are trained.

    Args:
        start_from: another run whose weights this one begins with: a run folder or a checkpoint, or a mapping of path,
            weights and may_differ; None draws them from the seed.
        adapters: low-rank adapters to train instead of the model's weights, which stay those of `start_from`. Only the
            adapters have gradients, optimizer state, a running average and checkpoints. None trains the model.
        frozen: further models, which the task reads under these names, such as teacher; None for none.
    """

    def __init__(
        self, *, start_from: Place | WarmStart | None = None, adapters: LowRankAdapter | None = None,
        frozen: Mapping[str, FrozenModel] | None = None,
    ) -> None:  # fmt: skip
        if adapters is not None and start_from is None:
            raise ValueError("adapters do not train the model's own weights, so these must be pretrained: set "
                             "start_from")  # fmt: skip
        self.start_from = WarmStart(path=start_from) if isinstance(start_from, Path | Address) else start_from
        self.adapters, self.frozen = adapters, dict(frozen or {})

    def model_factory(self, model: Factory[[], nn.Module]) -> Factory[[], nn.Module]:
        """What builds the model that is trained."""
        return model if self.adapters is None else AdaptedModel(model, self.adapters)

    def load_into(self, model: nn.Module, saved: "Checkpoint | None") -> Json:
        """Load `start_from` into the model; returns what was taken from where, None where nothing was.

        A run with adapters loads its frozen weights at every start, also beside its own checkpoint, `saved`. UserError
        if they differ from those that it began with.
        """
        if self.start_from is None or (saved is not None and self.adapters is None):
            return None
        source = self.start_from.load_into(model)
        if saved is None:
            begin(model)
        elif source["sha256"] != (before := (saved.state.get("started_from") or {}).get("sha256")):
            raise UserError(f"the adapters of this run were trained on weights of sha256 {str(before)[:12]}..., and "
                            f"{source['path']} has {source['sha256'][:12]}...; use the original weights")  # fmt: skip
        return source

    def say_what_differs(self, step: int, before: Json) -> None:
        """Another alpha changes what the same matrices compute; another rank would have been refused before."""
        if self.adapters is not None and (difference := self.adapters.differs_from(before)):
            log.warn(f"adapters differ from those of the {step} steps before ({difference}): the network changes "
                     f"now, and a run with these from the start would have different weights")  # fmt: skip
