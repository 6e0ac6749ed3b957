# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""The protocols and values that rooms meet by. Methods only: a protocol says what is asked, never what is.

Shape letters: B batch, C channels, T frames, H height, W width, L text tokens, D width of a text token.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, ParamSpec, Protocol, Self, TypeVar, runtime_checkable

from nemo_vfm.core.latent_rows import videos_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

P = ParamSpec("P")
T_co = TypeVar("T_co", covariant=True)


@runtime_checkable
class Factory(Protocol[P, T_co]):
    """Something that builds a T later. `Factory[[Params], Optimizer]` is called with the parameters.

    The arguments named in the brackets are given by position when the time comes; the recipe gives the others now.
    """

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T_co: ...


#: Folders in a run folder that no job writes to: a launcher's scripts, copy of the code and logs; how parts went.
LAUNCH, PARTS = "launch", "parts"
#: The table beside the runs of a sweep.
SWEEP = "sweep.json"


@dataclass(frozen=True, slots=True)
class Run:
    """What the command line tells a job: where to write, from which recipe, with which seed.

    Args:
        folder: the run folder; it exists and is writable.
        recipe: the composed recipe as YAML text, without secrets.
        seed: the root of all randomness.
        resume: True where the folder holds an unfinished run of this recipe.
        before: of a workflow's step, a hash of what its own recipe does not say: the seed, and the steps above it.
    """

    folder: Path
    recipe: str = ""
    seed: int = 0
    resume: bool = False
    before: str = ""

    def step(self, name: str) -> "Run":
        """The same run, one folder down: what a workflow gives to its step."""
        return replace(self, folder=self.folder / name)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended.

    Args:
        summary: one line for the user.
        figures: numbers worth keeping, `{name: number}`.
        did_nothing: True where the work had been done before.
    """

    summary: str
    figures: Mapping[str, float] = field(default_factory=dict)
    did_nothing: bool = False


@runtime_checkable
class Job(Protocol):
    """The root of a recipe."""

    def run(self, run: Run) -> Outcome:
        """Do the work inside `run.folder`; called again after a kill, go on where it stopped."""
        ...


@runtime_checkable
class Spread(Protocol):
    """A job that may work on several ranks at once. One without this works on one."""

    def num_ranks(self) -> int:
        """On how many; known from the recipe alone."""
        ...

    def require(self, num_ranks: int) -> None:
        """ValueError where it cannot work on so many, with the product and its factors."""
        ...


@runtime_checkable
class Changing(Protocol):
    """A job that works on another number of ranks as it goes on, and raises `NextPhase` where it changes."""

    def ranks_now(self, folder: Path) -> int:
        """On how many it goes on with what its run folder holds."""
        ...


@dataclass(frozen=True, slots=True)
class Part:
    """One of several shares of a job's work.

    Args:
        number: which, from 0.
        count: of so many.
        round: of the job's rounds, from 0: the second begins when all parts of the first are done.
    """

    number: int
    count: int
    round: int = 0

    def has(self, name: str) -> bool:
        """Whether the thing of this name is this part's: a function of the name alone, so none is left over."""
        return int(sha256(name.encode()).hexdigest(), 16) % self.count == self.number


@runtime_checkable
class Parted(Protocol):
    """A job whose work parts can do without each other; a run after them does the rest and comes to the same."""

    def rounds(self) -> int:
        """How often all parts are gone through; known from the recipe alone."""
        ...

    def run_part(self, run: Run, part: Part) -> Outcome:
        """Do this part's share in the run's folder, which the other parts work in, too."""
        ...


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """What a job would do with a number of GPUs; all that can be said without one.

    Args:
        num_used: how many of them would work.
        parameters: of the model.
        state_bytes: `{what: bytes}` that each working GPU holds all the time, activations apart.
        notes: sentences about what will not go as the number of GPUs suggests.
    """

    num_used: int
    parameters: int
    state_bytes: Mapping[str, int]
    notes: tuple[str, ...] = ()


@runtime_checkable
class Planned(Protocol):
    """A job that can say what it would do with so many GPUs. One without this takes what it finds."""

    def plan_for(self, num_gpus: int) -> DevicePlan:
        """The plan; nothing of the machine is looked at."""
        ...


