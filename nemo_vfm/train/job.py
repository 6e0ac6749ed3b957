"""Trains a model in a run folder, which holds its checkpoints, metrics and previews."""

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Self
from uuid import uuid4

import torch
from torch import nn

from nemo_vfm.core import log, preemption, ranks
from nemo_vfm.core.device import describe
from nemo_vfm.core.duration import Duration
from nemo_vfm.core.errors import DataError, NextPhase, UserError
from nemo_vfm.core.optional import GIVEN, needs_gpu, needs_packages
from nemo_vfm.core.precision import Precision
from nemo_vfm.core.storage import checkpoint_names
from nemo_vfm.core.storage.uri import Address, Place
from nemo_vfm.core.types.batch import RequiresColumns
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.held_weights import HELD, Held, held_below
from nemo_vfm.core.types.job import DevicePlan, Needs, Outcome, PhaseNeeds, Run
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.core.types.task import Task
from nemo_vfm.core.types.training_data import (
    HasColumns,
    HasTableRows,
    HasVocab,
    ResumableData,
    ResumablePhases,
    TrainingData,
)
from nemo_vfm.data.loader.lightning_batches import LightningBatches, LightningData
from nemo_vfm.models.adapters.low_rank_adapter import AdaptedModel, LowRankAdapter, begin
from nemo_vfm.models.convert.video.random_pipeline import Family, prepare_base
from nemo_vfm.models.recommenders.table_choice import SizedModel
from nemo_vfm.parallel.checkpoint import checkpoint, checkpoint_manifest
from nemo_vfm.parallel.checkpoint.checkpoint_folder import existing
from nemo_vfm.parallel.checkpoint.checkpoint_ranks import joined, together
from nemo_vfm.parallel.engine.engine import Engine, Params
from nemo_vfm.parallel.engine.engine_inputs import EngineInputs
from nemo_vfm.parallel.engine.torch_engine import TorchEngine
from nemo_vfm.parallel.plan.mesh import same_slice
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.plan.static_memory import on_meta
from nemo_vfm.parallel.ranks.consensus import first_says
from nemo_vfm.parallel.ranks.gather import GatherGroup
from nemo_vfm.sparse.tables.fused_tables import count_rows
from nemo_vfm.train.callbacks.callback import Callback, LightningCallback
from nemo_vfm.train.callbacks.checkpointing import SaveCheckpoints
from nemo_vfm.train.callbacks.progress_bar import ShowProgress
from nemo_vfm.train.callbacks.validation import Validate
from nemo_vfm.train.data_position import data_at, reading_of, resumed, steps_until
from nemo_vfm.train.ema import EMA
from nemo_vfm.train.even_batches import require_even
from nemo_vfm.train.loggers import LightningLogger, LoggerSource
from nemo_vfm.train.optim import Constant, Schedule, WarmupCosine
from nemo_vfm.train.phases import InPhases, Phase, Stretch, at, data_of, stretches
from nemo_vfm.train.skip import Skip
from nemo_vfm.train.train_state import TrainState
from nemo_vfm.train.warm_start import WarmStart

_PROMISE = "Ctrl-C: the run ends after this step, with a checkpoint; press it again to end at once, without one"


