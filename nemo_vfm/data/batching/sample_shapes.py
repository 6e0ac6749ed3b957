"""Declares what a source must know to make samples up in the place of its files.

Shape letters: C channels, T frames, H height, W width, L text tokens, D width of a text token.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from nemo_vfm.core.types.training_data import TrainingData
from nemo_vfm.data.batching.bucket import Buckets

if TYPE_CHECKING:
    from nemo_vfm.sparse.tables.made_up_batch import FeatureSizes


class SampleShapes(Protocol):
    """What a training's model and task read of a sample.

    Only `num_samples` and `learns_latents` are known from the recipe alone. A source asks for the others when it is
    opened: a model may be of a folder that the run makes first.
    """

    @property
    def num_samples(self) -> int:
        """How many to make of each shape."""
        ...

    def learns_latents(self) -> bool:
        """Whether the task reads latents where a source has them; else it reads pixels."""
        ...

    def latents(self, buckets: Buckets | None) -> Mapping[str, tuple[int, ...]]:
        """(C, T, H, W) of the latents of each bucket by its name, or without buckets of samples of no bucket."""
        ...

    def text(self) -> tuple[int, int] | None:
        """(L, D) of cached text; None where the model reads none."""
        ...

    def labels(self) -> Mapping[str, float | str]:
        """What the task looks up of each sample, by name."""
        ...

    def vocab(self) -> int:
        """Tokens of the model."""
        ...

    def table(self) -> "tuple[FeatureSizes, int]":
        """What a recommender and its task read, and how many items of a history the model keeps."""
        ...


@runtime_checkable
class HasMock(Protocol):
    """Training data that can make its samples up."""

    def mocked(self, shapes: SampleShapes) -> TrainingData:
        """The same batches in the same order, of seeded samples of these shapes; none of its files is looked at."""
        ...