@dataclass(slots=True)
class Batch:
    """Samples of one shape, or packed ones of any shapes, as the loader gives them to a task.

    Exactly one of `latents_BCTHW`, `latents_XC`, `video_BCTHW` and `tokens_BS` is given; likewise a batch of videos has
    `text_BLD` where embeddings are cached and else only captions.
    """

    index: int  #: g, the number of this global batch since the start of training
    keys: tuple[str, ...]  #: one clip id a sample
    captions: tuple[str, ...]
    weight_B: "Tensor"  #: loss weight; 0 where a bad sample kept its place
    fps_B: "Tensor"  #: frames per second of each sample, float32
    latents_BCTHW: "Tensor | None" = None
    video_BCTHW: "Tensor | None" = None  #: pixels, uint8
    text_BLD: "Tensor | None" = None
    text_mask_BL: "Tensor | None" = None  #: True at real text tokens
    labels: tuple[Mapping[str, float | str], ...] = ()  #: what is known of each sample; none where latents are cached
    latents_XC: "Tensor | None" = None  #: packed: positions of one sample after another, time slowest, width fastest
    sizes_THW: tuple[tuple[int, int, int], ...] = ()  #: packed: latent frames, rows and columns of each sample
    apart: int = 0  #: packed, but to be run one by one, in so many pieces: what packing is compared with; 0 is together
    tokens_BS: "Tensor | None" = None  #: text, int64
    labels_BS: "Tensor | None" = None  #: the token after each of `tokens_BS`, int64; IGNORED where none is asked for
    documents: tuple[tuple[int, ...], ...] = ()  #: of each row, how long the documents are that do not see each other

    def __len__(self) -> int:
        return len(self.keys)

    def cut(self, parts: int) -> "list[Self]":
        """The same samples as so many batches, one after the other; fewer where there are fewer samples of one shape.

        Packed samples are never fewer: data ranks have different numbers of them, and those that share weights must
        call the model equally often. So the last one comes again with weight 0.
        """
        if not self.sizes_THW:
            count = min(parts, len(self))
            return self._between([len(self) * n // count for n in range(count + 1)]) if count > 1 else [self]
        ends = list(itertools.accumulate((math.prod(size) for size in self.sizes_THW), initial=0))
        pieces = self.alone() if self.apart else self._between(_even(ends, min(parts, len(self))))
        again = replace(pieces[-1], weight_B=pieces[-1].weight_B * 0)
        return pieces + [again] * ((self.apart or parts) - len(pieces))

    def alone(self) -> "list[Self]":
        """Each sample of a packed batch as a batch of one shape."""
        assert self.latents_XC is not None
        videos = videos_of(self.latents_XC, self.sizes_THW)
        each = self._between(list(range(len(self) + 1)))
        return [
            replace(one, latents_BCTHW=video, latents_XC=None, sizes_THW=(), apart=0)
            for one, video in zip(each, videos, strict=True)
        ]

    def _between(self, borders: Sequence[int]) -> "list[Self]":
        import torch

        present = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("index", "apart")}
        by_sample: dict[str, Any] = {
            name: value for name, value in present.items() if isinstance(value, torch.Tensor) or value
        }
        pack = by_sample.pop("latents_XC", None)
        ends = list(itertools.accumulate((math.prod(size) for size in self.sizes_THW), initial=0))
        return [
            replace(
                self,
                **{name: value[begin:end] for name, value in by_sample.items()},
                latents_XC=None if pack is None else pack[ends[begin] : ends[end]],
            )
            for begin, end in itertools.pairwise(borders)
        ]

    def to(self, device: "torch.device | str") -> Self:
        """The same batch with every tensor on `device`."""
        import torch

        present = {name: getattr(self, name) for name in self.__dataclass_fields__}
        tensors = {name: value for name, value in present.items() if isinstance(value, torch.Tensor)}
        moved: dict[str, Any] = {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}
        return replace(self, **moved)


def _even(ends: Sequence[int], parts: int) -> list[int]:
    """Where to cut packed samples that end at these positions into parts of nearly as many positions, none empty."""
    last, borders = len(ends) - 1, [0]
    for part in range(1, parts):
        aim = ends[-1] * part / parts
        nearest = min(range(last + 1), key=lambda place: abs(ends[place] - aim))
        borders.append(min(max(nearest, borders[-1] + 1), last - (parts - part)))
    return [*borders, last]


#: A label that has no loss.
IGNORED = -100
#: Inputs of a model that say how samples are packed. They are read on the host, and change no other input's shape.
LAID = ("sizes_N3", "lengths_N")


@dataclass(slots=True)
class Prepared:
    """One batch made ready: what the model is called with, and what the criterion needs besides.

    Args:
        inputs: keyword arguments of the model.
        targets: tensors for the criterion.
        weight_B: what each sample's loss counts; the mean over a global batch is by these.
        tags: per-sample numbers worth logging by, such as the noise level, each (B,).
    """

    inputs: dict[str, "Tensor"]
    targets: dict[str, "Tensor"]
    weight_B: "Tensor"
    tags: dict[str, "Tensor"] = field(default_factory=dict)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the inputs. Those in `LAID` are shapes themselves and come as they are, one number after another."""
        return {
            name: tuple(x.flatten().tolist()) if name in LAID else tuple(x.shape) for name, x in self.inputs.items()
        }


@runtime_checkable
class Task(Protocol):
    """What is learned. Split in two so that a pipeline schedule can run the model in between."""

    def prepare(self, batch: Batch, *, seed: int, training: bool) -> Prepared:
        """Turn a batch into model inputs and targets; all randomness is a function of (seed, batch.index, key)."""
        ...

    def losses(self, output: "Tensor", prepared: Prepared) -> "Tensor":
        """The loss of each sample, (B,), float32."""
        ...


@runtime_checkable
class Renamed(Protocol):
    """A task whose mean loss people know by another number."""

    def named(self, loss: float) -> Mapping[str, float]:
        """`{name: number}` for a mean loss."""
        ...


@runtime_checkable
class Predicts(Task, Protocol):
    """A task whose model says something of each sample that is of use in itself, such as a score.

    Training's module and curation's stages ask the same task, so a scorer says in the one what it learned in the other.
    """

    def predict(self, output: "Tensor", prepared: Prepared) -> "Tensor":
        """What the model says of each frame of each sample, (B, T, K), float32."""
        ...


@runtime_checkable
class Codec(Protocol):
    """Pixels to latents and back."""

    def encode(self, video_BCTHW: "Tensor") -> "Tensor":
        """Pixels in [-1, 1], float, to latents (B, C', T', H', W')."""
        ...

    def decode(self, latents_BCTHW: "Tensor") -> "Tensor":
        """Latents to pixels in [-1, 1]."""
        ...

    def latent_shape(self, num_frames: int, height: int, width: int) -> tuple[int, int, int, int]:
        """(C', T', H', W') for a video of this size; ValueError where the size does not fit, with sizes that do."""
        ...

    def fingerprint(self) -> str:
        """Changes whenever the same pixels would give other latents."""
        ...


@runtime_checkable
class Tokenizer(Protocol):
    """Texts to the numbers of their tokens and back."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each text; none is added at either end."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of these tokens; special ones say nothing."""
        ...

    def vocab_size(self) -> int:
        """How many tokens there are, special ones among them."""
        ...

    def end(self) -> int:
        """The token after a document's last."""
        ...

    def fingerprint(self) -> str:
        """Changes whenever the same text would give other tokens."""
        ...


@runtime_checkable
class TextEncoder(Protocol):
    """Captions to embeddings."""

    def encode(self, captions: Sequence[str]) -> "tuple[Tensor, Tensor]":
        """Embeddings (B, L, D), float32, and a mask (B, L), True at real tokens. The empty text is legal."""
        ...

    def text_shape(self) -> tuple[int, int]:
        """(L, D)."""
        ...

    def fingerprint(self) -> str:
        """Changes whenever the same caption would give another embedding."""
        ...


@dataclass(frozen=True, slots=True)
class Op:
    """One piece of arithmetic of a forward pass.

    Args:
        kind: linear (weights times activations) or attention (activations times activations).
        flops: multiply and add counted as two, for the whole batch, forward only.
        name: which part of the model.
        causal: attention of which the later half of the keys is masked, although `flops` has it.
    """

    kind: Literal["linear", "attention"]
    flops: float
    name: str
    causal: bool = False


@runtime_checkable
class Costed(Protocol):
    """A model that says what it costs."""

    def ops(self, inputs: Mapping[str, tuple[int, ...]]) -> list[Op]:
        """The arithmetic of one forward pass on inputs of these shapes (`Prepared.shapes`)."""
        ...


@runtime_checkable
class Sized(Protocol):
    """A model that can be tried on batches that are made up: by `nemo-vfm parity` and `nemo-vfm diverge`."""

    def small_inputs(self) -> dict[str, tuple[int, ...]]:
        """The shapes of one small sample as a batch has it: `latents_BCTHW` and `text_BLD`, `video_BCTHW`, `tokens_BS`.

        A model of tokens also has `vocab`, how many there are.
        """
        ...


@runtime_checkable
class TrainingData(Protocol):
    """Where training gets its batches; the order is a pure function of the seed."""

    def start(self, *, seed: int, first_batch: int, rank: int = 0, num_ranks: int = 1) -> None:
        """Open the data and be ready to give global batch `first_batch` first: of each, slice `rank` of `num_ranks`."""
        ...

    def train_dataloader(self) -> Iterable[Batch]:
        """Batches first_batch, first_batch + 1, ... without end."""
        ...

    def val_dataloader(self) -> Iterable[Batch]:
        """The same held-out batches at every call; none where nothing is held out."""
        ...

    def batches_per_epoch(self) -> float:
        """How many global batches see every training sample once."""
        ...

    def num_train_samples(self) -> int:
        """How many samples are trained on."""
        ...


class Read(NamedTuple):
    """How far one part of the data, such as a bucket or a source, is read.

    Args:
        place: samples read since the start of training, epoch after epoch.
        of: samples of its epoch; 0 where nobody knows.
        order: a hash of which samples these are, and in which order they come.
    """

    place: int
    of: int
    order: str


@runtime_checkable
class Positioned(TrainingData, Protocol):
    """Training data that goes on at the sample where it was left, also with other batches."""

    def begins(self) -> int:
        """The number of its first global batch: 0, or what `starting` was given."""
        ...

    def position(self, index: int) -> Mapping[str, Read]:
        """How far each part is read before global batch `index`; once it is started."""
        ...

    def starting(self, first_batch: int, places: Mapping[str, int]) -> Self:
        """A copy to be started, whose global batch `first_batch` follows so many samples of each part."""
        ...

    def batching(self) -> "Json":
        """What decides which of its samples share a batch, such as batch sizes and weights; once it is started."""
        ...

    def batched(self, batching: "Json") -> Self:
        """A copy to be started, with the batches that `batching` once told.

        Raises:
            ValueError: these were batches of other data.
        """
        ...


@runtime_checkable
class Phaseable(Positioned, Protocol):
    """Training data that goes on with other batches, or another blend of its sources, where it has been."""

    def samples_per_batch(self) -> int:
        """Of a global batch; known from the recipe alone."""
        ...

    def tokens_per_sample(self) -> int:
        """Known from the recipe alone."""
        ...

    def in_phase(self, *, batch_size: int | None, blend: Mapping[str, float] | None, read: Mapping[str, int]) -> Self:
        """The same data with other batches or weights of sources (None: its own), after so many samples of each source.

        Raises:
            ValueError: a weight for a source that there is not.
        """
        ...

    def read_after(self, batches: int, *, seed: int) -> Mapping[str, int]:
        """Samples of each source that are read once so many batches are, with those before the first."""
        ...


@runtime_checkable
class Worded(Protocol):
    """Training data of tokens."""

    def vocab_size(self) -> int:
        """How many tokens there may be; once it is started."""
        ...


@runtime_checkable
class Batched(Protocol):
    """Training data whose global batches are known from the recipe alone."""

    def batch_sizes(self) -> Mapping[str, int]:
        """`{where it is written: samples of a global batch}`."""
        ...


Json = Any
