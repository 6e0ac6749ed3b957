# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Finds parts of a recipe that do not fit each other: latents and model, text and model, videos and codec, tokens."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from nemo_vfm.config import BoundFactory
from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.types.job import Job
from nemo_vfm.core.types.training_data import ResumablePhases
from nemo_vfm.runtime.checks.built_networks import Address, BuiltNetwork, built_networks
from nemo_vfm.runtime.checks.pipeline_folders import are_known, of_another_family
from nemo_vfm.runtime.checks.vocabularies import Vocabulary, of_tokenizer, whole
from nemo_vfm.runtime.recipe_work import trains
from nemo_vfm.workflow import Workflow

if TYPE_CHECKING:
    from torch import nn

    from nemo_vfm.core.fp8 import Fp8
    from nemo_vfm.parallel.plan.plan import ParallelPlan
    from nemo_vfm.train.job import Train

Misfit = tuple[Address, str]
Sizes = tuple[int, int, int]  # frames, height and width of a video
_PROBE_PX = 4096  # every codec takes a frame of such a power of two


def misfits(job: Job, made: Mapping[str, Vocabulary]) -> Iterator[Misfit]:
    """Everything that can be known without data, with the address of what is to be changed.

    Args:
        made: what is known of tokenizers that steps make.
    """
    if isinstance(job, Workflow):
        for name, below in job.steps.items():
            yield from ((("steps", name, *at), text) for at, text in misfits(below, made))
        return
    if refused := list(of_another_family(job)):
        yield from refused
    elif not are_known(job):
        return
    elif trains(job):
        yield from _of_training(job, made)
    elif isinstance(getattr(job, "model", None), BoundFactory):
        yield from _of_adapters(job)
        for network in built_networks(job):
            yield from _of_user(job, network, (), made)
            if hasattr(job, "fp8") and hasattr(job, "parallel"):
                yield from _fp8(job.fp8, network.module, job.parallel.tensor, ("fp8",))


def _of_training(job: "Train", made: Mapping[str, Vocabulary]) -> Iterator[Misfit]:
    yield from _of_phases(job)
    network = built_networks(job)[0]  # a training has one
    model = network.module
    if model is not None:
        yield from _layouts(job, model)
    codec = model if hasattr(model, "latent_shape") else getattr(job.task, "codec", None)
    if codec is not None:
        yield from _channels(network, codec)
        yield from _buckets(job, network, codec)
    yield from _text(network, getattr(job.task, "text_encoder", None))
    yield from _words(model, getattr(job.data, "tokenizer", None), made)
    yield from _tokens(model, getattr(job.data, "folders", None), made)
    for name, callback in job.callbacks.items():
        yield from _of_user(callback, network, ("callbacks", name), made)


def _of_user(user: Any, network: BuiltNetwork, at: Address, made: Mapping[str, Vocabulary]) -> Iterator[Misfit]:
    """Of a job or callback that draws with a model."""
    yield from _words(network.module, getattr(user, "tokenizer", None), made)
    pipeline = getattr(user, "pipeline", None)
    if pipeline is None or not hasattr(user, "num_frames"):
        return
    yield from _channels(network, pipeline.codec)
    yield from _text(network, pipeline.text_encoder)
    sizes = user.num_frames, user.height_px, user.width_px
    yield from _video(network, pipeline.codec, sizes, at, ("num_frames", "height_px", "width_px"))


def _of_adapters(job: Any) -> Iterator[Misfit]:
    """Adapter files whose network is not said, or that are for a model of two networks where there is one."""
    networks, files = built_networks(job), getattr(job, "adapters", {})
    for name, file in files.items() if networks[0].module is not None else ():
        if (objection := file.objection(to_two=len(networks) > 1)) is not None:
            yield ("adapters", name), objection


def _channels(network: BuiltNetwork, codec: Any) -> Iterator[Misfit]:
    model: Any = network.module
    if not hasattr(model, "in_channels"):
        return
    try:
        found = codec.latent_shape(1, _PROBE_PX, _PROBE_PX)[0]
    except (ValueError, DataError, OSError):  # a codec for other sizes (see its buckets), or its folder is absent
        return
    if found != model.in_channels:
        text = f"the codec's latents have {found} channels and the model was built for {model.in_channels}"
        at, instead = network.instead("in_channels", found)
        yield at, f"{text}; give {instead}, or another codec"


def _text(network: BuiltNetwork, encoder: Any) -> Iterator[Misfit]:
    model: Any = network.module
    if encoder is None or not hasattr(model, "text_dim"):
        return
    try:
        width = encoder.text_shape()[1]
    except (UserError, OSError):  # an encoder whose folder is given later
        return
    if width != model.text_dim:
        text = f"the text encoder's tokens are {width} wide and the model was built for {model.text_dim}"
        at, instead = network.instead("text_dim", width)
        yield at, f"{text}; give {instead}, or another text encoder"


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


