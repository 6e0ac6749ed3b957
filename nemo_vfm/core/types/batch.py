"""Declares what training asks of a batch, whatever its samples are.

Shape letter: B batch.
"""

from collections.abc import Sequence
from dataclasses import Field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@runtime_checkable
class Batch(Protocol):
    """Samples of a global batch, or of a rank's slice of it. All that training itself looks at; a task knows the rest.

    An implementation is a dataclass, of which `dataclasses.replace` makes a changed copy.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    index: int  #: g, the number of this global batch since the start of training
    weight_B: "Tensor"  #: loss weight; 0 where a bad sample kept its place

    @property
    def keys(self) -> tuple[str, ...]:
        """The id of each sample."""
        ...

    def __len__(self) -> int: ...

    def cut(self, parts: int) -> "Sequence[Batch]":
        """The same samples as so many batches, one after the other; fewer where there are fewer samples."""
        ...

    def to(self, device: "torch.device | str") -> "Batch":
        """The same batch with every tensor on `device`."""
        ...


@runtime_checkable
class RequiresColumns(Protocol):
    """A model that reads parts of a batch by their names."""

    def require_columns(self, batch: Any) -> None:
        """Check that a batch has all that the model reads; one without samples will do.

        Raises:
            DataError: it lacks something.
        """
        ...
