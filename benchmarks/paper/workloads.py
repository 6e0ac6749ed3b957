"""Builds the models, layouts and questions of the figures of arXiv 2503.12964, without memory."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any

import torch
from torch import nn

from nemo_vfm.config import ingredient
from nemo_vfm.models.dit import DiT
from nemo_vfm.models.gpt import GPT
from nemo_vfm.models.st_dit import STDiT
from nemo_vfm.models.wan import Wan
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.perf.gpu_specs import gpu_named
from nemo_vfm.perf.layouts import Subject
from nemo_vfm.perf.model_facts import ModelFacts, facts, sketch
from nemo_vfm.perf.model_work import ModelWork, work_of
from nemo_vfm.perf.network import Network
from nemo_vfm.perf.planner import Planner, PlanQuery, PlanResult
from nemo_vfm.perf.step_time import Machine

H100 = Machine(gpu_named("h100"), ingredient("network", "dgx_h100", Network))
TEXT, CHANNELS = (1, 512, 1024), 16
#: Latents of so many tokens, with patches of 1 x 2 x 2.
LATENTS = {
    1024: (4, 32, 32), 8192: (32, 32, 32), 36_864: (16, 96, 96), 56_320: (16, 88, 160), 65_536: (32, 128, 64),
    73_728: (32, 96, 96), 294_912: (32, 192, 192),
}  # fmt: skip


@dataclass(frozen=True)
class Size:
    """A model of the paper."""

    name: str
    width: int
    depth: int
    heads: int
    kind: type[DiT] = DiT
    rank: int | None = 256


SEVEN, LARGE = Size("7B", 4096, 28, 32), Size("28B", 6144, 48, 48)
ST_SEVEN, ST_LARGE = Size("ST-DiT 7B", 4096, 18, 32, STDiT), Size("ST-DiT 12B", 5120, 20, 40, STDiT)


def shapes(tokens: int) -> dict[str, tuple[int, ...]]:
    """Of one sample."""
    return {"latents_BCTHW": (1, CHANNELS, *LATENTS[tokens]), "text_BLD": TEXT}


@cache
def built(size: Size) -> nn.Module:
    """Without memory."""
    with torch.device("meta"):
        return size.kind(in_channels=CHANNELS, text_dim=TEXT[2], width=size.width, depth=size.depth, heads=size.heads,
                         modulation_rank=size.rank)  # fmt: skip


@cache
def work(size: Size, tokens: int) -> ModelWork:
    """On one sample."""
    return work_of(built(size), shapes(tokens), tokens)


@cache
def known(size: Size) -> ModelFacts:
    """Traced once, whatever the length of samples."""
    return sketch(facts(built(size), shapes(8192)))


def question(size: Size, tokens: int, batch: int) -> PlanQuery:
    """For H100 in DGX H100 machines, in bf16."""
    own = replace(known(size), tokens=tokens, shapes=shapes(tokens))
    part: Any = own.model
    subject = Subject(model=built(size), part=part, tokens=tokens, frames=None, causal=False, batch=batch)
    assert prod(LATENTS[tokens]) == 4 * tokens
    return PlanQuery(subject=subject, work=work(size, tokens), known=own, machine=H100)


@cache
def planned(size: Size, tokens: int, batch: int, gpus: int) -> PlanResult:
    """Every layout of so many H100."""
    return Planner(question(size, tokens, batch)).answer(gpus)


def layout(**degrees: int) -> ParallelPlan:
    """With sequence parallelism wherever there are tensor ranks, as the paper has it."""
    schedule: Mapping[str, Any] = {"schedule": "interleaved"} if degrees.get("virtual", 1) > 1 else {}
    return ParallelPlan(sequence=degrees.get("tensor", 1) > 1, **degrees, **schedule)


@cache
def llama(width: int, depth: int, heads: int, hidden: int) -> ModelWork:
    """Llama 3 on sequences of 8,192."""
    with torch.device("meta"):
        model = GPT(vocab=128_256, width=width, depth=depth, heads=heads, groups=8, mlp_hidden=hidden)
    return work_of(model, {"tokens_BS": (1, 8192)}, 8192)


@cache
def wan(frames: int, rows: int, columns: int) -> ModelWork:
    """Wan 2.1 14B on such latents."""
    with torch.device("meta"):
        model = Wan(in_channels=16, text_dim=4096, width=5120, depth=40, heads=40, mlp_hidden=13_824)
    inputs = {"latents_BCTHW": (1, 16, frames, rows, columns), "text_BLD": (1, 512, 4096)}
    return work_of(model, inputs, frames * rows * columns // 4)
