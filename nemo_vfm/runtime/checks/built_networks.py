"""Builds a job's networks on the meta device, so that their sizes can be compared without memory or weights."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nemo_vfm.config import BoundFactory, RecipeError
from nemo_vfm.core.errors import DataError, UserError

if TYPE_CHECKING:
    from torch import nn

Address = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BuiltNetwork:
    """A network without memory."""

    module: "nn.Module | None" = None  #: None where it cannot be known yet
    is_pretrained: bool = False  #: whether a folder says what it is; its sizes can then not be changed

    def instead(self, key: str, value: int, beyond: str = "") -> tuple[Address, str]:
        """Where another number is to be given for `key`, and what to give there, or what `beyond` adds."""
        if self.is_pretrained:
            return ("model", "folder"), "the folder of a network that fits"
        return ("model", key), f"{key}={value} {beyond}".rstrip()


def built_networks(job: Any) -> list[BuiltNetwork]:
    """The networks of a job that has a model, at least one; a pipeline may have one for each range of noise levels."""
    factory = _factory_of(job)
    is_class = factory is not None and isinstance(factory.call.target, type)
    if factory is None or not (is_class or is_of_folder(job)):
        return [BuiltNetwork()]
    from nemo_vfm.parallel.plan.sharding_spec import networks_of
    from nemo_vfm.parallel.plan.static_memory import on_meta

    try:
        return [BuiltNetwork(one, is_pretrained=not is_class) for one in networks_of(on_meta(factory))]
    except (RecipeError, UserError, DataError, OSError):  # of a folder that is given later; a run says what it lacks
        return [BuiltNetwork()]


def is_of_folder(job: Any) -> bool:
    """Whether a folder's config.json says what network a job has, and the weights come from elsewhere."""
    from nemo_vfm.models.convert.gpt_folder import gpt_of_folder
    from nemo_vfm.models.convert.video.pretrained_video import pretrained_experts, pretrained_video_model

    factory = _factory_of(job)
    return factory is not None and factory.call.target in (gpt_of_folder, pretrained_video_model, pretrained_experts)


def _factory_of(job: Any) -> BoundFactory | None:
    factory = getattr(job.model, "model", job.model)  # of a model with adapters, that of the model
    return factory if isinstance(factory, BoundFactory) else None
