"""Turns a recipe and the arguments of `plan` or `check` into a request to the planner."""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from nemo_vfm.cli.planning.layout_words import binary
from nemo_vfm.cli.planning.sample_shapes import Sample, sample_of
from nemo_vfm.cli.tiny_recipe import built_training
from nemo_vfm.config import ingredient, trust_list
from nemo_vfm.config.tree import Map, Node
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.held_weights import Held
from nemo_vfm.core.types.training_data import HasBatchSizes
from nemo_vfm.parallel.apply.pipeline_stage import Cuttable
from nemo_vfm.parallel.engine.torch_engine import TorchEngine
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.plan.static_memory import on_meta
from nemo_vfm.perf.gpu_specs import gpu_named
from nemo_vfm.perf.layouts import Subject
from nemo_vfm.perf.model_facts import ModelFacts, facts
from nemo_vfm.perf.model_work import work_of
from nemo_vfm.perf.network import Network
from nemo_vfm.perf.planner import Choice, Planner, Question
from nemo_vfm.perf.step_time import Machine
from nemo_vfm.perf.trace_cache import sketch

if TYPE_CHECKING:
    from torch import nn

    from nemo_vfm.train.job import Train


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A recipe's training, ready to be planned.

    Args:
        question: for the planner.
        sample: what it is reckoned for.
        phase: the phase it is, where the recipe has several; else empty.
        steps: of this phase or the training; None where only the clock or the data know.
        own: the recipe's layout.
        step: address of the training in a workflow, with a dot behind it; else empty.
        has_engine: whether the recipe names its engine.
        where: the address at which the layout is written, or would be.
        written: what stands there: the same, or for a phase without one of its own nothing but defaults.
        recompute: whether the recipe's engine runs blocks again.
        kept: checkpoints that stay on the disk; None keeps all.
        checkpoint_bytes: of one.
        held: the networks beside the model.
    """

    question: Question
    sample: Sample
    phase: str
    steps: int | None
    own: ParallelPlan
    step: str
    has_engine: bool
    where: str
    written: ParallelPlan
    recompute: bool
    kept: int | None
    checkpoint_bytes: int
    held: Held


def parse_request(arguments: argparse.Namespace) -> PlanRequest:
    """Read the recipe and look at its model.

    Raises:
        RecipeError, UserError: the recipe is wrong, trains nothing, or does not say enough.
    """
    gpu_named(arguments.gpu)  # a wrong name is told before the recipe is read
    job, step, composed = built_training(arguments)
    found = request_of(job, composed.path, arguments)
    return replace(found, step=step, where=f"{step}{found.where}", has_engine=_has_engine(composed.root, step))


def _has_engine(node: Node, step: str) -> bool:
    """Whether the recipe writes an engine there."""
    for name in step.split(".")[:-1]:
        node = node.items[name] if isinstance(node, Map) else node
    return isinstance(node, Map) and "engine" in node.items


def request_of(job: "Train", recipe: Path, arguments: argparse.Namespace, *, own_only: bool = False) -> PlanRequest:
    """The same of a training that is built already.

    Args:
        job: the training.
        recipe: its file, whose first lines may say how large its samples are.
        arguments: with gpus, gpu, network, latents, tokens, phase, conf and trust.
        own_only: whether nothing but the recipe's own layout is asked for, whatever the number of GPUs.

    Raises:
        UserError: it is not known how its layouts are planned, or the recipe does not say enough.
        ValueError: the model does not say enough of itself.
    """
    machine = Machine(gpu_named(arguments.gpu), _network(arguments))
    if not isinstance(job.engine, TorchEngine):
        raise UserError(f"only TorchEngine layouts can be planned, and this recipe uses {type(job.engine).__name__}")
    model = on_meta(job.model)
    _require_blocks(job, model, arguments.gpus)
    sample = sample_of(job, model, recipe, latents=arguments.latents, tokens=arguments.tokens)
    phase, own, written, batch, steps = _phase(job, arguments.gpus, arguments.phase, sample.tokens)
    known = facts(model, sample.inputs, job.optimizer)
    known = known if (own.world if own_only else arguments.gpus) == 1 else sketch(known)
    work = work_of(model, sample.inputs, sample.tokens)
    batches = dict(job.data.batch_sizes()) if isinstance(job.data, HasBatchSizes) else {}
    along_time = any(one.over == "lines" for one in work.attentions)
    subject = Subject(
        model=model, part=_two_blocks(known), tokens=sample.tokens, frames=sample.frames if along_time else None,
        causal=any(one.causal for one in work.attentions), batch=batch,
        others=tuple(size for name, size in batches.items() if name != "batch_size"),
        splits_weights_apart=not job.engine.compile,
    )  # fmt: skip
    held = job.held_beside()
    question = Question(
        subject=subject, work=work, known=known, machine=machine, precision=_precision(job),
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
    """Before anybody is asked how large samples are.

    Raises:
        UserError: the model is not made of blocks that layouts could share.
    """
    if not isinstance(model, Cuttable):
        kept = job.plan_for(gpus).state_bytes
        raise UserError(
            f"{type(model).__name__} declares no blocks that GPUs could share, so there are no layouts to compare: "
            f"each GPU holds all of it ({', '.join(f'{name} {binary(size)}' for name, size in kept.items())}), and "
            "parallel.replicate shares the batches"
        )


def own_choice(parse_request: PlanRequest) -> Choice:
    """What the recipe's own layout costs: the one place from which `plan`, `check` and remedies take it.

    Raises:
        UserError: the engine would not take it.
    """
    return Planner(parse_request.question).choice(parse_request.own, recompute=parse_request.recompute)


def _two_blocks(known: ModelFacts) -> "nn.Module":
    part = known.model
    assert isinstance(part, torch.nn.Module)
    return part


def _network(arguments: argparse.Namespace) -> Network:
    return ingredient("network", arguments.network, Network, arguments.conf, trust_list(arguments.trust))


def _precision(job: "Train") -> Literal["fp32", "bf16"]:
    """Of all but linears in FP8; `auto` is bf16 on every GPU that is known here."""
    return "fp32" if job.precision.compute == "fp32" else "bf16"


def _phase(
    job: "Train", gpus: int, wanted: str | None, tokens: int
) -> tuple[str, ParallelPlan, ParallelPlan, int, int | None]:
    """(name, layout, what the recipe writes of it, samples of a global batch, steps) of what is planned."""
    own = job.data.batch_sizes()["batch_size"] if isinstance(job.data, HasBatchSizes) else 1
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
