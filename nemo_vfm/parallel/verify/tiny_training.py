"""Prepares a training's parts for a trial on several processes, with synthetic batches.

Every sample has its own latents, text, frame rate, noise and weight, and every rank its own samples. A rank that omits
another's part of a sum cannot be right by chance. No weight is zero: layers that begin as the identity hide mistakes.
"""

import copy
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from uuid import uuid4

import torch
from torch import Tensor, nn

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.fp8 import Fp8
from nemo_vfm.core.precision import Precision
from nemo_vfm.core.seed import generator
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.component import no_component
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.model_traits import HasDummyInputs
from nemo_vfm.core.types.sample_batches import IGNORED, LAID, PackedBatch, TokenBatch, VideoBatch
from nemo_vfm.core.types.task import Task
from nemo_vfm.parallel.apply.local_shard import copy_own
from nemo_vfm.parallel.engine.engine import Engine
from nemo_vfm.parallel.engine.step_runner import EngineInputs, StepRunner
from nemo_vfm.parallel.engine.torch_engine import TorchEngine
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.plan.sharding_spec import OptimizerFactory
from nemo_vfm.sparse.tables.made_up_batch import FeatureSizes, made_up_batch

SAMPLES = 8  #: of a global batch: two for each of four ranks
_WEIGHTS = (1.0, 2.0, 0.5, 1.0, 1.5, 0.0, 3.0, 1.0)
_MOVED = 0.1  # standard deviation of what every first weight is moved by


