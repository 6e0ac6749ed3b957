"""Trains a model in a run folder, which holds its checkpoints, metrics and previews.

What only a run needs, Lightning and 40 modules of ours, is imported inside functions: `check` need not wait for it.
"""

import math
from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

from torch import nn

from nemo_vfm.core import log, ranks
from nemo_vfm.core.device import describe
from nemo_vfm.core.duration import Duration
from nemo_vfm.core.errors import DataError, NextPhase, UserError
from nemo_vfm.core.optional import GIVEN, needs_gpu, needs_packages
from nemo_vfm.core.precision import Precision
from nemo_vfm.core.storage import checkpoint_names
from nemo_vfm.core.types.batch import RequiresColumns
from nemo_vfm.core.types.encoders import Family
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.job import DevicePlan, Needs, Outcome, PhaseNeeds, Run, makes
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.core.types.task import Task
from nemo_vfm.core.types.training_data import HasTableRows, LightningData, ResumableData, TrainingData, sources_in
from nemo_vfm.parallel.engine.engine import Engine
from nemo_vfm.parallel.engine.torch_engine import TorchEngine
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.plan.sharding_spec import OptimizerFactory
from nemo_vfm.train.callbacks.callback import Callback, LightningCallback
from nemo_vfm.train.ema import EMA
from nemo_vfm.train.loop import Loop
from nemo_vfm.train.mock_data import MockData, mocked
from nemo_vfm.train.optim import Constant, WarmupCosine
from nemo_vfm.train.phases import InPhases, PhaseSpan, at, data_of
from nemo_vfm.train.state.skip import NOTHING, Skip
from nemo_vfm.train.state.slots import LightningLogger, LoggerSource, Schedule
from nemo_vfm.train.warm_start import Weights

if TYPE_CHECKING:
    from nemo_vfm.core.types.held_weights import ResidentWeights
    from nemo_vfm.train.state.train_state import TrainState

_PROMISE = "Ctrl-C: the run ends after this step, with a checkpoint; press it again to end at once, without one"
_COMPARED = ("loss", "val_loss", "val_perplexity", "val_auc", "val_normalised_entropy")
K = TypeVar("K")


