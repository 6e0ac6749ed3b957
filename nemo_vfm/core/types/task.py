"""Declares tasks: which inputs of a batch a model is given, and its losses.

Shape letters: B batch, T frames, K numbers a frame.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, runtime_checkable

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.core.types.sample_batches import LAID

if TYPE_CHECKING:
    from torch import Tensor, nn


@runtime_checkable
class HasShapes(Protocol):
    """An input of a model that is made of several tensors."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of each of its tensors, by name."""
        ...


@dataclass(slots=True)
class ModelInputs:
    """One batch made ready: what the model is called with, and what the criterion needs besides."""

    #: keyword arguments of the model: tensors, or objects that tell the shapes of theirs.
    inputs: "Mapping[str, Tensor | HasShapes]"
    targets: dict[str, "Tensor"]  #: tensors for the criterion
    weight_B: "Tensor"  #: what each sample's loss counts; the mean over a global batch is by these
    #: per-sample numbers worth logging by, such as the noise level, each (B,).
    tags: dict[str, "Tensor"] = field(default_factory=dict)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the inputs. Those in `LAID` are shapes themselves and come as they are, one number after another."""
        found: dict[str, tuple[int, ...]] = {}
        for name, x in self.inputs.items():
            if isinstance(x, HasShapes):
                found |= x.shapes()
            else:
                found[name] = tuple(x.flatten().tolist()) if name in LAID else tuple(x.shape)
        return found

    def tensors(self) -> "dict[str, Tensor]":
        """The inputs, where each is one tensor.

        Raises:
            UserError: one is made of several.
        """
        if several := [name for name, x in self.inputs.items() if isinstance(x, HasShapes)]:
            raise UserError(
                f"the model's input {several[0]!r} is made of several tensors, and one tensor was expected: a pipeline "
                "sends tensors of one shape; train such a model with parallel.pipeline: 1"
            )
        return dict(self.inputs)  # type: ignore[arg-type]


@runtime_checkable
class Task(Protocol):
    """What is learned. Split in two so that a pipeline schedule can run the model in between."""

    def prepare(self, batch: Batch, *, seed: int, training: bool) -> ModelInputs:
        """Turn a batch into model inputs and targets; all randomness is a function of (seed, batch.index, key)."""
        ...

    def losses(self, output: "Tensor", prepared: ModelInputs) -> "Tensor":
        """The loss of each sample, (B,), float32."""
        ...


@runtime_checkable
class HandsMembers(Task, Protocol):
    """A task that hands the model what the data was asked for by name (`members`), each as an argument of its name."""

    def member_objection(self, model: "nn.Module", members: Collection[str], others: Collection[str]) -> str:
        """Why the model cannot have batches with these members, as a sentence; empty where it can.

        Args:
            model: built, perhaps without memory.
            members: that a source of the data gives.
            others: that only other sources of it give.
        """
        ...


@runtime_checkable
class TakesTurns(Task, Protocol):
    """A task whose model has children that oppose each other, each with an optimizer and losses of its own.

    In training `turn_losses` stands in the place of `losses`, which validation measures.
    """

    def turn_losses(self, turn: str, output: "Tensor", prepared: ModelInputs) -> "Tensor":
        """The loss of each sample, (B,), float32, that the model's child `turn` is updated by.

        The other children are frozen meanwhile, and the output is that of their newest weights.
        """
        ...


@runtime_checkable
class ReadsModels(Task, Protocol):
    """A task that reads frozen models beside the one that is trained: a teacher, a reference, a critic."""

    def models_objection(self, model: "nn.Module", frozen: "Mapping[str, nn.Module]") -> str:
        """Why it cannot train a model with these, all perhaps without memory, as a sentence; empty where it can."""
        ...

    def read_models(self, models: "Mapping[str, Callable[..., Tensor]]") -> None:
        """Take them by name before the first batch; a call is the model's forward, in evaluation, without gradients."""
        ...


@runtime_checkable
class ReportsPerplexity(Protocol):
    """A task whose mean loss people know by another number."""

    def loss_metrics(self, loss: float) -> Mapping[str, float]:
        """`{name: number}` for a mean loss."""
        ...


@runtime_checkable
class Predicts(Task, Protocol):
    """A task whose model says something of each sample that is of use in itself, such as a score.

    Training's module and curation's stages ask the same task, so a scorer says in the one what it learned in the other.
    """

    def predict(self, output: "Tensor", prepared: ModelInputs) -> "Tensor":
        """What the model says of each frame of each sample, (B, T, K), float32."""
        ...


@runtime_checkable
class ScoresSamples(Task, Protocol):
    """A task whose model gives each sample a number or several that are wanted by themselves."""

    def scores(self, output: "Tensor", prepared: ModelInputs) -> "dict[str, Tensor]":
        """Each of them, (B,). The engine's `evaluate` adds them to `prepared.tags`."""
        ...

    def columns(self, prepared: ModelInputs) -> "dict[str, Tensor]":
        """What a table of predictions holds of each sample, (B,) each, once `tags` has the scores."""
        ...


#: What batches count for the metrics of a task: tensors by name.
Contribution: TypeAlias = "Mapping[str, Tensor]"


class ValidationMetrics(NamedTuple):
    """Of the whole held-out set.

    Args:
        metrics: numbers by name; one that is not defined is NaN.
        details: what validation.json keeps.
    """

    metrics: Mapping[str, float]
    details: Json


@runtime_checkable
class HasValidationMetrics(ScoresSamples, Protocol):
    """A task with metrics of the held-out set that are no means over its samples, such as how well they are ranked."""

    def contribution(self, prepared: ModelInputs) -> Contribution:
        """What a batch counts, once `tags` has the scores."""
        ...

    def merge(self, parts: Sequence[Contribution]) -> Contribution:
        """What several count together, in any order and however the samples are spread over them."""
        ...

    def validation_metrics(self, merged: Contribution) -> ValidationMetrics:
        """The metrics of all samples that were counted."""
        ...


@runtime_checkable
class RanksGroups(ScoresSamples, Protocol):
    """A task whose samples are of users or sessions, so that each one's can be ranked among each other."""

    def group_scores(self, prepared: ModelInputs, group: str) -> "Mapping[str, Mapping[str, Tensor]]":
        """`group`, `score`, `label` and `weight` of each sample, (B,) each, once `tags` has the scores.

        Returns:
            by the suffix of a metric's name, such as that of a label; empty where there is one label only.

        Raises:
            UserError: the samples have no such group.
        """
        ...
