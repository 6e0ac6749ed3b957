"""Lets a training learn from made-up samples: asks its model and task for the shapes that a source is to make.

Shape letters: C channels, T frames, H height, W width, L text tokens, D width of a text token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import nn

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.log import info
from nemo_vfm.core.types.component import no_component
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.task import Task
from nemo_vfm.core.types.training_data import HasTableRows, LightningData, TrainingData
from nemo_vfm.data.batching.bucket import Buckets
from nemo_vfm.data.batching.sample_shapes import HasMock
from nemo_vfm.parallel.plan.static_memory import on_meta
from nemo_vfm.sparse.tables.made_up_batch import FeatureSizes

_TEXT_TOKENS = 512  # of a text encoder whose folder is given later
_PROBE_PX = 4096  # every codec takes a frame of such a power of two
_LONGEST = 16  # items of a history, where the model keeps any number


@dataclass(frozen=True, slots=True, kw_only=True)
class MockData:
    """Seeded samples in the place of a training's files; `data=mock` on the command line sets it.

    Args:
        num_samples: of each shape.
        latents: frames, rows and columns of cached latents, of one shape or several, where the data has no buckets;
            None takes the smallest that the model can learn from.
    """

    num_samples: int = 256
    latents: Sequence[tuple[int, int, int]] | None = None

    def __post_init__(self) -> None:
        if self.num_samples < 1 or any(min(shape) < 1 for shape in self.latents or ()):
            raise ValueError(
                f"made-up data needs at least one sample and latents of sizes above 0, got num_samples "
                f"{self.num_samples} and latents {self.latents}"
            )


def mocked(
    data: TrainingData | LightningData, made: MockData, model: Factory[[], nn.Module], task: Task
) -> TrainingData:
    """The same data of made-up samples. ValueError where it is of a class that makes none up."""
    if not isinstance(data, HasMock):
        raise ValueError(f"mock_data: {type(data).__name__} cannot make samples up; use data of ours, or add a method "
                         f"`mocked` to it (nemo_vfm.data.batching.sample_shapes)")  # fmt: skip
    shapes = ShapesOfTraining(made, model, task)
    found = data.mocked(shapes)
    if isinstance(found, HasTableRows):  # tables as large as the made-up data says
        from nemo_vfm.models.recommenders.table_choice import SizedModel

        shapes.factory = SizedModel(model, found)
    return found


@no_component
class ShapesOfTraining:
    """See `SampleShapes`; the model is built without memory at the first question that needs it."""

    def __init__(self, made: MockData, model: Factory[[], nn.Module], task: Task) -> None:
        self.num_samples = made.num_samples
        self.factory, self._latents, self._task = model, made.latents, task

    @cached_property
    def _model(self) -> Any:
        return on_meta(self.factory)

    @cached_property
    def _small(self) -> Mapping[str, tuple[int, ...]]:
        asked = getattr(self._model, "small_inputs", None)
        found: Mapping[str, tuple[int, ...]] = {} if asked is None else asked()
        return found

    def learns_latents(self) -> bool:
        """See `SampleShapes`: whether the task has a codec, perhaps of a pipeline."""
        return not vars(self._task).keys().isdisjoint(("codec", "pipeline"))

    def latents(self, buckets: Buckets | None) -> Mapping[str, tuple[int, ...]]:
        """See `SampleShapes`. UserError if neither codec nor model says how many channels there are."""
        codec: Any = getattr(self._task, "codec", None)
        if buckets is not None:
            return {
                name: codec.latent_shape(one.num_frames, one.height, one.width) for name, one in buckets.buckets.items()
            }
        small = self._small.get("latents_BCTHW")
        try:
            channels = codec.latent_shape(1, _PROBE_PX, _PROBE_PX)[0]
        except (ValueError, DataError, UserError, OSError):  # for other sizes, or its folder is given later
            channels = getattr(self._model, "in_channels", None) or (small or (0, 0))[1]
        sizes = self._latents
        if sizes is None and small is not None:
            info(f"made-up latents are as small as the model takes them, {' x '.join(map(str, small[2:]))}; set "
                 f"mock_data.latents=[[T,H,W]] for others")  # fmt: skip
            sizes = [(small[2], small[3], small[4])]
        if not channels or not sizes:
            raise UserError(f"{type(self._model).__name__} says neither its channels nor the size of its latents; "
                            f"give data.buckets or mock_data.latents=[[T,H,W]]")  # fmt: skip
        alone = len(sizes) == 1
        return {"" if alone else "x".join(map(str, size)): (channels, *size) for size in sizes}

    def text(self) -> tuple[int, int] | None:
        """See `SampleShapes`: the text encoder's, else as wide as the model's."""
        encoder: Any = getattr(self._task, "text_encoder", None)
        try:
            if encoder is not None:
                length, width = encoder.text_shape()
                return length, width
        except (DataError, UserError, OSError):  # its folder is given later
            pass
        width = getattr(self._model, "text_dim", None)
        return None if width is None else (_TEXT_TOKENS, width)

    def labels(self) -> Mapping[str, float | str]:
        """See `SampleShapes`: that of a scorer's task, a number or the first of the classes."""
        name, classes = getattr(self._task, "label", None), getattr(self._task, "classes", None)
        return {name: classes[0] if classes else 0.5} if isinstance(name, str) else {}

    def vocab(self) -> int:
        """See `SampleShapes`."""
        words = getattr(self._model, "vocab", None)
        if not isinstance(words, int):
            raise UserError(f"{type(self._model).__name__} has no vocabulary, so no tokens can be made up for it")
        return words

    def table(self) -> tuple[FeatureSizes, int]:
        """See `SampleShapes`."""
        sizes = FeatureSizes.of(self._model, tuple(getattr(self._task, "labels", ())))
        if sizes is None:
            raise UserError(f"{type(self._model).__name__} has no embedding tables, so no features can be made up "
                            f"for it")  # fmt: skip
        kept = [longest for one in self._model.modules() if isinstance(longest := getattr(one, "longest", None), int)]
        return sizes, max(kept, default=_LONGEST)
