"""Explains why a launch cannot have its folder: another recipe ran there, or a job still does."""

from collections.abc import Iterator

from launcher.plan.launch import Launch
from launcher.slurm import slurm
from launcher.slurm.job_status import live_jobs
from launcher.state.launch_folder import KeptLaunch, read_existing
from nemo_vfm.config import read_values
from nemo_vfm.config.difference import differences, is_allowed, is_harmless, made_nothing
from nemo_vfm.core.types.job import LAUNCH, LOCK, MANIFEST, PARTS, RECIPE

_OURS = (LAUNCH, PARTS, LOCK, MANIFEST)  # what a run folder may hold before its recipe is there
_SHOWN = 6


def objections(launch: Launch) -> list[str]:
    """Sentences; none where the folder is free, or where the same run goes on there."""
    said = []
    for folder, recipe in ({run.run_dir: run.recipe for run in launch.runs} or {launch.run_dir: launch.recipe}).items():
        file = folder / RECIPE
        if not file.is_file():
            others = sorted(path.name for path in folder.iterdir() if path.name not in _OURS) if folder.is_dir() else []
            if others := [name for name in others if not name.endswith(".tmp")]:
                said.append(f"{folder} holds {', '.join(others[:3])} and is not a run folder; choose another run_dir")
            continue
        there, now = read_values(file.read_text(), str(file)), read_values(recipe, "this recipe")
        found = {key: pair for key, pair in differences(there, now).items()
                 if not (is_harmless(key) or is_allowed(key, launch.request.allow))}  # fmt: skip
        if found and not made_nothing(folder):
            shown = "; ".join(f"{key}: {old} there, {new} now" for key, (old, new) in list(found.items())[:_SHOWN])
            more = f", and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
            keys = " ".join(f"--allow {key}" for key in list(found)[:_SHOWN])
            said.append(f"{folder} holds a run of a different recipe ({shown}{more}); choose another folder with "
                        f"run_dir=..., or resume anyway with {keys}")  # fmt: skip
    return [*said, *(still_there(kept) if (kept := read_existing(launch.run_dir)) else ())]


def still_there(kept: KeptLaunch) -> Iterator[str]:
    """A sentence on the jobs of an earlier launch that wait or run."""
    if not kept.slurm_ids() or not slurm.is_here():
        return
    names = {number: job["name"] for job in kept.jobs for number in kept.numbers(job)}
    live = [f"{one.id} ({names.get(one.array, one.name)}) is {one.state}" for one in live_jobs(kept).values()
            if one.waits_or_runs]  # fmt: skip
    if live:
        more = f" and {len(live) - _SHOWN} more are queued or running" if len(live) > _SHOWN else ""
        yield (f"{kept.run_dir} has jobs in the queue: {', '.join(live[:_SHOWN])}{more}. Wait for them, or cancel "
               f"them: vfm-launch cancel {kept.run_dir}")  # fmt: skip
