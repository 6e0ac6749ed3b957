"""Carries a training out: brings model, data and state together, resumes, and hands the steps to Lightning."""

import math
from uuid import uuid4

from nemo_vfm.core import log, preemption, ranks
from nemo_vfm.core.device import describe
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.batch import RequiresColumns
from nemo_vfm.core.types.job import Outcome, Run
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.core.types.training_data import HasColumns, HasVocab, ResumableData, sources_in
from nemo_vfm.data.loader.listed_data import ListedData
from nemo_vfm.parallel.checkpoint import checkpoint
from nemo_vfm.parallel.checkpoint.checkpoint_ranks import gather_group, run_on_ranks
from nemo_vfm.parallel.engine.step_runner import EngineInputs
from nemo_vfm.parallel.plan.mesh import group_along
from nemo_vfm.parallel.plan.static_memory import on_meta
from nemo_vfm.parallel.ranks.gather import Gather
from nemo_vfm.parallel.ranks.process_group import first_says
from nemo_vfm.sparse.tables.fused_tables import count_rows
from nemo_vfm.train.callbacks.callback import LightningCallback
from nemo_vfm.train.callbacks.progress_bar import ShowProgress
from nemo_vfm.train.member_use import unusable_members
from nemo_vfm.train.optim import Constant, WarmupCosine
from nemo_vfm.train.parts import TrainParts
from nemo_vfm.train.state.data_position import reading_of, resume
from nemo_vfm.train.state.train_state import TrainState

_PROMISE = "Ctrl-C: the run ends after this step, with a checkpoint; press it again to end at once, without one"
_COMPARED = ("loss", "val_loss", "val_perplexity", "val_auc", "val_normalised_entropy")


def train(job: TrainParts, run: Run) -> Outcome:
    """Train until the length of the job's loop; resume from the newest whole checkpoint where the folder has one."""
    fit = start(job, run)
    if fit.finished:
        if ranks.is_first():
            job.loop.checkpoint.copy(fit.checkpoints, must=True)
        return Outcome(f"already trained for {fit.step} steps", {"steps": fit.step}, did_nothing=True)
    # Lightning's import takes 5 s, which a finished run need not wait.
    from nemo_vfm.data.loader.lightning_data import BatchModule
    from nemo_vfm.train.callbacks.metrics_log import WriteMetrics
    from nemo_vfm.train.loggers.guard import open_all
    from nemo_vfm.train.loggers.run_logger import RunLogger
    from nemo_vfm.train.module import TrainModule
    from nemo_vfm.train.trainer import has_bar, quiet_lightning, trainer

    with preemption.handle_signals(_PROMISE):
        quiet_lightning()
        sources = job.loggers if ranks.is_first() else {}
        loggers = open_all(sources, run.folder, run.settings, goes_on=fit.step > 0)
        validation = {} if job.loop.validation is None else {"validation": job.loop.validation}
        bar = {} if has_bar(job.callbacks) else {"progress": ShowProgress()}
        # Metrics come before the checkpoint: a resume drops the lines after it, and must not miss any before.
        ours = {"metrics": WriteMetrics(loggers), "checkpoint": job.loop.checkpoint, **bar}
        fit.start_clock()
        loop = trainer(fit, {**validation, **job.callbacks}, ours, RunLogger(loggers))
        loop.fit(TrainModule(fit), datamodule=BatchModule(fit.data))
    if fit.preempted and not fit.finished:
        raise preemption.preempted_error(fit.stop, f"at step {fit.step}; its checkpoint is in {fit.checkpoints}")
    early = " (a callback ended it early)" if fit.ended_early and not fit.finished else ""
    # What the last step measured, the recipe's own metric too: a table of several runs compares them by it.
    names = dict.fromkeys((*_COMPARED, job.loop.checkpoint.keep.metric))
    measured = {name: fit.metrics[name] for name in names if math.isfinite(fit.metrics.get(name, math.nan))}
    return Outcome(
        f"trained {fit.step} steps{early}; weights in {fit.checkpoints}",
        {"steps": fit.step, "training_s": fit.elapsed_s, **measured},
    )


