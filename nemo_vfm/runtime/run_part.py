"""Makes a job that does one shard of the work, in a run folder of its own.

Parts share the run folder, where each writes its results; they never wait for each other. A run of the whole
afterwards finds these results and does the work that needs all of them. Each part has a small run folder in
`run_dir/parts/`.
"""

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from nemo_vfm.core.errors import FolderInUse, UserError
from nemo_vfm.core.types.job import PARTS, Job, JobShard, Outcome, Run, ShardedJob, needs_of
from nemo_vfm.runtime.run_folder import open_folder
from nemo_vfm.runtime.run_lock import holder
from nemo_vfm.workflow import OneStep, PlannedStep, begin
from nemo_vfm.workflow.step_folder import StepFingerprint

_PATIENCE_S, _POLL_S = 120.0, 0.5  # for the others, who claim the run folder at the same moment
_TEXT = re.compile(r"(\d{1,6})/(\d{1,6})(?:@(\d))?")


def part_of(text: str) -> JobShard:
    """`3/8` is the fourth of eight, counted from 0; `3/8@1` the same of the second round."""
    match = _TEXT.fullmatch(text)
    if match is None or int(match[1]) >= int(match[2]):
        raise UserError(f"--part takes K/N, a number from 0 and the number of parts, such as 0/8 to 7/8, got {text}")
    return JobShard(int(match[1]), int(match[2]), int(match[3] or 0))


class JobPart:
    """One part of a job's work.

    Args:
        job: the whole, or one step of a workflow.
        part: which.
        run_dir: the run folder of the whole.
        recipe: the composed recipe's text, without secrets.
        allowed: keys in which the recipe may differ from the one that the run folder holds.
        source: the recipe's file; None where it has none.
    """

    def __init__(
        self, job: Job, part: JobShard, run_dir: Path, recipe: str, allowed: Sequence[str] = (),
        source: Path | None = None,
    ) -> None:  # fmt: skip
        inner = job.steps[job.name] if isinstance(job, OneStep) else job
        if not isinstance(inner, ShardedJob):
            raise UserError(f"--part: {type(inner).__name__} cannot be split into parts; in a workflow, add --only "
                            f"STEP")  # fmt: skip
        if part.round >= (rounds := needs_of(inner).rounds):
            raise UserError(f"--part: {type(inner).__name__} has {rounds} {'round' if rounds == 1 else 'rounds'}, "
                            f"counted from 0, got @{part.round}")  # fmt: skip
        self._job, self._inner, self._part, self._run_dir, self._recipe = job, inner, part, run_dir, recipe
        self._allowed, self._source = allowed, source
        #: where it tells how it went
        self.folder = run_dir / PARTS / f"{part.round}-{part.number:05d}-of-{part.count:05d}"

    def run(self, run: Run) -> Outcome:
        # See that the run folder is this recipe's; parts do it at the same time, so each may wait for another.
        until, is_claimed = time.monotonic() + _PATIENCE_S, False
        while not is_claimed:
            if time.monotonic() >= until:
                raise UserError(f"{self._run_dir} has been in use for {_PATIENCE_S:.0f} s; parts and a whole run "
                                f"cannot run at the same time")  # fmt: skip
            if not holder(self._run_dir)[1]:
                with (
                    suppress(FolderInUse),
                    open_folder(self._run_dir, self._recipe, run.seed, self._allowed, source=self._source),
                ):
                    is_claimed = True
            if not is_claimed:
                time.sleep(_POLL_S)
        whole = replace(run, folder=self._run_dir)
        if isinstance(self._job, OneStep):
            step = self._job.planned_step(whole)
        else:
            step = PlannedStep("", self._job, whole, StepFingerprint.of(whole), "", ends_run=True)
        if step.is_done():
            return Outcome("the whole run is already done", did_nothing=True)
        begin(step, may_differ=bool(self._allowed))
        return self._inner.run_part(step.run, self._part)