@needs_gpu()
@needs_packages("diffusers", "transformers", where={"random_base": GIVEN})
@makes("checkpoints", "metrics.jsonl", "predictions.parquet", "samples", "tensorboard", "validation.json", "mfu.json")
class Train:
    """Trains a model until `loop.duration`, killed and resumed as often as need be.

    Args:
        model: builds the model; called once, with the initial weights a function of the run's seed.
        data: where batches come from; a LightningDataModule may give them, too.
        task: what is learned.
        optimizer: builds the optimizer over the parameters; or one for each child of the model, by the child's name:
            a step is then one turn of each, in this order, for a `task` with `turn_losses`.
        schedule: how the learning rate moves.
        loop: how long it lasts, in which phases, and when it is saved and validated.
        weights: what it begins with, and which weights are trained.
        callbacks: what else happens at steps, by name, in order: ours, or Lightning's. An `EMA` keeps a running average
            of the weights, and a `Skip` leaves samples and steps out; there is one of each at most.
        loggers: where metrics go in addition to metrics.jsonl, by name: ours, or Lightning's under `--trust`.
        engine: what carries the plan out.
        parallel: how many devices share the work, and how.
        precision: of the arithmetic.
        base: folder of a pretrained pipeline, which other keys of the recipe refer to as ${base}.
        random_base: family of the tiny random pipeline to write to `base` where that is inside the run folder, as under
            `--overlay smoke`: it lets you try a recipe without weights.
        mock_data: learn from made-up samples of the shapes that model and task read, and read none of the data's files;
            None learns from the data. `data=mock` on the command line sets it.
    """

    def __init__(
        self, *, model: Factory[[], nn.Module], data: TrainingData | LightningData, task: Task,
        optimizer: OptimizerFactory | Mapping[str, OptimizerFactory], schedule: Schedule = Constant(), loop: Loop,
        weights: Weights = Weights(),
        callbacks: Mapping[str, Callback | LightningCallback | EMA | Skip] | None = None,
        loggers: Mapping[str, LoggerSource | LightningLogger] | None = None, engine: Engine = TorchEngine(),
        parallel: ParallelPlan = ParallelPlan(), precision: Precision = Precision(), base: Path | None = None,
        random_base: Family | None = None, mock_data: MockData | None = None,
    ) -> None:  # fmt: skip
        if mock_data is not None:
            data = mocked(data, mock_data, model, task)
        if not isinstance(data, TrainingData):
            from nemo_vfm.data.loader.lightning_batches import LightningBatches

            data = LightningBatches(data)
        if isinstance(optimizer, Mapping) and not optimizer:
            raise ValueError("optimizer is empty; give one, or one for each child of the model, by the child's name")
        loop.require(data, task)
        if isinstance(data, HasTableRows):
            from nemo_vfm.models.recommenders.table_choice import SizedModel

            model = SizedModel(model, data)
        self.model = weights.model_factory(model)
        self.data, self.task, self.optimizer, self.schedule = data, task, optimizer, schedule
        self.loop, self.weights, self.phases = loop, weights, loop.spans(data, parallel)
        self.engine, self.parallel, self.precision = engine, parallel, precision
        self.base, self.random_base = base, random_base
        given = dict(callbacks or {})
        self.ema, self.skip = _only(EMA, given), _only(Skip, given) or NOTHING
        self.callbacks = {name: one for name, one in given.items() if not isinstance(one, EMA | Skip)}
        self.loggers = dict(loggers or {})

    def run(self, run: Run) -> Outcome:
        """Train; resume from the newest whole checkpoint where the folder has one.

        Raises:
            NextPhase: the rest is for another number of devices.
        """
        from nemo_vfm.models.convert.video.random_pipeline import prepare_base

        prepare_base(self.base, self.random_base, run.folder)
        run.folder.mkdir(parents=True, exist_ok=True)
        if not self.phases:
            return _train(self, run)
        for phase in self.phases[self.phases.index(self._phase_now(run.folder)) :]:
            if phase.plan.world != ranks.count():
                raise NextPhase(f"phase {phase.name} is for {phase.plan.world} devices, but there are "
                                f"{ranks.count()}: run the same command on {phase.plan.world} devices to resume in "
                                f"{run.folder}")  # fmt: skip
            if len(self.phases) > 1:
                log.info(f"phase {phase.name}: steps {phase.first + 1} to {phase.end}")
            here = copy(self)  # this training up to the end of the phase
            here.phases, here.parallel, here.schedule = [], phase.plan, InPhases(self.phases, self.schedule)
            here.data = data_of(self.data, self.phases, phase, run.seed)
            here.loop = replace(self.loop, duration=Duration(phase.end, "steps"), phases=None)
            outcome = _train(here, run)
            if outcome.figures["steps"] < phase.end:
                break  # a callback wished for an end
        return outcome

    def _phase_now(self, folder: Path) -> PhaseSpan:
        """The phase of the next step."""
        from nemo_vfm.parallel.checkpoint.checkpoint_folder import list_checkpoints

        done = [checkpoint_names.step_of(path.name) for path in list_checkpoints(folder / "checkpoints")]
        return at(self.phases, max(done, default=0))

    def needs(self, *, num_gpus: int | None = None, folder: Path | None = None) -> Needs:
        """See `HasNeeds`."""
        plans = [one.plan for one in self.phases] or [self.parallel]
        widest = max(plans, key=lambda plan: plan.world)
        now = self._phase_now(folder).plan if folder is not None and self.phases else widest
        phases = tuple(PhaseNeeds(one.name, one.plan.world, one.plan.degrees()) for one in self.phases)
        plan = None if num_gpus is None else self.plan_for(num_gpus)
        engine, degrees = self.engine.name(), widest.degrees()
        return Needs(ranks=now.world, phases=phases, degrees=degrees, engine=engine, plannable=True, plan=plan)

    def data_at(self, folder: Path, index: int, seed: int) -> tuple[TrainingData, int]:
        """The data of a run, started for global batch `index`, and the seed that this batch depends on.

        Raises:
            UserError: the batch was made of samples that the recipe no longer names.
        """
        from nemo_vfm.parallel.checkpoint import checkpoint_manifest
        from nemo_vfm.parallel.checkpoint.checkpoint_folder import list_checkpoints
        from nemo_vfm.train.state.data_position import data_at, reading_of

        phase = at(self.phases, index) if self.phases else None
        data = self.data if phase is None else data_of(self.data, self.phases, phase, seed)
        data.start(seed=seed, first_batch=max(index, data.begins() if isinstance(data, ResumableData) else 0))
        if not isinstance(data, ResumableData) or not (saved := list_checkpoints(folder / "checkpoints")):
            return data, seed
        manifest = checkpoint_manifest.read(saved[-1])
        found, seed = data_at(data, reading_of(manifest["state"]), manifest["step"], index, seed)
        found.start(seed=seed, first_batch=index)
        return found, seed

    def require(self, num_ranks: int) -> None:
        """See `MultiRankJob`: some phase must be for so many, and its ranks must be able to share the batches."""
        plans = [phase.plan for phase in self.phases] or [self.parallel]
        next((plan for plan in plans if plan.world == num_ranks), plans[0]).require(num_ranks)
        from nemo_vfm.train.even_batches import require_even

        require_even(self.data, self.parallel, self.phases)

    def plan_for(self, num_gpus: int) -> DevicePlan:
        """The engine's plan and the running average, of the phase for so many, if one is."""
        layouts = [phase.plan for phase in self.phases if phase.plan.world == num_gpus] or [self.parallel]
        plan = self.engine.plan_for(num_gpus, layouts[0], self.model, self.optimizer)
        average = {"running average": plan.state_bytes["weights"]} if self.ema is not None else {}
        held = self.held_beside()
        beside = {held.kinds: held.num_bytes} if held.weights else {}
        notes = (*plan.notes, *held.notes(), *map(str, self.phases))
        return replace(plan, state_bytes={**plan.state_bytes, **average, **beside}, notes=notes)

    def held_beside(self) -> "ResidentWeights":
        """The networks of the task and of callbacks, and frozen models, on each GPU beside the model."""
        from nemo_vfm.core.types.held_weights import held_below
        from nemo_vfm.data.sources.cached_latents import gives_latents
        from nemo_vfm.train.frozen_models import without_memory

        parts: dict[str, object] = {f"callbacks.{name}": one for name, one in self.callbacks.items()}
        if not gives_latents(self.data):
            parts["task"] = self.task
        elif getattr(self.task, "text_dropout", 0):  # latents come with their texts, but for the empty one
            try:
                parts["task.text_encoder"] = getattr(self.task, "text_encoder", None)
            except (UserError, DataError):  # its folder is given later
                parts["task"] = self.task
        for name, one in self.weights.frozen.items():
            parts[f"weights.frozen.{name}"] = without_memory(one, self.precision)
        return held_below(parts)


