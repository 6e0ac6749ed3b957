# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Finds parts of a recipe that do not fit each other: latents and model, text and model, videos and codec, tokens."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from nemo_vfm.config import BoundFactory, RecipeError
from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.types.job import Job
from nemo_vfm.core.types.training_data import ResumablePhases
from nemo_vfm.runtime.checks.vocabularies import Vocabulary, of_tokenizer, whole
from nemo_vfm.runtime.recipe_work import trains
from nemo_vfm.workflow import Workflow

if TYPE_CHECKING:
    from torch import nn

    from nemo_vfm.parallel.plan.plan import ParallelPlan
    from nemo_vfm.train.job import Train

Address = tuple[str, ...]
Misfit = tuple[Address, str]
_PROBE_PX = 4096  # every codec takes a frame of such a power of two


def misfits(job: Job, made: Mapping[str, Vocabulary]) -> Iterator[Misfit]:
    """Everything that can be known without data, with the address of what is to be changed.

    Args:
        made: what is known of tokenizers that steps make.
    """
    if isinstance(job, Workflow):
        for name, below in job.steps.items():
            yield from ((("steps", name, *at), text) for at, text in misfits(below, made))
    elif trains(job):
        yield from _of_training(job, made)
    elif isinstance(getattr(job, "model", None), BoundFactory):
        yield from _of_user(job, _model_of(job), (), made)


def _model_of(job: Any) -> "nn.Module | None":
    """Without memory; None where it is read from files, and then only codec and videos are compared."""
    from nemo_vfm.parallel.plan.static_memory import on_meta

    factory = getattr(job.model, "model", job.model)  # of a model with adapters, that of the model
    if not isinstance(factory, BoundFactory) or not isinstance(factory.call.target, type):
        return None
    try:
        return on_meta(factory)
    except RecipeError:  # from a folder that is not there yet; all else has been refused before
        return None


def _of_training(job: "Train", made: Mapping[str, Vocabulary]) -> Iterator[Misfit]:
    yield from _of_phases(job)
    model = _model_of(job)
    if model is not None:
        yield from _layouts(job, model)
    codec = model if hasattr(model, "latent_shape") else getattr(job.task, "codec", None)
    if codec is not None:
        yield from _channels(model, codec)
        yield from _buckets(job, model, codec)
    yield from _text(model, getattr(job.task, "text_encoder", None))
    yield from _words(model, getattr(job.data, "tokenizer", None), made)
    yield from _tokens(model, getattr(job.data, "folders", None), made)
    for name, callback in job.callbacks.items():
        yield from _of_user(callback, model, ("callbacks", name), made)


def _of_user(user: Any, model: Any, at: Address, made: Mapping[str, Vocabulary]) -> Iterator[Misfit]:
    """Of a job or callback that draws with a model."""
    yield from _words(model, getattr(user, "tokenizer", None), made)
    pipeline = getattr(user, "pipeline", None)
    if pipeline is None or not hasattr(user, "num_frames"):
        return
    yield from _channels(model, pipeline.codec)
    yield from _text(model, pipeline.text_encoder)
    sizes = user.num_frames, user.height_px, user.width_px
    yield from _video(model, pipeline.codec, sizes, at, ("num_frames", "height_px", "width_px"))


def _channels(model: Any, codec: Any) -> Iterator[Misfit]:
    if not hasattr(model, "in_channels"):
        return
    try:
        found = codec.latent_shape(1, _PROBE_PX, _PROBE_PX)[0]
    except (ValueError, DataError, OSError):  # a codec for other sizes (see its buckets), or its folder is absent
        return
    if found != model.in_channels:
        text = f"the codec's latents have {found} channels and the model was built for {model.in_channels}"
        yield ("model", "in_channels"), f"{text}; give in_channels={found}, or another codec"


def _text(model: Any, encoder: Any) -> Iterator[Misfit]:
    if encoder is None or not hasattr(model, "text_dim"):
        return
    try:
        width = encoder.text_shape()[1]
    except (UserError, OSError):  # an encoder whose folder is given later
        return
    if width != model.text_dim:
        text = f"the text encoder's tokens are {width} wide and the model was built for {model.text_dim}"
        yield ("model", "text_dim"), f"{text}; give text_dim={width}, or another text encoder"


