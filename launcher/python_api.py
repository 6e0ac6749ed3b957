"""Submits recipes from Python and reports their state, as `vfm-launch` does on the command line."""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.plan.launch import prepare
from launcher.plan.preflight import Finding
from launcher.request.request import parse_request
from launcher.slurm import slurm
from launcher.slurm.job_status import PATIENCE_S, JobState, queue_of, states
from launcher.state.launch_folder import read
from launcher.state.submission import cancel, carry_out, check_launch
from nemo_vfm.core.errors import UserError


@dataclass(frozen=True, slots=True)
class Submitted:
    """A launch."""

    run_dir: Path  #: its run folder, by which every verb of `vfm-launch` knows it, too
    findings: tuple[Finding, ...] = ()  #: what was found out before it was submitted

    def status(self) -> list[JobState]:
        """How each job is, in order: what Slurm says while it remembers, else what the folder says."""
        kept = read(self.run_dir)
        return states(kept, queue_of(kept)[0])

    def wait(self, *, timeout_s: float = float("inf"), poll_s: float = 15.0) -> list[JobState]:
        """Wait until no job waits or runs, and say how each ended; jobs that are begun again are waited for.

        Args:
            timeout_s: for how long.
            poll_s: seconds between two questions to Slurm.

        Raises:
            TimeoutError: one still waits or runs after `timeout_s`.
            UserError: Slurm is not here, or had not answered for ten minutes or when the time was over.
        """
        answered_s = time.monotonic()
        ends_s = answered_s + timeout_s
        while True:
            kept = read(self.run_dir)
            queue, why = queue_of(kept)
            now_s = time.monotonic()
            if not why:
                answered_s, found = now_s, states(kept, queue)
                live = [one.name for one in found if one.live]
                if not live:
                    return found
                if now_s >= ends_s:
                    raise TimeoutError(
                        f"{', '.join(live)} of {self.run_dir} are still queued or running after {timeout_s:g} s"
                    )
            elif not slurm.is_here() or now_s >= min(ends_s, answered_s + PATIENCE_S):
                raise UserError(f"{self.run_dir}: {why}, so it is unknown whether its jobs have ended; wait again")
            time.sleep(min(poll_s, max(0.0, ends_s - now_s)))

    def cancel(self) -> None:
        """End the jobs that wait or run; `vfm-launch retry` goes on from their last checkpoints."""
        cancel(read(self.run_dir))


def submit(
    recipe: str | Path, cluster: str, *changes: str, nodes: int | None = None, gpus: int | None = None,
    conf: Sequence[str | Path] = (), overlays: Sequence[str] = (), trust: Sequence[str] = (), allow: Sequence[str] = (),
    allow_host: Sequence[str] = (), parts: int = 0, sweep: Sequence[str] = (), code: bool = True, paths: bool = True,
) -> Submitted:  # fmt: skip
    """Put a recipe into a cluster's queue; the same words again go on. On `local` it runs here, and ends first.

    Args:
        recipe: a file, or a name that `nemo-vfm list` shows.
        cluster: the name of a file `conf/cluster/NAME.yaml`.
        changes: as on the command line: `optimizer.lr=1e-4`, `cluster.partition=short`.
        nodes: how many; None where the recipe's layout, or `gpus`, says it.
        gpus: how many in all; None where the layout, or `nodes`, says it.
        conf: folders of ingredients that are searched first.
        overlays: over the recipe.
        trust: as `--trust`; so are the three that follow their options.
        allow: keys in which the recipe may differ from the run that is there.
        allow_host: hosts and buckets that the recipe may reach.
        parts: into how many tasks work is shared out that can be.
        sweep: values of the recipe, every combination of which is a run.
        code: whether the working tree is taken along.
        paths: whether what the recipe reads is looked for on this machine first.

    Raises:
        UserError: something is wrong, with all sentences of the preflight; nothing was submitted.
    """
    size = [f"{name}={count}" for name, count in (("nodes", nodes), ("gpus", gpus)) if count is not None]
    launch = prepare(parse_request(argparse.Namespace(
        recipe=str(recipe), overrides=[f"cluster={cluster}", *size, *changes], conf=[Path(one) for one in conf],
        overlay=list(overlays), trust=list(trust), allow=list(allow), allow_host=list(allow_host), parts=parts,
        sweep=list(sweep), rank_silence=None, rank_timeout=None, no_code=not code, no_paths=not paths,
        profile=None, profile_ranks=None, profile_seconds=None,
    )))  # fmt: skip
    texts, found = check_launch(launch)
    if wrong := [f"{one.about}: {one.text}" for one in found if one.wrong]:
        raise UserError("nothing was submitted\n" + "\n".join(wrong))
    carry_out(launch, texts)
    return Submitted(launch.run_dir, tuple(found))