def start(job: TrainParts, run: Run) -> TrainState:
    """Build the model, begin from the seed or the newest checkpoint, and start the data."""
    if isinstance(job.data, HasColumns):
        # A label or feature that the data lacks is found before tables of many GB are drawn.
        columns, empty = job.data.no_samples(), on_meta(job.model)
        job.task.prepare(columns, seed=0, training=True)
        if isinstance(empty, RequiresColumns):
            empty.require_columns(columns)
    if any(isinstance(one, ListedData) and one.members for one, _ in sources_in(job.data)):
        # The model is built without memory for this: a training without members never needs to be.
        for address, text in unusable_members(job.data, job.task, on_meta(job.model)):
            raise UserError(f"{'.'.join(address)}: {text}")
    folder, everyone = run.folder / "checkpoints", gather_group()
    # A step's part of the recipe says neither seed nor data: both must be the same for a copy of this run.
    same = {"seed_and_steps_above": run.before, **run.settings} if run.before else run.settings
    run_on_ranks(everyone, lambda: job.loop.checkpoint.begin(folder, same) if ranks.is_first() else None)
    saved = checkpoint.open_latest(folder, everyone)
    runner = job.engine.start(EngineInputs(job.model, job.task, job.optimizer, job.precision, run.seed, job.parallel))
    model, adapters = runner.model, job.weights.adapters
    started_from = job.weights.load_into(model, saved)
    if job.ema is not None:
        job.ema.start(model)
    fit = TrainState(
        run, runner, job.task, job.data, job.schedule, job.ema, total_steps=None, plan=job.parallel,
        origin=first_says(uuid4().hex), skip=job.skip, started_from=started_from,
        adapters=None if adapters is None else adapters.state(),
        stateful={name: one for name, one in job.callbacks.items() if isinstance(one, LightningCallback)},
    )  # fmt: skip
    if saved is not None:
        fit.load(saved)
        log.info(f"resuming at step {fit.step} from {saved.path}")
        job.skip.say_what_differs(fit.step, saved.state.get("skip"))
        job.weights.say_what_differs(fit.step, saved.state.get("adapters"))
    _start_data(job, fit, None if saved is None else saved.state)
    _begin_schedule(job, fit, None if saved is None else saved.state.get("total_steps"))
    checkpoint.require_room(run.folder, 2 * sum(p.numel() * p.element_size() for p in model.parameters()))
    dtype, reason = job.precision.resolve()
    fp8 = f", large linears in FP8 by {job.precision.fp8.recipe}" if job.precision.fp8 else ""
    tables, numbers = count_rows(model)  # rows of tables are no parameters
    rows = f", {numbers / 1e6:.1f} M in {tables} tables" if tables else ""
    size = f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters{rows}"
    log.info(f"{size}, {str(dtype).removeprefix('torch.')} ({reason}){fp8}, {describe()}")
    return fit


def _start_data(job: TrainParts, fit: TrainState, state: Json) -> None:
    """If the recipe's batches differ from those of earlier steps, resume at the sample, not at the step."""
    data, plan = job.data, job.parallel
    if plan.world != plan.data and isinstance(data, ListedData) and data.fetches_together:
        # A group of its own on the CPU, since a thread uses it beside the step; every rank must make it.
        data.share_with(Gather(group_along(plan, ("pipeline", "context", "tensor"), "gloo")))
    here = {"seed": fit.run.seed, "first_batch": fit.step, "rank": fit.data_rank, "num_ranks": plan.data}
    data.start(**here)
    if isinstance(data, ResumableData):
        fit.data, fit.reading = resume(data, reading_of(state), fit.step, fit.run.seed)
    if fit.data is not data:
        fit.data.start(**here)
    rows = getattr(fit.model, "vocab", None)
    if isinstance(data, HasVocab) and isinstance(rows, int) and rows < (words := data.vocab_size()):
        # A token beyond the model's table is, on a GPU, an assertion that names neither.
        raise UserError(f"the data's tokenizer has {words:,} tokens, but the model has a vocabulary of {rows:,}; give "
                        f"model.vocab={words} or more, and a multiple of 128 x parallel.tensor")  # fmt: skip


def _begin_schedule(job: TrainParts, fit: TrainState, steps_before: int | None) -> None:
    """Set the length and the first learning rate; say where it differs from what the recipe promises.

    A run that is extended equals one long run, unless its learning rates were made for the shorter length.
    """
    fit.total_steps, fit.limit_s = job.loop.length(fit.data)
    fit.set_lr()
    total, schedule = fit.total_steps, job.schedule
    if total is None:
        return
    if steps_before not in (None, total) and not fit.finished:
        looked = range(0, fit.step, max(1, fit.step // 100))
        if any(schedule.factor(n, steps_before) != schedule.factor(n, total) for n in looked):
            log.warn(
                f"the schedule depends on the length: it was for {steps_before} steps until step {fit.step} and is for "
                f"{total} from now on; one run of {total} steps would give different weights"
            )
    warmup = schedule.warmup_steps if isinstance(schedule, (Constant, WarmupCosine)) else 0
    if total < warmup:  # no warning: a smoke run is meant so
        log.info(f"{total} steps end within the {warmup} of schedule.warmup_steps: the learning rate comes to "
                 f"{total / warmup:.0%} of its full value")  # fmt: skip