@dataclass(frozen=True, slots=True)
class TinyTraining:
    """What is tried, as a recipe says it; all of it can be sent to other processes."""

    model: Factory[[], nn.Module]  #: builds the model, small
    task: Task  #: what it learns; its captions are never encoded
    optimizer: OptimizerFactory  #: builds the optimizer
    seed: int = 0  #: of weights and samples
    precision: Precision = field(default_factory=lambda: Precision("fp32"))  #: of the arithmetic
    engine: Engine = field(default_factory=TorchEngine)  #: takes the steps; its gradients are never clipped
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)  #: of one sample, see `HasDummyInputs`
    takes_packed: bool = False  #: whether the model does
    vocab: int = 0  #: of a model of tokens, how many there are
    features: FeatureSizes | None = None  #: of a model with embedding tables, what it takes
    name: str = field(default_factory=lambda: uuid4().hex)  #: tells it from others

    def start(self, plan: ParallelPlan) -> StepRunner:
        """The training on this rank, its model awake, gradients never clipped. UserError if the plan is not allowed."""
        parts = EngineInputs(self.model, self.task, self.optimizer, self.precision, self.seed, plan)
        runner = self.engine.start(parts)
        runner.clip_norm = None
        wake(runner.model, self.seed)
        if self.precision.fp8 is not None:
            # Let linears take what parts of the model make in float32, such as embeddings of time.
            for module in runner.model.modules():
                if isinstance(module, nn.Linear):
                    module.register_forward_pre_hook(lambda _, inputs: (inputs[0].double(),))
        return runner

    @contextmanager
    def in_float64(self) -> Iterator[None]:
        """Where FP8 is tried, weights and samples made in this block are float64.

        In float32 a layout's other order of a sum changes the last bit, and with it now and then an element of FP8,
        which is off by 3 % then: no layout would be equal.
        """
        usual = torch.get_default_dtype()
        torch.set_default_dtype(usual if self.precision.fp8 is None else torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(usual)

    def by_torch(self) -> "TinyTraining":
        """The same by plain PyTorch, whose numbers on one device every engine must give."""
        return replace(self, engine=TorchEngine(recompute=getattr(self.engine, "recompute", "none")))

    def batch(self, index: int, first: int = 0, last: int = SAMPLES, *, packed: bool = False) -> Batch:
        """Samples first..last of global batch `index`; packed ones are of two sizes in turns, or of two documents."""
        places, keys = range(first, last), [f"{index}-{place}" for place in range(first, last)]
        weight, fps = torch.tensor(_WEIGHTS[first:last]), torch.tensor([8.0 + place for place in places])
        if self.features is not None:
            return made_up_batch(self.features, index, places, weight, self.seed)
        known = (index, tuple(keys), weight)
        if "tokens_BS" in self.shapes:
            # Rows of made-up words, and their labels, some of which have no loss.
            length = self.shapes["tokens_BS"][1] + 1
            words = torch.stack(
                [torch.randint(self.vocab, (length,), generator=generator(self.seed, "text", key)) for key in keys]
            )
            labels = words[:, 1:].clone()
            labels[:, ::7] = IGNORED
            return TokenBatch(*known, words[:, :-1], labels, tuple(map(self._cut, places)) if packed else ())
        captions = ("",) * len(keys)
        if "video_BCTHW" in self.shapes:
            drawn = torch.cat([self._draw("video", self.shapes["video_BCTHW"], key) for key in keys])
            pixels = (128 + 50 * drawn).clamp(0, 255).to(torch.uint8)
            return VideoBatch(*known, captions, fps, video_BCTHW=pixels)
        text = torch.cat([self._draw("text_BLD", self.shapes["text_BLD"], key) for key in keys])
        seen = torch.tensor([1 + place % text.shape[1] for place in places])
        given = (*known, captions, fps, text, torch.arange(text.shape[1])[None] < seen[:, None])
        *others, columns = self.shapes["latents_BCTHW"]
        shapes = [(*others, columns * (1 + place % 2) if packed else columns) for place in places]
        latents = [self._draw("latents", shape, key) for key, shape in zip(keys, shapes, strict=True)]
        if not packed:
            return VideoBatch(*given, latents_BCTHW=torch.cat(latents))
        rows = [one[0].flatten(1).T for one in latents]
        sizes = tuple((frames, height, width) for *_, frames, height, width in shapes)
        return PackedBatch(*given, latents_XC=torch.cat(rows), sizes_THW=sizes)

    def one_by_one(self, index: int) -> list[Batch]:
        """The samples of a packed global batch, not packed: a batch each."""
        found: list[Batch] = []
        for place in range(SAMPLES):
            row = self.batch(index, place, place + 1, packed=True)
            if isinstance(row, PackedBatch):
                found += row.unpack()
                continue
            assert isinstance(row, TokenBatch)
            tokens, labels = (torch.split(x, list(row.documents[0]), dim=1) for x in (row.tokens_BS, row.labels_BS))
            found += [replace(row, tokens_BS=t, labels_BS=n, documents=()) for t, n in zip(tokens, labels, strict=True)]
        return found

    def rank_batch(self, plan: ParallelPlan, rank: int, index: int, *, packed: bool = False) -> Batch:
        """This rank's samples of a global batch."""
        each, data_rank = SAMPLES // plan.data, plan.data_rank(rank)
        return self.batch(index, data_rank * each, (data_rank + 1) * each, packed=packed)

    def _cut(self, place: int) -> tuple[int, ...]:
        """Where a row's documents end: in other places in each row, and every third row is one document."""
        length, number = self.shapes["tokens_BS"][1], 8 + place
        first = length // 3 + number % 5
        return (first, length - first) if number % 3 else (length,)

    def _draw(self, name: str, shape: Sequence[int], key: str) -> Tensor:
        return torch.randn(tuple(shape), generator=generator(self.seed, "made up", name, key))


def rehearsal_of(
    model: Factory[[], nn.Module], task: Task, optimizer: OptimizerFactory, *, seed: int,
    engine: Engine = TorchEngine(), fp8: Fp8 | None = None,
) -> tuple[TinyTraining, nn.Module]:  # fmt: skip
    """The parts made ready, and the model without memory, to ask it. UserError if nobody knows what the model takes."""
    with torch.device("meta"):
        built = model()
    features = FeatureSizes.of(built, tuple(getattr(task, "labels", ())))
    if features is not None:
        return TinyTraining(model, task, optimizer, seed, Precision("fp32", fp8), engine, features=features), built
    if not isinstance(built, HasDummyInputs):
        raise UserError(
            f"{type(built).__name__} has no small_inputs(), so no tiny batches can be made for it; see "
            f"nemo_vfm.models.dit.DiT for an example."
        )
    mute = copy.copy(task)
    if hasattr(mute, "text_encoder") and "text_BLD" in built.small_inputs():
        # It may want a folder of weights, and is asked for nothing but the empty text.
        vars(mute)["text_encoder"] = Mute(*built.small_inputs()["text_BLD"][1:])
    packed = not inspect.signature(built.forward).parameters.keys().isdisjoint(LAID)
    shapes, vocab = built.small_inputs(), int(getattr(built, "vocab", 0))
    ready = TinyTraining(model, mute, optimizer, seed, Precision("fp32", fp8), engine, shapes, packed, vocab)
    return ready, built


@no_component
@dataclass(frozen=True, slots=True)
class Mute:
    """A text encoder that knows the empty text alone."""

    tokens: int  #: L
    dim: int  #: D

    def encode(self, captions: Sequence[str]) -> tuple[Tensor, Tensor]:
        """One token that is the same for all."""
        text = torch.linspace(-1, 1, self.dim).expand(len(captions), self.tokens, self.dim)
        return text, (torch.arange(self.tokens) < 1).expand(len(captions), self.tokens)

    def text_shape(self) -> tuple[int, int]:
        """(L, D)."""
        return self.tokens, self.dim

    def fingerprint(self) -> str:
        """Of nothing."""
        return f"mute tokens={self.tokens} dim={self.dim}"


@torch.no_grad()
def wake(model: nn.Module, seed: int) -> None:
    """Move every weight by a number that is a function of (seed, name, place): the same on any layout."""
    parts = model.state_dict()  # they share the parameters' memory, and show of each which part it is
    for name, _ in model.named_parameters():
        moved = torch.empty_like(parts[name])
        copy_own(moved, _MOVED * torch.randn(parts[name].shape, generator=generator(seed, "awake", name)))
        parts[name].add_(moved)
