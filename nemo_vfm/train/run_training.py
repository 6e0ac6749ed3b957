"""Carries a training out: brings model, data and state together, resumes, and hands the steps to Lightning."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

from torch import nn

from nemo_vfm.core import log, preemption, ranks
from nemo_vfm.core.device import describe
from nemo_vfm.core.duration import Duration
from nemo_vfm.core.errors import NextPhase, UserError
from nemo_vfm.core.precision import Precision
from nemo_vfm.core.storage import checkpoint_names
from nemo_vfm.core.types.batch import RequiresColumns
from nemo_vfm.core.types.component import no_component
from nemo_vfm.core.types.encoders import Family
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.job import Outcome, Run
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.core.types.task import Task
from nemo_vfm.core.types.training_data import (
    HasColumns,
    HasVocab,
    ResumableData,
    TrainingData,
)
from nemo_vfm.models.convert.video.random_pipeline import prepare_base
from nemo_vfm.parallel.checkpoint import checkpoint, checkpoint_manifest
from nemo_vfm.parallel.checkpoint.checkpoint_folder import existing
from nemo_vfm.parallel.checkpoint.checkpoint_ranks import joined, together
from nemo_vfm.parallel.engine.engine import Engine
from nemo_vfm.parallel.engine.step_runner import EngineInputs
from nemo_vfm.parallel.plan.mesh import group_along
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.plan.sharding_spec import OptimizerFactory
from nemo_vfm.parallel.plan.static_memory import on_meta
from nemo_vfm.parallel.ranks.gather import GatherGroup, GroupGather
from nemo_vfm.parallel.ranks.process_group import first_says
from nemo_vfm.sparse.tables.fused_tables import count_rows
from nemo_vfm.train.callbacks.callback import Callback, LightningCallback
from nemo_vfm.train.callbacks.progress_bar import ShowProgress
from nemo_vfm.train.ema import EMA
from nemo_vfm.train.loop import Loop
from nemo_vfm.train.optim import Constant, WarmupCosine
from nemo_vfm.train.phases import InPhases, Stretch, at, data_of
from nemo_vfm.train.state.data_position import data_at, reading_of, resumed
from nemo_vfm.train.state.skip import Skip
from nemo_vfm.train.state.slots import LightningLogger, LoggerSource, Schedule
from nemo_vfm.train.state.train_state import TrainState
from nemo_vfm.train.warm_start import Weights

_PROMISE = "Ctrl-C: the run ends after this step, with a checkpoint; press it again to end at once, without one"


@no_component
@dataclass(frozen=True)
class Training:
    """The parts of a training; see `Train` for what each is."""

    model: Factory[[], nn.Module]
    data: TrainingData
    task: Task
    optimizer: OptimizerFactory
    schedule: Schedule
    loop: Loop
    weights: Weights
    phases: Sequence[Stretch]
    callbacks: Mapping[str, Callback | LightningCallback]
    loggers: Mapping[str, LoggerSource | LightningLogger]
    ema: EMA | None
    skip: Skip
    engine: Engine
    parallel: ParallelPlan
    precision: Precision
    base: Path | None
    random_base: Family | None

    def run(self, run: Run) -> Outcome:
        """Train; resume from the newest whole checkpoint where the folder has one.

        Raises:
            NextPhase: the rest is for another number of devices.
        """
        prepare_base(self.base, self.random_base, run.folder)
        run.folder.mkdir(parents=True, exist_ok=True)
        if not self.phases:
            return self._run(run)
        for phase in self.phases[self.phases.index(self.phase_now(run.folder)) :]:
            if phase.plan.world != ranks.count():
                raise NextPhase(f"phase {phase.name} is for {phase.plan.world} devices, but there are "
                                f"{ranks.count()}: run the same command on {phase.plan.world} devices to resume in "
                                f"{run.folder}")  # fmt: skip
            if len(self.phases) > 1:
                log.info(f"phase {phase.name}: steps {phase.first + 1} to {phase.end}")
            here = replace(
                self, phases=[], parallel=phase.plan, data=data_of(self.data, self.phases, phase, run.seed),
                loop=replace(self.loop, duration=Duration(phase.end, "steps"), phases=None),
                schedule=InPhases(self.phases, self.schedule),
            )  # this training up to the end of the phase  # fmt: skip
            outcome = here._run(run)
            if outcome.figures["steps"] < phase.end:
                break  # a callback wished for an end
        return outcome

    def phase_now(self, folder: Path) -> Stretch:
        """The phase of the next step."""
        done = [checkpoint_names.step_of(path.name) for path in existing(folder / "checkpoints")]
        return at(self.phases, max(done, default=0))

    def _run(self, run: Run) -> Outcome:
        fit = self.start(run)
        if fit.finished:
            self.loop.checkpoint.copy(fit)
            return Outcome(f"already trained for {fit.step} steps", {"steps": fit.step}, did_nothing=True)
        # Lightning's import takes 5 s, which a finished run need not wait.
        from nemo_vfm.data.loader.lightning_data import BatchModule
        from nemo_vfm.train.callbacks.metrics_log import WriteMetrics
        from nemo_vfm.train.loggers.guard import open_all
        from nemo_vfm.train.loggers.run_logger import RunLogger
        from nemo_vfm.train.module import TrainModule
        from nemo_vfm.train.trainer import has_bar, quiet_lightning, trainer

        with preemption.heeded(_PROMISE):
            quiet_lightning()
            sources = self.loggers if ranks.is_first() else {}
            loggers = open_all(sources, run.folder, run.settings, goes_on=fit.step > 0)
            validation = {} if self.loop.validation is None else {"validation": self.loop.validation}
            bar = {} if has_bar(self.callbacks) else {"progress": ShowProgress()}
            # Metrics come before the checkpoint: a resume drops the lines after it, and must not miss any before.
            ours = {"metrics": WriteMetrics(loggers), "checkpoint": self.loop.checkpoint, **bar}
            fit.start_clock()
            loop = trainer(fit, {**validation, **self.callbacks}, ours, RunLogger(loggers))
            loop.fit(TrainModule(fit), datamodule=BatchModule(fit.data))
        if fit.preempted and not fit.finished:
            raise preemption.stopped(fit.stop, f"at step {fit.step}; its checkpoint is in {fit.checkpoints}")
        early = " (a callback ended it early)" if fit.ended_early and not fit.finished else ""
        return Outcome(
            f"trained {fit.step} steps{early}; weights in {fit.checkpoints}",
            {"steps": fit.step, "training_s": fit.elapsed_s, **_losses(fit, self.loop.checkpoint.keep.metric)},
        )

    def data_at(self, folder: Path, index: int, seed: int) -> tuple[TrainingData, int]:
        """The data of a run, started for global batch `index`, and the seed that this batch depends on.

        Raises:
            UserError: the batch was made of samples that the recipe no longer names.
        """
        phase = at(self.phases, index) if self.phases else None
        data = self.data if phase is None else data_of(self.data, self.phases, phase, seed)
        data.start(seed=seed, first_batch=max(index, data.begins() if isinstance(data, ResumableData) else 0))
        if not isinstance(data, ResumableData) or not (saved := existing(folder / "checkpoints")):
            return data, seed
        manifest = checkpoint_manifest.read(saved[-1])
        found, seed = data_at(data, reading_of(manifest["state"]), manifest["step"], index, seed)
        found.start(seed=seed, first_batch=index)
        return found, seed

    def start(self, run: Run) -> TrainState:
        """Build the model, begin from the seed or the newest checkpoint, and start the data."""
        if isinstance(self.data, HasColumns):
            # A label or feature that the data lacks is found before tables of many GB are drawn.
            columns, model = self.data.no_samples(), on_meta(self.model)
            self.task.prepare(columns, seed=0, training=True)
            if isinstance(model, RequiresColumns):
                model.require_columns(columns)
        saved = self._newest(run)
        runner = self.engine.start(
            EngineInputs(self.model, self.task, self.optimizer, self.precision, run.seed, self.parallel)
        )
        model = runner.model
        started_from = self.weights.load_into(model, saved)
        if self.ema is not None:
            self.ema.start(model)
        fit = TrainState(run, runner, self.task, self.data, self.schedule, self.ema, total_steps=None,
                  plan=self.parallel, origin=first_says(uuid4().hex), skip=self.skip,
                  stateful={name: one for name, one in self.callbacks.items() if isinstance(one, LightningCallback)},
                  )  # fmt: skip
        fit.started_from = started_from
        fit.adapters = None if self.weights.adapters is None else self.weights.adapters.state()
        if saved is not None:
            fit.load(saved)
            log.info(f"resuming at step {fit.step} from {saved.path}")
            self.skip.say_what_differs(fit.step, saved.state.get("skip"))
            self.weights.say_what_differs(fit.step, saved.state.get("adapters"))
        alone = self.parallel.world == self.parallel.data
        if not alone and isinstance(self.data, GatherGroup) and self.data.fetches_together:
            # A group of its own on the CPU, since a thread uses it beside the step; every rank must make it.
            self.data.share_with(GroupGather(group_along(self.parallel, ("pipeline", "context", "tensor"), "gloo")))
        self._start_data(fit, None if saved is None else saved.state)
        self._require_words(model)
        fit.total_steps, fit.limit_s = self.loop.length(fit.data)
        fit.set_lr()
        if saved is not None:
            self._say_where_the_schedule_bends(fit, saved.state)
        warmup = self.schedule.warmup_steps if isinstance(self.schedule, (Constant, WarmupCosine)) else 0
        if fit.total_steps is not None and fit.total_steps < warmup:  # no warning: a smoke run is meant so
            log.info(f"{fit.total_steps} steps end within the {warmup} of schedule.warmup_steps: the learning rate "
                     f"comes to {fit.total_steps / warmup:.0%} of its full value")  # fmt: skip
        checkpoint.require_room(run.folder, 2 * sum(p.numel() * p.element_size() for p in model.parameters()))
        dtype, reason = self.precision.resolved()
        fp8 = f", large linears in FP8 by {self.precision.fp8.recipe}" if self.precision.fp8 else ""
        log.info(f"{_size(model)}, {str(dtype).removeprefix('torch.')} ({reason}){fp8}, {describe()}")
        return fit

    def _start_data(self, fit: TrainState, state: Json) -> None:
        """If the recipe's batches differ from those of earlier steps, resume at the sample, not at the step."""
        here = {"seed": fit.run.seed, "first_batch": fit.step, "rank": fit.data_rank, "num_ranks": self.parallel.data}
        self.data.start(**here)
        if isinstance(self.data, ResumableData):
            fit.data, fit.reading = resumed(self.data, reading_of(state), fit.step, fit.run.seed)
        if fit.data is not self.data:
            fit.data.start(**here)

    def _require_words(self, model: nn.Module) -> None:
        """A token beyond the model's table is, on a GPU, an assertion that names neither."""
        data = self.data
        rows = getattr(model, "vocab", None)
        if isinstance(data, HasVocab) and isinstance(rows, int) and rows < (words := data.vocab_size()):
            raise UserError(f"the data's tokenizer has {words:,} tokens, but the model has a vocabulary "
            f"of {rows:,}; give "
                            f"model.vocab={words} or more, and a multiple of 128 x parallel.tensor")  # fmt: skip

    def _newest(self, run: Run) -> checkpoint.Checkpoint | None:
        """The newest checkpoint that passes verification; each rank hashes its share of the bytes."""
        folder, everyone = run.folder / "checkpoints", joined()
        # A step's part of the recipe says neither seed nor data: both must be the same for a copy of this run.
        same = {"seed_and_steps_above": run.before, **run.settings} if run.before else run.settings
        together(everyone, lambda: self.loop.checkpoint.begin(folder, same) if ranks.is_first() else None)
        return checkpoint.newest(folder, everyone)

    def _say_where_the_schedule_bends(self, fit: TrainState, state: Json) -> None:
        """A run that is extended equals one long run, unless its learning rates were made for the shorter length."""
        before = state.get("total_steps")
        if before is None or fit.total_steps is None or before == fit.total_steps or fit.finished:
            return
        looked = range(0, fit.step, max(1, fit.step // 100))
        if any(self.schedule.factor(n, before) != self.schedule.factor(n, fit.total_steps) for n in looked):
            log.warn(
                f"the schedule depends on the length: it was for {before} steps until step {fit.step} and is for "
                f"{fit.total_steps} from now on; one run of {fit.total_steps} steps would give different weights"
            )


def _losses(fit: TrainState, metric: str) -> dict[str, float]:
    """What the last step measured, the recipe's own metric too: a table of several runs compares them by it."""
    return {
        name: fit.metrics[name]
        for name in dict.fromkeys(("loss", "val_loss", "val_perplexity", "val_auc", "val_normalised_entropy", metric))
        if math.isfinite(fit.metrics.get(name, math.nan))
    }


def _size(model: nn.Module) -> str:
    """How many numbers a model learns, those in rows of tables apart."""
    tables, numbers = count_rows(model)
    rows = f", {numbers / 1e6:.1f} M in {tables} tables" if tables else ""
    return f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters{rows}"
