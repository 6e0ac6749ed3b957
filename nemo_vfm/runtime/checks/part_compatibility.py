"""Finds parts of a recipe that do not fit each other: latents and model, text and model, videos and codec, weights."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_vfm.config import BoundFactory, RecipeError
from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.types.encoders import DrawsVideos
from nemo_vfm.core.types.job import Job
from nemo_vfm.core.types.training_data import ResumablePhases, sources_in
from nemo_vfm.runtime.checks.built_networks import Address, BuiltNetwork, built_networks, is_of_folder
from nemo_vfm.runtime.checks.job_kinds import trains
from nemo_vfm.runtime.checks.pipeline_folders import are_known, of_another_family
from nemo_vfm.runtime.checks.table_sizes import wrong_tables
from nemo_vfm.runtime.checks.vocabularies import StepVocabulary, normalise_path, of_tokenizer
from nemo_vfm.workflow import Workflow

if TYPE_CHECKING:
    from torch import nn

    from nemo_vfm.core.fp8 import Fp8
    from nemo_vfm.parallel.plan.plan import ParallelPlan
    from nemo_vfm.train.job import Train

Misfit = tuple[Address, str]
Sizes = tuple[int, int, int]  # frames, height and width of a video
_TWO_NETWORKS = ("this model has two networks, for high and for low noise levels, and a training is of one; set "
                 "model=pretrained model.folder=BASE/NAME weights.start_from=BASE/NAME task.pipeline.network=NAME, "
                 "where NAME is transformer or transformer_2")  # fmt: skip
_PROBE_PX = 4096  # every codec takes a frame of such a power of two


def misfits(job: Job, made: Mapping[str, StepVocabulary]) -> Iterator[Misfit]:
    """Everything that can be known without data, with the address of what is to be changed.

    `made` is what is known of tokenizers that steps make.
    """
    if isinstance(job, Workflow):
        for name, below in job.steps.items():
            yield from ((("steps", name, *at), text) for at, text in misfits(below, made))
        return
    yield from wrong_tables(job)
    if refused := list(of_another_family(job)):
        yield from refused
    elif not are_known(job):
        return
    elif trains(job):
        yield from _of_training(job, made)
    elif isinstance(getattr(job, "model", None), BoundFactory):
        yield from without_weights(job)
        yield from without_image(job, ())
        networks = built_networks(job)
        # Adapter files whose network is not said, or that are for a model of two networks where there is one.
        for name, file in getattr(job, "adapters", {}).items() if networks[0].module is not None else ():
            if (objection := file.objection(to_two=len(networks) > 1)) is not None:
                yield ("adapters", name), objection
        for network in networks:
            yield from _of_user(job, network, (), made)
            if hasattr(job, "fp8") and hasattr(job, "parallel"):
                yield from _fp8(job.fp8, network.module, job.parallel.tensor, ("fp8",))


def _of_training(job: "Train", made: Mapping[str, StepVocabulary]) -> Iterator[Misfit]:
    from nemo_vfm.train.frozen_models import frozen_objections
    from nemo_vfm.train.member_use import unusable_members

    if isinstance(job.data, ResumablePhases):
        for one in job.phases:
            try:
                job.data.in_phase(batch_size=one.phase.batch_size, blend=one.phase.blend, read={})
            except ValueError as error:
                yield ("loop", "phases", one.name, "blend"), str(error)
    yield from without_weights(job)
    network, *others = built_networks(job)
    if others:
        yield ("model",), _TWO_NETWORKS
        return
    model = network.module
    if model is not None:
        yield from _layouts(job, model)
        yield from _turns(job, model)
        yield from _param_groups(job, model)
        yield from unusable_members(job.data, job.task, model)
        with suppress(RecipeError, UserError, DataError, OSError):  # a frozen model of a folder that is given later
            yield from frozen_objections(job)
    codec = model if hasattr(model, "latent_shape") else getattr(job.task, "codec", None)
    if codec is not None:
        yield from _channels(network, codec)
        for data, at in sources_in(job.data):
            buckets = getattr(data, "buckets", None)
            for bucket, one in ({} if buckets is None else buckets.buckets).items():
                sizes = one.num_frames, one.height, one.width
                address = (*at, "buckets", "buckets", bucket)
                yield from _video(network, codec, sizes, address, ("num_frames", "height", "width"))
    yield from _text(network, getattr(job.task, "text_encoder", None))
    folders = getattr(job.data, "folders", None)
    folders = folders.values() if isinstance(folders, Mapping) else ()
    yield from _vocabulary(network, getattr(job.data, "tokenizer", None), made, folders)
    for name, callback in job.callbacks.items():
        yield from _of_user(callback, network, ("callbacks", name), made)
        yield from without_image(callback, ("callbacks", name))
    # Sources of latents alone, where the network's given frames are encoded from pixels.
    from nemo_vfm.diffusion.conditioning.in_channels import GivenInChannels

    if isinstance(getattr(job.task, "frame_conditioning", None), GivenInChannels):
        from nemo_vfm.data.sources.cached_latents import gives_latents

        latents = [at for data, at in sources_in(job.data) if gives_latents(data)]
        if latents:
            yield latents[0], ("this network encodes given frames from pixels, but this data yields cached latents; "
                           "use videos (data=folder), or shards of clips with buckets")  # fmt: skip


def _of_user(user: Any, network: BuiltNetwork, at: Address, made: Mapping[str, StepVocabulary]) -> Iterator[Misfit]:
    """Of a job or callback that draws with a model."""
    yield from _vocabulary(network, getattr(user, "tokenizer", None), made)
    if not isinstance(user, DrawsVideos):
        return
    pipeline: Any = user.pipeline
    yield from _channels(network, pipeline.codec)
    yield from _text(network, pipeline.text_encoder)
    sizes = user.num_frames, user.height_px, user.width_px
    yield from _video(network, pipeline.codec, sizes, at, ("num_frames", "height_px", "width_px"))


def _channels(network: BuiltNetwork, codec: Any) -> Iterator[Misfit]:
    model: Any = network.module
    if not hasattr(model, "in_channels"):
        return
    try:
        found = codec.latent_shape(1, _PROBE_PX, _PROBE_PX)[0]
    except (ValueError, DataError, OSError):  # a codec for other sizes (see its buckets), or its folder is absent
        return
    if found != model.in_channels:
        text = f"the codec's latents have {found} channels, but the model was built for {model.in_channels}"
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
        text = f"the text encoder's tokens are {width} wide, but the model was built for {model.text_dim}"
        at, instead = network.instead("text_dim", width)
        yield at, f"{text}; give {instead}, or another text encoder"


def _vocabulary(
    network: BuiltNetwork, tokenizer: Any, made: Mapping[str, StepVocabulary], folders: Iterable[Path] = ()
) -> Iterator[Misfit]:
    """Of tokenizers that come with no files, or whose files a step makes, and of texts that a step makes tokens of."""
    rows = getattr(network.module, "vocab", None)
    if not isinstance(rows, int):
        return
    known = [made.get(normalise_path(folder)) for folder in folders]
    if hasattr(tokenizer, "folder"):
        known.insert(0, of_tokenizer(tokenizer, made))
    elif tokenizer is not None and rows < (words := tokenizer.vocab_size()):
        at, instead = network.instead("vocab", words, "or more")
        yield at, f"the tokenizer has {words:,} tokens, but the model has a vocabulary of {rows:,}; give {instead}"
    for one in known:
        if one is not None and rows < one.size:
            at, instead = network.instead("vocab", one.size, "or more")
            yield at, (f"the tokenizer from step {one.step} has up to {one.size:,} tokens, but the model has a "
                       f"vocabulary of {rows:,}; give {instead}")  # fmt: skip


def _video(network: BuiltNetwork, codec: Any, sizes: Sizes, at: Address, names: Address) -> Iterator[Misfit]:
    """Whether a codec takes a video of these sizes, and a model its latents."""
    try:
        shape = codec.latent_shape(*sizes)
    except (UserError, DataError, OSError):  # its folder is given later, or an earlier step makes it
        return
    except ValueError as error:
        # The size that the codec's sentence begins with.
        begins = (name for name in reversed(names) if str(error).startswith(f"{name.partition('_')[0]} "))
        yield (*at, next(begins, names[0])), str(error)
        return
    if not hasattr(network.module, "patch"):
        return
    for key, axis, text in _grid(network.module, shape, sizes):
        # The weights of a pretrained network are what they are, and the video can be another.
        yield (*at, names[axis]) if network.is_pretrained else ("model", key), text


def _grid(model: Any, shape: tuple[int, ...], sizes: Sizes) -> Iterator[tuple[str, int, str]]:
    """What a model cannot do with latents: the key that says so, the axis, and a sentence."""
    from nemo_vfm.diffusion.video_pipeline import side_without_patches
    from nemo_vfm.models.blocks.video_tokens import grid_of

    video = f"videos of {sizes[0]} x {sizes[1]} x {sizes[2]}"
    try:
        grid = grid_of((1, *shape), model.patch)
    except ValueError as error:
        axis = next(axis for axis, side in enumerate(model.patch) if shape[1 + axis] % side)
        in_pixels = side_without_patches(model.patch, shape[1:], sizes) if axis else ""
        yield "patch", axis, in_pixels or f"of {video}: {error}"
        return
    most = getattr(getattr(model, "learned_positions", None), "most", grid)
    beyond = [axis for axis in range(3) if grid[axis] > most[axis]]
    if beyond:
        text = f"{video} are {grid} tokens (frames, rows, columns)"
        yield "learned_positions", beyond[0], f"{text}, but there are learned positions for {tuple(most)}"


def _layouts(job: "Train", model: "nn.Module") -> Iterator[Misfit]:
    """Degrees that the model's sizes do not allow. Ranks say so as well, but of a later phase only when it begins."""
    from nemo_vfm.parallel.apply.apply_parallelism import no_blocks, require_divisible
    from nemo_vfm.parallel.plan.sharding_spec import Divisible

    if getattr(job.engine, "recompute", "none") != "none" and not isinstance(model, Divisible):
        yield ("engine", "recompute"), no_blocks(model)
    phases: list[tuple[Address, ParallelPlan]] = [
        (("loop", "phases", one.name, "parallel"), one.plan) for one in job.phases
    ]
    for address, plan in phases or [(("parallel",), job.parallel)]:
        if why := job.engine.objection(plan, job.precision):
            yield ("engine",), why
            continue
        try:
            require_divisible(model, plan)
        except UserError as error:
            yield address, str(error)
        else:
            yield from _fp8(job.precision.fp8, model, plan.tensor, ("precision", "fp8"))