def _buckets(job: "Train", network: BuiltNetwork, codec: Any) -> Iterator[Misfit]:
    for data, at in _sources(job.data, ("data",)):
        buckets = getattr(data, "buckets", None)
        for name, one in ({} if buckets is None else buckets.buckets).items():
            sizes = one.num_frames, one.height, one.width
            address = (*at, "buckets", "buckets", name)
            yield from _video(network, codec, sizes, address, ("num_frames", "height", "width"))


def _sources(data: Any, at: Address) -> Iterator[tuple[Any, Address]]:
    """A source of training data with its address, and those that it packs or blends."""
    yield data, at
    if (packed := getattr(data, "data", None)) is not None:
        yield from _sources(packed, (*at, "data"))
    for name, source in getattr(data, "sources", {}).items():
        yield from _sources(getattr(source, "data", None), (*at, "sources", name, "data"))


def _video(network: BuiltNetwork, codec: Any, sizes: Sizes, at: Address, names: Address) -> Iterator[Misfit]:
    """Whether a codec takes a video of these sizes, and a model its latents."""
    try:
        shape = codec.latent_shape(*sizes)
    except (UserError, DataError, OSError):  # its folder is given later, or an earlier step makes it
        return
    except ValueError as error:
        yield (*at, _blamed(str(error), names)), str(error)
        return
    if not hasattr(network.module, "patch"):
        return
    for key, axis, text in _grid(network.module, shape, sizes):
        if not network.is_pretrained:
            yield ("model", key), text
        else:  # its weights are what they are, and the video can be another
            yield (*at, names[axis]), _in_pixels(network.module, shape, sizes, axis) or text


def _in_pixels(model: Any, shape: tuple[int, ...], sizes: Sizes, axis: int) -> str | None:
    """Why a height or width has no whole patches, and which have; None where something else is wrong."""
    side, pixels, patch = shape[1 + axis], sizes[axis], model.patch[axis]
    if axis == 0 or side % patch == 0:
        return None
    step = patch * pixels // side
    low = max(pixels // step, 1) * step
    name = ("height", "width")[axis - 1]
    return (f"{name} {pixels} makes latents of {side}, which the pretrained network cannot cut into patches of "
            f"{patch}; use {low} or {low + step}")  # fmt: skip


def _grid(model: Any, shape: tuple[int, ...], sizes: Sizes) -> Iterator[tuple[str, int, str]]:
    """What a model cannot do with latents: the key that says so, the axis, and a sentence."""
    from nemo_vfm.models.blocks.patch import grid_of

    video = f"videos of {sizes[0]} x {sizes[1]} x {sizes[2]}"
    try:
        grid = grid_of((1, *shape), model.patch)
    except ValueError as error:
        axis = next(axis for axis, side in enumerate(model.patch) if shape[1 + axis] % side)
        yield "patch", axis, f"of {video}: {error}"
        return
    most = getattr(getattr(model, "learned_positions", None), "most", grid)
    beyond = [axis for axis in range(3) if grid[axis] > most[axis]]
    if beyond:
        text = f"{video} are {grid} tokens (frames, rows, columns)"
        yield "learned_positions", beyond[0], f"{text}, and there are learned positions for {tuple(most)}"


def _blamed(text: str, names: Address) -> str:
    """The size that a codec's sentence begins with."""
    return next((name for name in reversed(names) if text.startswith(name.partition("_")[0] + " ")), names[0])


def _layouts(job: "Train", model: "nn.Module") -> Iterator[Misfit]:
    """Degrees that the model's sizes do not allow. Ranks say so as well, but of a later phase only when it begins."""
    from nemo_vfm.parallel.apply.apply_parallelism import require_divisible
    from nemo_vfm.parallel.engine.engine import ObjectsToPlans

    phases: list[tuple[Address, ParallelPlan]] = [(("phases", one.name, "parallel"), one.plan) for one in job.phases]
    for address, plan in phases or [(("parallel",), job.parallel)]:
        if isinstance(job.engine, ObjectsToPlans) and (why := job.engine.objection(plan, job.precision)):
            yield ("engine",), why
            continue
        try:
            require_divisible(model, plan)
        except UserError as error:
            yield address, str(error)
        else:
            yield from _fp8(job.precision.fp8, model, plan.tensor, ("precision", "fp8"))


def _fp8(spec: "Fp8 | None", model: "nn.Module | None", tensor: int, at: Address) -> Iterator[Misfit]:
    """Sizes that products in FP8 cannot have."""
    from nemo_vfm.parallel.fp8.use_fp8 import large_linears

    if spec is None or model is None:
        return
    try:
        large_linears(model, spec, tensor)
    except UserError as error:
        yield at, str(error)


def _of_phases(job: "Train") -> Iterator[Misfit]:
    if not isinstance(job.data, ResumablePhases):
        return
    for one in job.phases:
        try:
            job.data.in_phase(batch_size=one.phase.batch_size, blend=one.phase.blend, read={})
        except ValueError as error:
            yield ("phases", one.name, "blend"), str(error)
