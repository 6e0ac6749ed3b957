"""Reports which samples a training step had, with their noise levels and losses, and prints it.

The samples of a step and their noise follow from the recipe, the seed and the step. Where the recipe has changed
since, the newest checkpoint says from which sample on. The step's own loss is in metrics.jsonl; the loss of each
sample is recomputed from the last weights saved before the step.
"""

import json
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import nn

from nemo_vfm.config import build, compose, trust_list
from nemo_vfm.config.recipe_errors import UNSEEN, printable
from nemo_vfm.core.device import device
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.storage import checkpoint_names
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.job import RECIPE, Job
from nemo_vfm.core.types.task import ModelInputs
from nemo_vfm.core.types.training_data import ResumableData
from nemo_vfm.models.adapters.low_rank_adapter import begin
from nemo_vfm.parallel.apply.build_model import build_model
from nemo_vfm.parallel.apply.frozen_weights import learned_state
from nemo_vfm.parallel.checkpoint import checkpoint
from nemo_vfm.parallel.checkpoint.checkpoint_folder import list_checkpoints
from nemo_vfm.parallel.checkpoint.checkpoint_reader import fill
from nemo_vfm.runtime.terminal import Terminal
from nemo_vfm.runtime.user_permissions import permissions
from nemo_vfm.train.frozen_models import load_frozen
from nemo_vfm.train.job import Train
from nemo_vfm.train.phases import at
from nemo_vfm.workflow import Workflow

_LONGEST_KEY = 34


@dataclass(frozen=True, slots=True)
class SampleReport:
    """One sample of a step."""

    place: int  #: in the global batch, counted from 0
    rank: int  #: the data rank that had it
    key: str  #: of the sample; of cached latents the clip and its window
    caption: str  #: as the data has it; empty where it is no video
    fps: float  #: frames a second; 0 where it is no video
    weight: float  #: what its loss counts; 0 where it could not be read, or is left out
    left_out: bool  #: whether it, or the step, is among the recipe's `skip`
    numbers: dict[str, float]  #: values from the task, such as the noise level
    loss: float | None = None  #: computed anew; None where it was not asked for
    share: float | None = None  #: of the step's loss, weighted


@dataclass(frozen=True, slots=True)
class StepReport:
    """A step."""

    run: str  #: the folder of the training
    step: int  #: counted from 1
    epoch: float | None  #: counted from 1; where the data knows
    shapes: dict[str, list[int]]  #: of the batch's tensors
    recorded: dict[str, float]  #: its line of metrics.jsonl; empty where there is none
    samples: list[SampleReport]  #: in the order of the global batch
    weights: str = ""  #: where the losses' weights came from, as a sentence; empty where none were computed
    exact: bool = False  #: whether these are the weights that the step began with
    loss: float | None = None  #: mean of the samples' losses by their weights


def tell(run: Path, step: int, *, trust: Sequence[str], allow_host: Sequence[str] = (), losses: bool) -> StepReport:
    """Report all that is known about a step; `run` may be the folder of a workflow's step.

    The `losses` of its samples need the model in memory.
    """
    if step < 1:
        raise UserError("steps are counted from 1, as in metrics.jsonl")
    job, folder, seed = load_training(run, trust, allow_host)
    if hasattr(job.data, "num_workers"):
        vars(job.data)["num_workers"] = 0  # one batch is not worth starting them
    data, seed_then = job.data_at(folder, step - 1, seed)
    given = next(iter(data.train_dataloader()))
    assert given.index == step - 1
    batch = job.skip.zero_weights(given).to(device())
    prepared = job.task.prepare(batch, seed=seed_then, training=True)
    names = ("latents_BCTHW", "latents_XC", "video_BCTHW", "text_BLD", "tokens_BS")
    shapes = {name: list(tensor.shape) for name in names if (tensor := getattr(batch, name, None)) is not None}
    shapes |= {name: list(tensor.shape) for name, tensor in getattr(batch, "members", {}).items()}
    epoch = None
    with suppress(UserError):  # streamed tars that were never read to their end have none
        if not isinstance(data, ResumableData):
            epoch = (step - 1) / data.batches_per_epoch() + 1
        elif shares := [read.place / read.of for read in data.position(step - 1).values() if read.of]:
            epoch = min(shares) + 1
    recorded: dict[str, float] = {}
    if (metrics := folder / "metrics.jsonl").is_file():  # it may be long: this line has a known beginning
        with metrics.open(errors="replace") as lines, suppress(ValueError):
            recorded = json.loads(next((line for line in lines if line.startswith(f'{{"step": {step},')), "{}"))
    report = StepReport(str(folder), step, epoch, shapes, recorded, [])
    if not losses:
        return _with_samples(report, job, batch, prepared, None)
    load_frozen(job, None)
    model, weights, exact = _model(job, folder, seed, step)
    with torch.no_grad(), job.precision.autocast():
        output = model(**prepared.inputs)
    found: list[float] = job.task.losses(output.float(), prepared).tolist()
    return _with_samples(report, job, batch, prepared, found, weights, exact)


def load_training(run: Path, trust: Sequence[str], allow_host: Sequence[str] = ()) -> tuple[Train, Path, int]:
    """The training of a run, its folder and its seed.

    Raises:
        UserError: there is none, or there are several.
    """
    above = next((folder for folder in (run, *run.resolve().parents[:3]) if (folder / RECIPE).is_file()), None)
    if above is None:
        raise UserError(f"{run} is not a run folder: there is no recipe.yaml in it or above it")
    composed = compose(above / RECIPE)
    job: Job = build(composed, trust_list(trust), permissions(allow_host, composed.path))
    names = () if above == run else run.resolve().relative_to(above).parts
    found = job.job_in(*names) if isinstance(job, Workflow) and names else job
    if isinstance(found, Workflow):
        trained = [name for name, below in found.steps.items() if isinstance(below, Train)]
        if len(trained) != 1:
            raise UserError(f"{run} has {len(trained)} trainings among its steps; name one, such as {run}/NAME@1")
        run, found = run / trained[0], found.steps[trained[0]]
    if not isinstance(found, Train):
        raise UserError(f"{run} is not a training run, so it has no steps to explain")
    return found, run, composed.seed