def _turns(job: "Train", model: "nn.Module") -> Iterator[Misfit]:
    """What several optimizers, which update in turns, cannot do with this model, task, layout and engine."""
    if not isinstance(job.optimizer, Mapping):
        return
    from nemo_vfm.parallel.engine.turns import turn_objections
    from nemo_vfm.parallel.megatron.adam_arguments import one_factory

    if job.engine.name() == "megatron":
        try:
            one_factory(job.optimizer)
        except UserError as error:
            yield ("engine",), str(error)
    for plan in [one.plan for one in job.phases] or [job.parallel]:
        for key, why in turn_objections(model, job.optimizer, job.task, plan, job.precision):
            yield (key,), why


def _param_groups(job: "Train", model: "nn.Module") -> Iterator[Misfit]:
    """Groups whose patterns match no parameter."""
    import torch

    from nemo_vfm.core.without_compiler import without_compiler
    from nemo_vfm.parallel.engine.param_groups import grouped_optimizer

    by_child = job.optimizer if isinstance(job.optimizer, Mapping) else {"": job.optimizer}
    for child, factory in by_child.items():
        if not isinstance(factory, BoundFactory) or factory.call.target is not grouped_optimizer:
            continue
        below, at = (f"{child}.", ("optimizer", child)) if child else ("", ("optimizer",))
        names = [name for name, _ in model.named_parameters() if name.startswith(below)]
        with without_compiler():  # any matrix will do
            made = factory([(name, torch.nn.Parameter(torch.zeros(2, 3))) for name in names])
        for group in made.param_groups:
            if "name" in group and not group["params"]:
                known = ", ".join(dict.fromkeys(re.sub(r"\d+", "*", name) for name in names))
                whose = f"no parameter of {type(model).__name__} has such a name, or a later group has it"
                yield (*at, "groups", group["name"], "parameters"), f"{whose}; it has {known}"