@needs_gpu()
@needs_packages("diffusers", "transformers", where={"random_base": GIVEN})
class Train:
    """Trains a model until `duration`, killed and resumed as often as need be.

    Args:
        model: builds the model; called once, with the initial weights a function of the run's seed.
        data: where batches come from; a LightningDataModule may give them, too.
        task: what is learned.
        optimizer: builds the optimizer over the parameters.
        duration: length of the whole run, such as "400 steps", "2 epochs" or, of text, "3e9 tokens"; "90 s" ends by
            the clock, and such a run is not reproducible. None where there are phases; a number of steps there ends
            them early, to try the first ones.
        schedule: how the learning rate moves.
        parallel: how many devices share the work, and how.
        engine: what carries the plan out.
        precision: of the arithmetic.
        ema: running average of the weights; None keeps none.
        checkpoint: when checkpoints are written.
        validation: when the held-out loss is measured; None never.
        start_from: another run whose weights this one begins with: a run folder or a checkpoint, or a mapping of path,
            weights and may_differ; None draws them from the seed.
        phases: stretches that differ in devices, batches, blend or learning rate, by name, in order; None is one.
        skip: samples and steps that are left out, by name; everything else comes as it would without this.
        callbacks: what else happens after steps, by name, in order: ours, or Lightning's.
        loggers: where metrics go in addition to metrics.jsonl, by name: ours, or Lightning's under `--trust`.
        base: folder of a pretrained pipeline, which other keys of the recipe refer to as ${base}.
        random_base: family of the tiny random pipeline to write to `base` where that is inside the run folder, as under
            `--overlay smoke`: it lets you try a recipe without weights.
        adapters: low-rank adapters to train instead of the model's weights, which stay those of `start_from`. Only the
            adapters have gradients, optimizer state, a running average and checkpoints. None trains the model.
    """

    def __init__(
        self, *, model: Factory[[], nn.Module], data: TrainingData | LightningData, task: Task,
        optimizer: Factory[[Params], torch.optim.Optimizer], duration: Duration | None = None,
        schedule: Schedule = Constant(),
        parallel: ParallelPlan = ParallelPlan(),
        engine: Engine = TorchEngine(),
        precision: Precision = Precision(), ema: EMA | None = None,
        checkpoint: SaveCheckpoints, validation: Validate | None = None,
        start_from: Place | WarmStart | None = None, phases: Mapping[str, Phase] | None = None,
        skip: Skip = Skip(),
        callbacks: Mapping[str, Callback | LightningCallback] | None = None,
        loggers: Mapping[str, LoggerSource | LightningLogger] | None = None, base: Path | None = None,
        random_base: Family | None = None, adapters: LowRankAdapter | None = None,
    ) -> None:  # fmt: skip
        data = data if isinstance(data, TrainingData) else LightningBatches(data)
        if duration is None and not phases:
            raise ValueError("give a duration, or phases with a duration each")
        if phases and duration is not None and duration.unit != "steps":
            raise ValueError(f"each phase has a duration, and the total can be limited only in steps, not {duration}")
        if duration is not None and duration.unit == "tokens" and not isinstance(data, ResumablePhases):
            raise ValueError(f"a duration in tokens ({duration}) has no meaning for {type(data).__name__}; "
                             f"give steps, epochs or samples")  # fmt: skip
        if checkpoint.keep.best and checkpoint.keep.metric.startswith("val_") and validation is None:
            raise ValueError(f"keep_best chooses by {checkpoint.keep.metric}, which is not measured: set validation")
        if validation is not None:
            validation.require(data, task)
        if adapters is not None and start_from is None:
            raise ValueError("adapters do not train the model's own weights, so these must be pretrained: set "
                             "start_from")  # fmt: skip
        model = SizedModel(model, data) if isinstance(data, HasTableRows) else model
        self.model: Factory[[], nn.Module] = model if adapters is None else AdaptedModel(model, adapters)
        self.adapters = adapters
        self.data, self.task, self.optimizer, self.duration = data, task, optimizer, duration
        self.phases = stretches(phases, data, parallel, duration) if phases else []
        self.schedule, self.engine = schedule, engine
        self.parallel, self.skip = parallel, skip
        self.precision, self.ema, self.checkpoint, self.validation = precision, ema, checkpoint, validation
        self.start_from = WarmStart(path=start_from) if isinstance(start_from, Path | Address) else start_from
        self.callbacks, self.loggers, self.base = dict(callbacks or {}), dict(loggers or {}), base
        self.random_base: Family | None = random_base

    def run(self, run: Run) -> Outcome:
        """Train; resume from the newest whole checkpoint where the folder has one.

        Raises:
            NextPhase: the rest is for another number of devices.
        """
        prepare_base(self.base, self.random_base, run.folder)
        run.folder.mkdir(parents=True, exist_ok=True)
        if not self.phases:
            return self._run(run)
        for phase in self.phases[self.phases.index(self._now(run.folder)) :]:
            if phase.plan.world != ranks.count():
                raise NextPhase(f"phase {phase.name} is for {phase.plan.world} devices, but there are "
                                f"{ranks.count()}: run the same command on {phase.plan.world} devices to resume in "
                                f"{run.folder}")  # fmt: skip
            outcome = self._in(phase, run.seed)._run(run)
            if outcome.figures["steps"] < phase.end:
                break  # a callback wished for an end
        return outcome

    def _now(self, folder: Path) -> Stretch:
        done = [checkpoint_names.step_of(path.name) for path in existing(folder / "checkpoints")]
        return at(self.phases, max(done, default=0))

    def _in(self, phase: Stretch, seed: int) -> Self:
        """This training up to the end of a phase."""
        if len(self.phases) > 1:
            log.info(f"phase {phase.name}: steps {phase.first + 1} to {phase.end}")
        here = copy.copy(self)
        here.phases, here.parallel = [], phase.plan
        here.duration = Duration(phase.end, "steps")
        here.data = data_of(self.data, self.phases, phase, seed)
        here.schedule = InPhases(self.phases, self.schedule)
        return here

    def _run(self, run: Run) -> Outcome:
        fit = self._start(run)
        if fit.finished:
            self.checkpoint.copy(fit)
            return Outcome(f"already trained for {fit.step} steps", {"steps": fit.step}, did_nothing=True)
        with preemption.heeded(_PROMISE):
            self._loop(fit)
        if fit.preempted and not fit.finished:
            raise preemption.stopped(fit.stop, f"at step {fit.step}; its checkpoint is in {fit.checkpoints}")
        early = " (a callback ended it early)" if fit.ended_early and not fit.finished else ""
        return Outcome(
            f"trained {fit.step} steps{early}; weights in {fit.checkpoints}",
            {"steps": fit.step, "training_s": fit.elapsed_s, **_losses(fit, self.checkpoint.keep.metric)},
        )

    def needs(self, *, num_gpus: int | None = None, folder: Path | None = None) -> Needs:
        """See `HasNeeds`."""
        plans = [one.plan for one in self.phases] or [self.parallel]
        widest = max(plans, key=lambda plan: plan.world)
        now = self._now(folder).plan if folder is not None and self.phases else widest
        phases = tuple(PhaseNeeds(one.name, one.plan.world, one.plan.degrees()) for one in self.phases)
        plan = None if num_gpus is None else self.plan_for(num_gpus)
        return Needs(ranks=now.world, phases=phases, degrees=widest.degrees(), engine=self.engine.name(), plan=plan)

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

    def require(self, num_ranks: int) -> None:
        """See `MultiRankJob`: some phase must be for so many, and its ranks must be able to share the batches."""
        plans = [phase.plan for phase in self.phases] or [self.parallel]
        next((plan for plan in plans if plan.world == num_ranks), plans[0]).require(num_ranks)
        self.require_even()

    def require_even(self) -> None:
        """Refuse batches and sequences that ranks cannot share. Layouts may be tried with others, so this comes late.

        Raises:
            PartRefused: at the place of the first.
        """
        require_even(self.data, self.parallel, self.phases)

    def plan_for(self, num_gpus: int) -> DevicePlan:
        """The engine's plan and the running average, of the phase for so many, if one is."""
        layouts = [phase.plan for phase in self.phases if phase.plan.world == num_gpus] or [self.parallel]
        plan = self.engine.plan_for(num_gpus, layouts[0], self.model, self.optimizer)
        average = {"running average": plan.state_bytes["weights"]} if self.ema is not None else {}
        held = self.held_beside()
        beside = {HELD: held.num_bytes} if held.weights else {}
        notes = (*plan.notes, *held.notes(), *map(str, self.phases))
        return replace(plan, state_bytes={**plan.state_bytes, **average, **beside}, notes=notes)

    def held_beside(self) -> Held:
        """The networks of the task and of callbacks, which stand on each GPU beside the model."""
        from nemo_vfm.data.sources.cached_latents import gives_latents

        parts: dict[str, object] = {f"callbacks.{name}": one for name, one in self.callbacks.items()}
        if not gives_latents(self.data):
            parts["task"] = self.task
        elif getattr(self.task, "text_dropout", 0):  # latents come with their texts, but for the empty one
            try:
                parts["task.text_encoder"] = getattr(self.task, "text_encoder", None)
            except (UserError, DataError):  # its folder is given later
                parts["task"] = self.task
        return held_below(parts)

    def _start(self, run: Run) -> TrainState:
        self._require_columns()
        saved = self._newest(run)
        runner = self.engine.start(
            EngineInputs(self.model, self.task, self.optimizer, self.precision, run.seed, self.parallel)
        )
        model = runner.model
        started_from = self._warm(model, saved)
        if self.ema is not None:
            self.ema.start(model)
        fit = TrainState(run, runner, self.task, self.data, self.schedule, self.ema, total_steps=None,
                  plan=self.parallel, origin=first_says(uuid4().hex), skip=self.skip,
                  stateful={name: one for name, one in self.callbacks.items() if isinstance(one, LightningCallback)},
                  )  # fmt: skip
        fit.started_from = started_from
        fit.adapters = None if self.adapters is None else self.adapters.state()
        if saved is not None:
            fit.load(saved)
            log.info(f"resuming at step {fit.step} from {saved.path}")
            self._say_what_was_not_left_out(fit, saved.state)
            self._say_what_adapters_were(fit, saved.state)
        self._fetch_together()
        self._start_data(fit, None if saved is None else saved.state)
        self._require_words(model)
        fit.total_steps, fit.limit_s = self._length(fit.data)
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

    def _warm(self, model: nn.Module, saved: checkpoint.Checkpoint | None) -> Json:
        """Load `start_from` into the model. A run with adapters loads its frozen weights at every start.

        Raises:
            UserError: the frozen weights differ from those this run began with.
        """
        if self.start_from is None or (saved is not None and self.adapters is None):
            return None
        source = self.start_from.load_into(model)
        if saved is None:
            begin(model)
        elif source["sha256"] != (before := (saved.state.get("started_from") or {}).get("sha256")):
            raise UserError(f"the adapters of this run were trained on weights of sha256 {str(before)[:12]}..., and "
                            f"{source['path']} has {source['sha256'][:12]}...; use the original weights")  # fmt: skip
        return source

    def _start_data(self, fit: TrainState, state: Json) -> None:
        """If the recipe's batches differ from those of earlier steps, resume at the sample, not at the step."""
        here = {"seed": fit.run.seed, "first_batch": fit.step, "rank": fit.data_rank, "num_ranks": self.parallel.data}
        self.data.start(**here)
        if isinstance(self.data, ResumableData):
            fit.data, fit.reading = resumed(self.data, reading_of(state), fit.step, fit.run.seed)
        if fit.data is not self.data:
            fit.data.start(**here)

    def _require_columns(self) -> None:
        """Find a label or feature that the data lacks before tables of many GB are drawn, not with the first batch."""
        if isinstance(self.data, HasColumns):
            columns, model = self.data.no_samples(), on_meta(self.model)
            self.task.prepare(columns, seed=0, training=True)
            if isinstance(model, RequiresColumns):
                model.require_columns(columns)

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
        together(everyone, lambda: self.checkpoint.begin(folder, same) if ranks.is_first() else None)
        return checkpoint.newest(folder, everyone)

    def _fetch_together(self) -> None:
        if isinstance(self.data, GatherGroup) and self.data.fetches_together and (peers := same_slice(self.parallel)):
            self.data.share_with(peers)

    def _say_what_was_not_left_out(self, fit: TrainState, state: Json) -> None:
        if difference := self.skip.differs_from(state.get("skip"), fit.step):
            log.warn(
                f"skip differs from what this run began with ({difference}), and {fit.step} steps are done: a run with "
                f"this skip from the start would have different weights"
            )

    def _say_what_adapters_were(self, fit: TrainState, state: Json) -> None:
        """Another alpha changes what the same matrices compute; another rank would have been refused before."""
        if self.adapters is not None and (difference := self.adapters.differs_from(state.get("adapters"))):
            log.warn(f"adapters differ from those of the {fit.step} steps before ({difference}): the network changes "
                     f"now, and a run with these from the start would have different weights")  # fmt: skip

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

    def _length(self, data: TrainingData) -> tuple[int | None, float | None]:
        """(steps, None) or (None, seconds)."""
        assert self.duration is not None
        amount, unit = self.duration.amount, self.duration.unit
        if unit in ("s", "h"):
            return None, amount * (3600 if unit == "h" else 1)
        if unit != "steps" and isinstance(data, ResumableData) and data.begins():
            return steps_until(data, self.duration), None
        if unit == "epochs":
            return Duration(amount * data.batches_per_epoch(), "steps").steps(), None
        return self.duration.steps(**({} if unit == "steps" else self._per_step())), None

    def _per_step(self) -> dict[str, float]:
        """What the data says; a stream that was never read to its end cannot."""
        if isinstance(self.data, ResumablePhases):
            return {"samples": self.data.samples_per_batch(), "tokens": self.data.tokens_per_sample()}
        return {"samples": self.data.num_train_samples() / self.data.batches_per_epoch()}

    def _loop(self, fit: TrainState) -> None:
        from nemo_vfm.data.loader.lightning_data import BatchModule
        from nemo_vfm.train.callbacks.metrics_log import WriteMetrics
        from nemo_vfm.train.loggers.guard import open_all
        from nemo_vfm.train.loggers.run_logger import RunLogger
        from nemo_vfm.train.module import TrainModule
        from nemo_vfm.train.trainer import has_bar, quiet_lightning, trainer

        quiet_lightning()
        sources = self.loggers if ranks.is_first() else {}
        loggers = open_all(sources, fit.run.folder, fit.run.settings, goes_on=fit.step > 0)
        validation = {} if self.validation is None else {"validation": self.validation}
        # Metrics are written before the checkpoint: a resume drops the lines after it, and must not miss any before.
        bar = {} if has_bar(self.callbacks) else {"progress": ShowProgress()}
        ours = {"metrics": WriteMetrics(loggers), "checkpoint": self.checkpoint, **bar}
        fit.start_clock()
        loop = trainer(fit, {**validation, **self.callbacks}, ours, RunLogger(loggers))
        loop.fit(TrainModule(fit), datamodule=BatchModule(fit.data))


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