def _train(job: Train, run: Run) -> Outcome:
    """Train until the length of the job's loop; resume from the newest whole checkpoint where the folder has one."""
    fit = start(job, run)
    if fit.finished:
        if ranks.is_first():
            job.loop.checkpoint.copy(fit.checkpoints, must=True)
        return Outcome(f"already trained for {fit.step} steps", {"steps": fit.step}, did_nothing=True)
    # Lightning's import takes 5 s, which a finished run need not wait.
    from nemo_vfm.core import preemption
    from nemo_vfm.data.loader.lightning_data import BatchModule
    from nemo_vfm.train.callbacks.metrics_log import WriteMetrics
    from nemo_vfm.train.callbacks.progress_bar import ShowProgress
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


def start(job: Train, run: Run) -> "TrainState":
    """Build the model, begin from the seed or the newest checkpoint, and start the data."""
    from nemo_vfm.core.types.training_data import HasColumns
    from nemo_vfm.data.loader.listed_data import ListedData
    from nemo_vfm.parallel.checkpoint import checkpoint
    from nemo_vfm.parallel.checkpoint.checkpoint_ranks import gather_group, run_on_ranks
    from nemo_vfm.parallel.engine.step_runner import EngineInputs
    from nemo_vfm.parallel.plan.static_memory import on_meta
    from nemo_vfm.parallel.ranks.process_group import first_says
    from nemo_vfm.sparse.tables.fused_tables import count_rows
    from nemo_vfm.train.frozen_models import load_frozen
    from nemo_vfm.train.member_use import unusable_members
    from nemo_vfm.train.state.train_state import TrainState

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
    frozen = load_frozen(job, None if saved is None else saved.state)
    runner = job.engine.start(EngineInputs(job.model, job.task, job.optimizer, job.precision, run.seed, job.parallel))
    model, adapters = runner.model, job.weights.adapters
    started_from = job.weights.load_into(model, saved)
    if job.ema is not None:
        job.ema.start(model)
    fit = TrainState(
        run, runner, job.task, job.data, job.schedule, job.ema, total_steps=None, plan=job.parallel,
        origin=first_says(uuid4().hex), skip=job.skip, started_from=started_from,
        adapters=None if adapters is None else adapters.state(), frozen=frozen,
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


def _start_data(job: Train, fit: "TrainState", state: Json) -> None:
    """If the recipe's batches differ from those of earlier steps, resume at the sample, not at the step."""
    from nemo_vfm.core.types.training_data import HasVocab
    from nemo_vfm.data.loader.listed_data import ListedData
    from nemo_vfm.parallel.plan.mesh import group_along
    from nemo_vfm.parallel.ranks.gather import Gather
    from nemo_vfm.train.state.data_position import reading_of, resume

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


def _begin_schedule(job: Train, fit: "TrainState", steps_before: int | None) -> None:
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
            log.warn(f"the schedule depends on the length: it was for {steps_before} steps until step {fit.step} and "
                     f"is for {total} from now on; one run of {total} steps would give different weights")  # fmt: skip
    warmup = schedule.warmup_steps if isinstance(schedule, (Constant, WarmupCosine)) else 0
    if total < warmup:  # no warning: a smoke run is meant so
        log.info(f"{total} steps end within the {warmup} of schedule.warmup_steps: the learning rate comes to "
                 f"{total / warmup:.0%} of its full value")  # fmt: skip


def _only(kind: type[K], callbacks: Mapping[str, object]) -> K | None:
    """The one callback of a kind that the training itself needs, wherever it stands among the others."""
    found = {name: one for name, one in callbacks.items() if isinstance(one, kind)}
    if len(found) > 1:
        raise ValueError(f"callbacks {' and '.join(found)} are {kind.__name__}s, and a training has one")
    return next(iter(found.values()), None)