def _fp8(spec: "Fp8 | None", model: "nn.Module | None", tensor: int, at: Address) -> Iterator[Misfit]:
    """Sizes that products in FP8 cannot have."""
    from nemo_vfm.parallel.fp8.use_fp8 import large_linears

    if spec is None or model is None:
        return
    try:
        large_linears(model, spec, tensor)
    except UserError as error:
        yield at, str(error)


def without_image(user: Any, at: Address) -> Iterator[Misfit]:
    """Of a job or callback that draws videos: none where its network needs an image, or one that it cannot take.

    A network whose frames are given in time can draw without them. A training that always gives some does not learn to.
    """
    from nemo_vfm.diffusion.conditioning.in_channels import GivenInChannels
    from nemo_vfm.diffusion.conditioning.in_time import GivenInTime

    if not isinstance(user, DrawsVideos):
        return
    pipeline: Any = user.pipeline
    conditioning, prompts = pipeline.frame_conditioning, getattr(user, "prompts", None)
    # First frames are the user's own, or come with its prompts; a source that does not say may give some, too.
    key, given = ("given", user.given) if hasattr(user, "given") else ("prompts.given", getattr(prompts, "given", None))
    address = (*at, key.partition(".")[0])
    if given and conditioning is None:
        yield address, "first frames are given, but this pipeline's network takes none; set its frame_conditioning"
    if given is None or given or getattr(conditioning, "none_given", 1) > 0:
        return
    if isinstance(conditioning, GivenInChannels):
        yield address, (f"this network starts from an image, but the samples have none; set {key} to an "
                        f"image or clip for each prompt, or to one for all")  # fmt: skip
    # A job by itself draws with the weights of another training, of which nothing is known here.
    if isinstance(conditioning, GivenInTime) and conditioning.least.count and at and user.num_frames > 1:
        yield address, (f"every training sample starts with given frames, but the samples here have none, which the "
                        f"model does not learn; set {key} to an image or clip for each prompt, or to one for all. "
                        f"To learn from text alone, too, name the pipeline, task.pipeline={pipeline.family}, and "
                        f"set its frame_conditioning.none_given above 0")  # fmt: skip


def without_weights(job: Any) -> Iterator[tuple[Address, str]]:
    """Of a job with a model: the address of what is to be changed, and why."""
    from nemo_vfm.parallel.checkpoint.checkpoint import adapters_alone

    if trains(job):
        at: Address = ("weights", "start_from")
        start = job.weights.start_from
        given = None if start is None else start.path
    elif hasattr(job, "checkpoint"):
        given, at = job.checkpoint, ("checkpoint",)
    else:
        return
    key = ".".join(at)
    # Videos are also drawn without weights, as a baseline that the recipe asks for.
    if given is None and is_of_folder(job) and not isinstance(job, DrawsVideos):
        yield ("model",), (f"a folder gives this network its sizes, and {key}, which is not set, its weights; set "
                           f"{key} to the same folder")  # fmt: skip
    if isinstance(given, Path) and (text := adapters_alone(given)):
        yield at, text
