"""Turns a recipe, its samples' shapes and the arguments of `plan` or `check` into a request to the planner.

The data that a recipe names may not be on this machine. So the first of these that names the size of a sample wins: the
command line, the data's buckets or sequence length, the recipe's first comment ("latents of 32 x 96 x 96").
"""

import argparse
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from nemo_vfm.cli.planning.layout_words import binary
from nemo_vfm.cli.recipe_job import built_training
from nemo_vfm.config import ingredient, trust_list
from nemo_vfm.config.tree import Map, find
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.held_weights import ResidentWeights
from nemo_vfm.core.types.training_data import HasBatchSizes, ResumablePhases
from nemo_vfm.parallel.apply.pipeline_stage import Cuttable
from nemo_vfm.parallel.engine.torch_engine import TorchEngine
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.plan.static_memory import on_meta
from nemo_vfm.perf.gpu_specs import gpu_named
from nemo_vfm.perf.layouts import Subject
from nemo_vfm.perf.model_facts import facts, sketch
from nemo_vfm.perf.model_work import work_of
from nemo_vfm.perf.network import Network
from nemo_vfm.perf.planner import PlanQuery
from nemo_vfm.perf.step_time import Machine

if TYPE_CHECKING:
    from torch import nn

    from nemo_vfm.train.job import Train

_LATENTS = re.compile(r"latents of (\d+) x (\d+) x (\d+)")
_TEXT = (512, 1024)  # the shape of a T5-11B's, where the text encoder cannot say


@dataclass(frozen=True, slots=True)
class PlannedSample:
    """One sample as a model gets it."""

    inputs: Mapping[str, tuple[int, ...]]  #: shapes, with a batch of one
    tokens: int  #: that it makes
    frames: int | None  #: latent frames of it; None of a text
    source: str  #: who says so


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A recipe's training, ready to be planned."""

    question: PlanQuery  #: for the planner
    sample: PlannedSample  #: what it is reckoned for
    phase: str  #: the phase it is, where the recipe has several; else empty
    steps: int | None  #: of this phase or the training; None where only the clock or the data know
    own: ParallelPlan  #: the recipe's layout
    step: str  #: address of the training in a workflow, with a dot behind it; else empty
    has_engine: bool  #: whether the recipe names its engine
    where: str  #: the address at which the layout is written, or would be
    written: ParallelPlan  #: what stands there: the same, or for a phase without one of its own nothing but defaults
    recompute: bool  #: whether the recipe's engine runs blocks again
    kept: int | None  #: checkpoints that stay on the disk; None keeps all
    checkpoint_bytes: int  #: of one
    held: ResidentWeights  #: the networks beside the model


def parse_request(arguments: argparse.Namespace) -> PlanRequest:
    """Read the recipe and look at its model."""
    gpu_named(arguments.gpu)  # a wrong name is told before the recipe is read
    job, step, composed = built_training(arguments)
    found = request_of(job, composed.path, arguments)
    written = find(composed.root, step.rstrip("."))
    has_engine = isinstance(written, Map) and "engine" in written.items
    return replace(found, step=step, where=f"{step}{found.where}", has_engine=has_engine)


def request_of(job: "Train", recipe: Path, arguments: argparse.Namespace, *, own_only: bool = False) -> PlanRequest:
    """The same of a training that is built already.

    Args:
        recipe: its file, whose first lines may say how large its samples are.
        arguments: with gpus, gpu, network, latents, tokens, phase, conf and trust.
        own_only: whether nothing but the recipe's own layout is asked for, whatever the number of GPUs.
    """
    machine = Machine(
        gpu_named(arguments.gpu),
        ingredient("network", arguments.network, Network, arguments.conf, trust_list(arguments.trust)),
    )
    if not isinstance(job.engine, TorchEngine):
        raise UserError(f"only TorchEngine layouts can be planned, and this recipe uses {type(job.engine).__name__}")
    if isinstance(job.optimizer, Mapping):
        raise UserError("layouts are planned for one optimizer, and this recipe has several, which update in turns")
    model = on_meta(job.model)
    _require_blocks(job, model, arguments.gpus)
    sample = sample_of(job, model, recipe, latents=arguments.latents, tokens=arguments.tokens)
    phase, own, written, batch, steps = _phase(job, arguments.gpus, arguments.phase, sample.tokens)
    known = facts(model, sample.inputs, job.optimizer)
    known = known if (own.world if own_only else arguments.gpus) == 1 else sketch(known)
    work = work_of(model, sample.inputs, sample.tokens)
    batches = dict(job.data.batch_sizes()) if isinstance(job.data, HasBatchSizes) else {}
    along_time = any(one.over == "lines" for one in work.attentions)
    part = known.model
    assert isinstance(part, torch.nn.Module)
    subject = Subject(
        model=model, part=part, tokens=sample.tokens, frames=sample.frames if along_time else None,
        causal=any(one.causal for one in work.attentions), batch=batch,
        others=tuple(size for name, size in batches.items() if name != "batch_size"),
        splits_weights_apart=not job.engine.compile,
    )  # fmt: skip
    held = job.held_beside()
    question = PlanQuery(
        subject=subject, work=work, known=known, machine=machine,
        precision="fp32" if job.precision.compute == "fp32" else "bf16",  # of all but linears in FP8
        fp8=job.precision.fp8, average=job.ema is not None,
        offload=job.engine.offload_optimizer, beside=held.num_bytes,
    )  # fmt: skip
    keep, where = job.loop.checkpoint.keep, f"loop.phases.{phase}.parallel" if phase else "parallel"
    each, learned = 4 + (4 if job.ema is not None else 0), round(work.parameters * work.learned)
    return PlanRequest(
        question=question, sample=sample, phase=phase, steps=steps, own=own, step="", has_engine=False, where=where,
        written=written,
        recompute=job.engine.recompute == "blocks", kept=None if keep.last is None else keep.last + keep.best,
        checkpoint_bytes=each * learned + known.kept.by(torch.float32, learned), held=held,
    )  # fmt: skip