def _model(job: Train, folder: Path, seed: int, step: int) -> tuple[nn.Module, str, bool]:
    """The model with the weights nearest before the step, which ones these are, and whether it began with them."""
    model, start_from = build_model(job.model, seed), job.weights.start_from
    before = [path for path in list_checkpoints(folder / "checkpoints") if checkpoint_names.step_of(path.name) < step]
    if before:
        if job.weights.adapters is not None and start_from is not None:
            start_from.load_into(model)
        fill(learned_state(model), checkpoint.load_weights(before[-1], "model"))
        done, named = checkpoint_names.step_of(before[-1].name), f"checkpoint {before[-1].name}"
    else:
        if start_from is not None:
            start_from.load_into(model)
            begin(model)
        done, named = 0, "the initial weights" if start_from is None else f"the weights of {start_from.path}"
    return model.to(device()).train(), named, done == step - 1


def _with_samples(
    report: StepReport, job: Train, batch: Batch, prepared: ModelInputs, losses: list[float] | None,
    weights: str = "", exact: bool = False,
) -> StepReport:  # fmt: skip
    counts = prepared.weight_B.tolist()
    whole = sum(weight * loss for weight, loss in zip(counts, losses or [], strict=False))
    # One number a sample: tags, and what the criterion needs of that kind, such as sigma.
    kinds, a_sample = {**prepared.targets, **prepared.tags}, (len(batch),)
    numbers = {name: tensor.tolist() for name, tensor in kinds.items() if tuple(tensor.shape) == a_sample}
    plan = at(job.phases, report.step - 1).plan if job.phases else job.parallel
    each = max(1, len(batch) // plan.data)
    captions = getattr(batch, "captions", ("",) * len(batch))  # tokens have none, nor a frame rate
    fps = getattr(batch, "fps_B", torch.zeros(len(batch))).tolist()
    samples = [
        SampleReport(
            place, place // each, key, captions[place], fps[place], counts[place],
            key in job.skip.samples or report.step in job.skip.steps,
            {name: values[place] for name, values in numbers.items()},
            None if losses is None else losses[place],
            None if losses is None or not whole else counts[place] * losses[place] / whole,
        )
        for place, key in enumerate(batch.keys)
    ]  # fmt: skip
    mean = whole / sum(counts) if losses is not None and sum(counts) else None
    return replace(report, samples=samples, weights=weights, exact=exact, loss=mean)


def tell_of_step(run: Path, step: int, *, trust: list[str], allow_host: list[str], as_json: bool, losses: bool) -> int:
    """Print it."""
    report = tell(run, step, trust=trust, allow_host=allow_host, losses=losses)
    if as_json:
        text = json.dumps(asdict(report), indent=1, ensure_ascii=False)
        sys.stdout.write(UNSEEN.sub(lambda found: json.dumps(found[0])[1:-1], text) + "\n")
    else:
        write(Terminal(), report)
    return 0


def write(paper: Terminal, report: StepReport) -> None:
    """The whole page, as plain text."""
    paper.line(f"{printable(report.run, 200)}, step {report.step:,}", "bold")
    shapes = ", ".join(
        f"{re.sub('_[A-Z]+$', '', name)} {'x'.join(map(str, shape[1:]))}" for name, shape in report.shapes.items()
    )
    epoch = "" if report.epoch is None else f"epoch {int(report.epoch)}, "
    paper.prose(f"{epoch}{len(report.samples)} samples: {shapes}", 2)
    line = report.recorded
    parts = [f"{name.replace('_', ' ')} {line[name]:.6g}" for name in ("loss", "grad_norm", "lr") if name in line]
    recorded = f"recorded: {', '.join(parts)}"
    if not line:
        recorded = "metrics.jsonl has no line for it: it was not reached yet, or its metrics were not stored"
    elif line.get("skipped"):
        recorded = "skipped as a whole (callbacks.skip.steps): no weights changed"
    paper.prose(recorded, 2)
    if report.weights:
        mean = "none counts" if report.loss is None else f"mean {report.loss:.6g}"
        which = "which the step started from"
        if not report.exact:
            which = "the newest weights before the step, not those it started with"
        paper.prose(f"losses recomputed from {report.weights}, {which}: {mean}", 2)
    paper.line()
    names = list(report.samples[0].numbers) if report.samples else []
    head = ["sample", "rank", *names, "weight", *(["loss", "share"] if report.weights else []), "caption"]
    rows = [(f"  {head[0]}", *head[1:])]
    for one in report.samples:
        key = printable(one.key, 200)
        key = key if len(key) <= _LONGEST_KEY else f"{key[: _LONGEST_KEY - 3]}..."
        weight = f"{one.weight:g}" + (" (skip)" if one.left_out else "")
        cells = [f"  {key}", str(one.rank), *(f"{one.numbers[name]:.4g}" for name in names), weight]
        if report.weights:
            cells += ["" if one.loss is None else f"{one.loss:.4g}", "" if one.share is None else f"{one.share:.0%}"]
        rows.append((*cells, printable(one.caption, 400)))
    paper.table(rows, {"sample": "bold"})
