"""Trains a model in a run folder, which holds its checkpoints, metrics and previews."""

from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_vfm.core import log, ranks
from nemo_vfm.core.duration import Duration
from nemo_vfm.core.errors import DataError, NextPhase, UserError
from nemo_vfm.core.optional import GIVEN, needs_gpu, needs_packages
from nemo_vfm.core.storage import checkpoint_names
from nemo_vfm.core.types.job import DevicePlan, Needs, Outcome, PhaseNeeds, Run, makes
from nemo_vfm.core.types.training_data import ResumableData, TrainingData
from nemo_vfm.train.parts import TrainParts
from nemo_vfm.train.phases import InPhases, PhaseSpan, at, data_of

if TYPE_CHECKING:
    from nemo_vfm.core.types.held_weights import Held


@needs_gpu()
@needs_packages("diffusers", "transformers", where={"random_base": GIVEN})
@makes("checkpoints", "metrics.jsonl", "predictions.parquet", "samples", "tensorboard", "validation.json", "mfu.json")
class Train(TrainParts):
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

    def run(self, run: Run) -> Outcome:
        """Train; resume from the newest whole checkpoint where the folder has one.

        Raises:
            NextPhase: the rest is for another number of devices.
        """
        from nemo_vfm.models.convert.video.random_pipeline import prepare_base
        from nemo_vfm.train.run_training import train

        prepare_base(self.base, self.random_base, run.folder)
        run.folder.mkdir(parents=True, exist_ok=True)
        if not self.phases:
            return train(self, run)
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
            outcome = train(here, run)
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
        return Needs(ranks=now.world, phases=phases, degrees=widest.degrees(), engine=self.engine.name(), plan=plan)

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
        self.require_even()

    def require_even(self) -> None:
        """Refuse batches and sequences that ranks cannot share. Layouts may be tried with others, so this comes late.

        Raises:
            PartRefused: at the place of the first.
        """
        from nemo_vfm.train.even_batches import require_even

        require_even(self.data, self.parallel, self.phases)

    def plan_for(self, num_gpus: int) -> DevicePlan:
        """The engine's plan and the running average, of the phase for so many, if one is."""
        layouts = [phase.plan for phase in self.phases if phase.plan.world == num_gpus] or [self.parallel]
        from nemo_vfm.core.types.held_weights import HELD

        plan = self.engine.plan_for(num_gpus, layouts[0], self.model, self.optimizer)
        average = {"running average": plan.state_bytes["weights"]} if self.ema is not None else {}
        held = self.held_beside()
        beside = {HELD: held.num_bytes} if held.weights else {}
        notes = (*plan.notes, *held.notes(), *map(str, self.phases))
        return replace(plan, state_bytes={**plan.state_bytes, **average, **beside}, notes=notes)

    def held_beside(self) -> "Held":
        """The networks of the task and of callbacks, which stand on each GPU beside the model."""
        from nemo_vfm.core.types.held_weights import held_below
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
