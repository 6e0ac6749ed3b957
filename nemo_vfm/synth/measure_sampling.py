"""Measures how quickly a recipe samples videos or generates texts: a step is one call of the network.

Shape letters: B batch, S tokens.
"""

import time
from copy import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nemo_vfm.core.device import device
from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.log import info
from nemo_vfm.core.seed import generator
from nemo_vfm.core.types.job import Run
from nemo_vfm.core.types.model_traits import ReportsFlops
from nemo_vfm.data.tokenizers.byte_tokenizer import ByteTokenizer
from nemo_vfm.language.generation import generate
from nemo_vfm.models.convert.video.random_pipeline import prepare_base
from nemo_vfm.parallel.engine.inference_model import join_sampling
from nemo_vfm.perf import flops
from nemo_vfm.perf.step_watch import StepFigures, StepWatch
from nemo_vfm.synth.generate_texts import Generate
from nemo_vfm.synth.prompts import VideoPrompt
from nemo_vfm.synth.sample_videos import Sample, SamplingModel

_PROMPT_TOKENS = 32  # of a text that is made up, where there is no tokenizer yet
_ABSENT = (UserError, DataError, OSError)  # what an earlier step would have made


class _Enough(Exception):
    """All steps were measured; the batch need not be finished."""


def measure_sampling(
    job: Sample | Generate, run: Run, *, steps: int, warm_up: int, profiled: bool
) -> StepFigures:  # fmt: skip
    """Sample batches until enough calls of the network are measured; nothing is written.

    A checkpoint that is not there yet is not needed: weights as they are drawn take as long. Made-up prompts stand in
    for those of an earlier step.

    Args:
        job: samples videos or generates texts.
        run: with a folder of its own.
        steps: calls that are timed, after `warm_up` others.
        profiled: whether the time of further calls is divided by kinds.
    """
    watch, here = StepWatch(warm_up=warm_up, steps=steps, profiled=profiled), copy(job)
    if isinstance(here, Sample):
        prepare_base(here.base, here.random_base, run.folder)
    if isinstance(here.checkpoint, Path) and not here.checkpoint.exists():
        info(f"there is no {here.checkpoint} yet, so weights are as they are drawn")
        here.checkpoint = None
    return _of_videos(here, run, watch) if isinstance(here, Sample) else _of_texts(here, run, watch)


def _of_videos(job: Sample, run: Run, watch: StepWatch) -> StepFigures:
    began, ranks = time.perf_counter(), join_sampling(job.parallel)
    source = SamplingModel(job.model, job.checkpoint, job.weights, job.adapters, job.fp8)
    model = source.build(run.seed, ranks, offload=job.pipeline.offload)
    start = {"model": time.perf_counter() - began}
    try:
        known = job.prompts.prompts()
    except _ABSENT:
        known = [VideoPrompt("a made-up prompt", {})]
    group = [(Path(f"{place}.mp4"), known[place % len(known)]) for place in range(job.batch_size)]
    calls, needed, shapes = 0, list[float](), dict[str, tuple[int, ...]]()

    def called(module: nn.Module, given: Any, named: dict[str, Any], output: Tensor) -> None:
        nonlocal calls
        calls += 1
        shapes.update({name: tuple(x.shape) for name, x in named.items() if isinstance(x, Tensor)})
        if isinstance(module, ReportsFlops) and watch.is_timed(calls):
            needed.append(flops.forward_flops(module.ops(shapes)) * ranks.plan.data / ranks.plan.world)
        if watch.done(calls):
            raise _Enough

    handle = model.register_forward_hook(called, with_kwargs=True)
    watch.begin()
    per_batch = 0.0
    try:
        while True:
            before = calls
            job._generate(model, group, run.seed, ranks)
            per_batch = float(calls - before)
    except _Enough:
        handle.remove()
    found = _figures(watch, model, start, needed)
    # Calls of a whole batch; text encoder and codec, which take their time once a batch, are not in it.
    per_batch = per_batch or float(job.pipeline.sampler.num_steps())
    found.samples = job.batch_size * ranks.plan.data / per_batch
    found.shapes = {name: shape for name, shape in shapes.items() if name.endswith(("_BCTHW", "_BLD"))}
    return found


def _of_texts(job: Generate, run: Run, watch: StepWatch) -> StepFigures:
    began = time.perf_counter()
    try:
        job.tokenizer.vocab_size()
    except _ABSENT:
        job.tokenizer = ByteTokenizer()
    model: Any = job._open_model(run.seed)
    start = {"model": time.perf_counter() - began}
    try:
        beginnings = [list(one.tokens) for one in job._read_prompts()]
    except _ABSENT:
        numbers = generator(run.seed, "made-up prompts")
        beginnings = torch.randint(model.vocab, (job.batch_size, _PROMPT_TOKENS), generator=numbers).tolist()
    group = [beginnings[place % len(beginnings)] for place in range(job.batch_size)]
    calls, scores = 0, model.scores

    def called(*given: Any) -> Tensor:
        nonlocal calls
        found: Tensor = scores(*given)
        calls += 1
        if watch.done(calls):
            raise _Enough
        return found

    object.__setattr__(model, "scores", called)
    watch.begin()
    try:
        while True:  # none ends before its most tokens, so that all calls are of the whole batch
            generate(model, group, max_new=job.max_tokens, choice=job.choice, seeds=range(len(group)),
                     device=device(), dtype=next(model.parameters()).dtype)  # fmt: skip
    except _Enough:
        pass
    found = _figures(watch, model, start, [])
    found.samples, found.tokens = len(group) / job.max_tokens, float(len(group))
    found.shapes = {"tokens_BS": (len(group), max(map(len, group)))}
    return found


def _figures(watch: StepWatch, model: nn.Module, start: dict[str, float], needed: list[float]) -> StepFigures:
    found = watch.figures(start)
    found.parameters = sum(parameter.numel() for parameter in model.parameters())
    if needed:
        peak = flops.peak_flops()
        found.peak = str(peak)
        found.mfu = found.hfu = flops.mfu(sum(needed) / len(needed), found.step_s, peak)
    return found