def _require_blocks(job: "Train", model: "nn.Module", gpus: int) -> None:
    """Before anybody is asked how large samples are."""
    if not isinstance(model, Cuttable):
        kept = job.plan_for(gpus).state_bytes
        raise UserError(
            f"{type(model).__name__} declares no blocks that GPUs could share, so there are no layouts to compare: "
            f"each GPU holds all of it ({', '.join(f'{name} {binary(size)}' for name, size in kept.items())}), and "
            "parallel.replicate shares the batches"
        )


def _phase(
    job: "Train", gpus: int, wanted: str | None, tokens: int
) -> tuple[str, ParallelPlan, ParallelPlan, int, int | None]:
    """(name, layout, what the recipe writes of it, samples of a global batch, steps) of what is planned."""
    sizes = job.data.batch_sizes() if isinstance(job.data, HasBatchSizes) else {}
    own = sizes.get("batch_size") or max(sizes.values(), default=1)  # of a blend, the largest source's
    if not job.phases:
        if wanted is not None:
            raise UserError(f"--phase {wanted}: the recipe has no phases")
        steps = None if job.loop.duration is None else job.loop.duration.steps(samples=own, tokens=tokens)
        return "", job.parallel, job.parallel, own, steps
    names = [one.name for one in job.phases]
    if wanted is not None and wanted not in names:
        raise UserError(f"there is no phase {wanted}; the recipe has {', '.join(names)}")
    fits = [one for one in job.phases if one.name == wanted or (wanted is None and one.plan.world == gpus)]
    chosen = max(fits or job.phases, key=lambda one: one.last - one.first)
    written = chosen.phase.parallel or ParallelPlan()
    return chosen.name, chosen.plan, written, chosen.phase.batch_size or own, chosen.last - chosen.first


def sample_of(
    job: "Train", model: "nn.Module", recipe: Path, *, latents: str | None, tokens: int | None
) -> PlannedSample:
    """What a sample of this training looks like.

    The user says `latents` as frames, rows and columns with commas between, and `tokens` of a text.
    """
    from nemo_vfm.models.gpt import GPT

    if isinstance(model, GPT):
        source = "the command line"
        if tokens is None and isinstance(job.data, ResumablePhases):
            tokens, source = job.data.tokens_per_sample(), "the recipe's data"
        if tokens is None:
            raise UserError(
                "the recipe does not define the length of its sequences; give --tokens, such as --tokens 4096"
            )
        return PlannedSample({"tokens_BS": (1, tokens)}, tokens, None, source)
    channels, patch = getattr(model, "in_channels", 0), getattr(model, "patch", (1, 1, 1))
    frames, rows, columns, source = _latents(job, recipe, latents)
    tokens = (frames // patch[0]) * (rows // patch[1]) * (columns // patch[2])
    encoder = getattr(job.task, "text_encoder", None)
    try:
        shape: tuple[int, int] = encoder.text_shape() if encoder is not None else _TEXT
    except (UserError, OSError):  # an encoder whose folder is given later
        shape = _TEXT
    inputs = {
        "latents_BCTHW": (1, channels, frames, rows, columns),
        "text_BLD": (1, shape[0], getattr(model, "text_dim", shape[1])),
    }
    return PlannedSample(inputs, tokens, frames // patch[0], source)


def latents_said(recipe: Path, latents: str | None) -> tuple[int, int, int] | None:
    """Latent frames, rows and columns by the command line, else by the recipe's first lines; None where neither does.

    Raises:
        UserError: the command line's are no three numbers.
    """
    if latents is not None:
        sizes = re.fullmatch(r"(\d+),(\d+),(\d+)", latents)
        if sizes is None:
            raise UserError(f"--latents takes frames, rows and columns, such as 32,96,96; got {latents!r}")
    else:
        sizes = _LATENTS.search(re.sub(r"[\s#]+", " ", recipe.read_text(encoding="utf-8")))
    return None if sizes is None else (int(sizes[1]), int(sizes[2]), int(sizes[3]))


def _latents(job: "Train", recipe: Path, latents: str | None) -> tuple[int, int, int, str]:
    if latents is not None and (said := latents_said(recipe, latents)):
        return *said, "the command line"
    buckets, codec = getattr(job.data, "buckets", None), getattr(job.task, "codec", None)
    if buckets is not None and codec is not None:
        with suppress(UserError, OSError):  # a codec whose folder is given later
            shapes = [codec.latent_shape(one.num_frames, one.height, one.width)[1:] for one in buckets.buckets.values()]
            return *max(shapes, key=math.prod), "the largest of the recipe's buckets"
    if said := latents_said(recipe, None):
        return *said, "the recipe's first lines"
    raise UserError(
        "the recipe does not define the size of its videos; give their latents' frames, rows and columns, such as "
        "--latents 32,96,96"
    )
