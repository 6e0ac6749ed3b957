"""Measures the quickstart's training step on one GPU, and what of it is launching: eager, compiled, as one CUDA graph.

    python benchmarks/gpu_steps/quickstart.py [--json FILE] [--only WORDS] [--quick]

diffusion/train_small on made latents: 8 clips of 9 frames of 48 x 48 pixels, that is, latents of 384 x 2 x 6 x 6. The
bare step is forward, backward and fused AdamW on inputs that are prepared: the upper bound of what a graph may save.
"""

from functools import partial
from itertools import count
from typing import Any

import torch
from timing import DEVICE, Figures, by_kind, report_of, timed

import nemo_vfm
from nemo_vfm.core.types.sample_batches import VideoBatch
from nemo_vfm.parallel.engine.step_runner import EngineInputs, StepRunner

RECIPE = ["data.shards=none", "~callbacks.preview"]


def begun(*overrides: str) -> tuple[Any, StepRunner]:
    """The recipe's job, and what runs its steps."""
    job = nemo_vfm.build(nemo_vfm.compose("diffusion/train_small", [*RECIPE, *overrides]))
    inputs = EngineInputs(job.model, job.task, job.optimizer, job.precision, 0, job.parallel)
    return job, job.engine.start(inputs)


def batch_at(job: Any, index: int) -> VideoBatch:
    """As the shards give it."""
    latents = torch.randn(8, 384, 2, 6, 6, generator=torch.Generator().manual_seed(index))
    captions = ("a red circle moving left",) * 8
    keys, ones = tuple(f"clip{index}-{row}" for row in range(8)), torch.ones(8)
    text, mask = job.task.text_encoder.encode(captions)
    return VideoBatch(index, keys, ones, captions, 6 * ones, text, mask, latents_BCTHW=latents)


def whole(rounds: int, *overrides: str, profiled: bool = False) -> Figures:
    """The engine's step, which prepares its inputs."""
    job, runner = begun(*overrides)
    batches, numbers = [batch_at(job, index) for index in range(8)], count()

    def step() -> None:
        runner.step([batches[next(numbers) % 8]])

    return {**timed(step, rounds, warm=4), **(by_kind(step) if profiled else {})}


def prepare(rounds: int) -> Figures:
    """What the task makes of a batch alone."""
    job, _ = begun()
    batch = batch_at(job, 0)
    return timed(lambda: job.task.prepare(batch.to(DEVICE), seed=0, training=True), rounds, warm=4)


def bare(rounds: int, graph: bool) -> Figures:
    """Without the engine; as one CUDA graph its inputs are always the same."""
    if graph and DEVICE.type != "cuda":
        return {"failed": "a CUDA graph needs a GPU"}
    job, runner = begun()
    prepared = job.task.prepare(batch_at(job, 0).to(DEVICE), seed=0, training=True)
    rate = torch.tensor(1e-4, device=DEVICE) if graph else 1e-4
    optimizer = torch.optim.AdamW(runner.model.parameters(), lr=rate, fused=True, capturable=graph)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE.type, torch.bfloat16, cache_enabled=not graph):
            output = runner.model(**prepared.inputs)
        job.task.losses(output.float(), prepared).mean().backward()
        optimizer.step()

    return timed(_captured(step).replay if graph else step, rounds, warm=4)


def _captured(step: Any) -> torch.cuda.CUDAGraph:
    """The step as one graph, after three on a stream beside."""
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def main() -> None:
    """All sides."""
    report = report_of(__doc__)
    rounds = 1 if report.quick else 60
    report.side("eager, the whole step", partial(whole, rounds, profiled=True))
    report.side("the task's prepare alone", partial(prepare, rounds))
    report.side("bare: forward, backward, fused AdamW", partial(bare, rounds, graph=False))
    report.side("bare, as one CUDA graph", partial(bare, rounds, graph=True))
    report.side("compiled, the whole step", partial(whole, rounds, "engine.compile=true"))
    report.side("eager in fp32, the whole step", partial(whole, rounds, "precision.compute=fp32"))


if __name__ == "__main__":
    main()