def _words(model: Any, tokenizer: Any, made: Mapping[str, Vocabulary]) -> Iterator[Misfit]:
    """Of tokenizers that come with no files, or whose files a step makes."""
    rows = getattr(model, "vocab", None)
    if tokenizer is None or not isinstance(rows, int):
        return
    if hasattr(tokenizer, "folder"):
        yield from _of_step(rows, of_tokenizer(tokenizer, made))
        return
    if rows < (words := tokenizer.vocab_size()):
        yield ("model", "vocab"), (f"the tokenizer has {words:,} tokens and the model a vocabulary of {rows:,}; give "
                                   f"vocab={words} or more")  # fmt: skip


def _tokens(model: Any, folders: Any, made: Mapping[str, Vocabulary]) -> Iterator[Misfit]:
    """Of texts that a step makes tokens of."""
    rows = getattr(model, "vocab", None)
    if not isinstance(folders, Mapping) or not isinstance(rows, int):
        return
    for folder in folders.values():
        yield from _of_step(rows, made.get(whole(folder)))


def _of_step(rows: int, made: Vocabulary | None) -> Iterator[Misfit]:
    if made is not None and rows < made.size:
        yield ("model", "vocab"), (f"the tokenizer that step {made.step} makes has up to {made.size:,} tokens and the "
                                   f"model a vocabulary of {rows:,}; give vocab={made.size} or more")  # fmt: skip


def _buckets(job: "Train", model: Any, codec: Any) -> Iterator[Misfit]:
    for data, at in _sources(job.data, ("data",)):
        buckets = getattr(data, "buckets", None)
        for name, one in ({} if buckets is None else buckets.buckets).items():
            sizes = one.num_frames, one.height, one.width
            address = (*at, "buckets", "buckets", name)
            yield from _video(model, codec, sizes, address, ("num_frames", "height", "width"))


def _sources(data: Any, at: Address) -> Iterator[tuple[Any, Address]]:
    """A source of training data with its address, and those that it packs or blends."""
    yield data, at
    if (packed := getattr(data, "data", None)) is not None:
        yield from _sources(packed, (*at, "data"))
    for name, source in getattr(data, "sources", {}).items():
        yield from _sources(getattr(source, "data", None), (*at, "sources", name, "data"))


def _video(model: Any, codec: Any, sizes: tuple[int, int, int], at: Address, names: Address) -> Iterator[Misfit]:
    """Whether a codec takes a video of these sizes, and a model its latents."""
    from nemo_vfm.models.blocks.patch import grid_of

    try:
        shape = codec.latent_shape(*sizes)
    except (UserError, DataError, OSError):  # its folder is given later, or an earlier step makes it
        return
    except ValueError as error:
        yield (*at, _blamed(str(error), names)), str(error)
        return
    if not hasattr(model, "patch"):
        return
    try:
        grid = grid_of((1, *shape), model.patch)
    except ValueError as error:
        yield ("model", "patch"), f"of videos of {sizes[0]} x {sizes[1]} x {sizes[2]}: {error}"
        return
    most = getattr(getattr(model, "learned_positions", None), "most", grid)
    if any(size > there for size, there in zip(grid, most, strict=True)):
        text = f"videos of {sizes[0]} x {sizes[1]} x {sizes[2]} are {grid} tokens (frames, rows, columns)"
        yield ("model", "learned_positions"), f"{text}, and there are learned positions for {tuple(most)}"


def _blamed(text: str, names: Address) -> str:
    """The size that a codec's sentence begins with."""
    return next((name for name in reversed(names) if text.startswith(name.partition("_")[0] + " ")), names[0])


def _layouts(job: "Train", model: "nn.Module") -> Iterator[Misfit]:
    """Degrees that the model's sizes do not allow. Ranks say so as well, but of a later phase only when it begins."""
    from nemo_vfm.parallel.apply.apply_parallelism import require_divisible

    phases: list[tuple[Address, ParallelPlan]] = [(("phases", one.name, "parallel"), one.plan) for one in job.phases]
    for address, plan in phases or [(("parallel",), job.parallel)]:
        try:
            require_divisible(model, plan)
        except UserError as error:
            yield address, str(error)


def _of_phases(job: "Train") -> Iterator[Misfit]:
    if not isinstance(job.data, ResumablePhases):
        return
    for one in job.phases:
        try:
            job.data.in_phase(batch_size=one.phase.batch_size, blend=one.phase.blend, read={})
        except ValueError as error:
            yield ("phases", one.name, "blend"), str(error)
