"""Prepares an earlier launch again for another run folder: the same recipe, cluster, size and code.

The code is the copy that the launch has kept, whatever has changed in the working tree; packages are those of today. A
folder may be a stranger's, so it has to be trusted again with whatever its launch was trusted with.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from launcher.plan.chain import chain, share_out
from launcher.plan.launch import Launch, composed_text, fill_from_slurm, swept_run, typed_words
from launcher.plan.recipe_info import Point, work
from launcher.plan.trusted_modules import modules
from launcher.render.profile import parse_profile
from launcher.request.cluster_config import cluster_again
from launcher.request.request import CLUSTER, LaunchRequest, packages_of
from launcher.state.launch_folder import KeptLaunch
from launcher.state.snapshot import Code, nothing, packages, read_copy, without_keys
from nemo_vfm.config import compose
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.storage.files import read_json
from nemo_vfm.core.types.job import SWEEP
from nemo_vfm.core.types.json_value import Json


def again(
    kept: KeptLaunch, run_dir: Path, trust: Sequence[str] = (), allow_host: Sequence[str] = (),
    typed: Sequence[str] = (),
) -> Launch:  # fmt: skip
    """The launch.

    Args:
        trust: words of `--trust`, from the command line.
        allow_host: words of `--allow-host`, from the command line.
        typed: values of the recipe that only the command line can give, again: the folder's recipe grants nothing.
    """
    target = Path.cwd() / run_dir
    if target == kept.run_dir:
        raise UserError(
            f"{run_dir} is where it ran; choose another folder, or resume there: vfm-launch retry {run_dir}"
        )
    request = replace(_request_of(kept, trust, allow_host), changes=tuple(typed))
    where, unknown = fill_from_slurm(cluster_again(kept.values["cluster"], request))
    # The runs of a sweep took the same devices when it was submitted, so they do now.
    runs = tuple(swept_run(name, replace(request, recipe=str(kept.recipe_of(name))).override(own), own)
                 for name, own in ((name, [f"run_dir={target / name}"]) for name in kept.runs))  # fmt: skip
    code = _code(kept)
    one = request.override(runs[0].changes if runs else (f"run_dir={target}",))
    found, composed = work(one, code.root), compose(one.recipe, one.changes)
    recipe = composed_text(composed)
    if recipe != composed_text(compose(one.recipe, [f"run_dir={composed.run_dir}"])):
        raise UserError(f"a rerun repeats a launch unchanged, and {' '.join(typed)} would change its recipe; "
                        f"submit the recipe with the change instead")  # fmt: skip
    shares = share_out([Point(name=run.name, changes=run.changes, work=found) for run in runs], where, request.nodes)
    shares = tuple(replace(share, degrees=kept.jobs[0]["degrees"]) for share in shares)  # of all runs, not of the first
    return Launch(
        request=request if runs else one, where=where, values=kept.values["cluster"], recipe=recipe, run_dir=target,
        typed=typed_words(composed), workdir=Path(kept.values["workdir"]), work=found,
        name_of_recipe=kept.values["recipe"],
        title=kept.values["title"], code=code, modules=modules(request.trust, code.root), packages=packages(),
        unknown=tuple(unknown), runs=runs, table=_table(kept, target, typed),
        shares=shares or tuple(chain(found, where, request.nodes, request.parts, request.gpus)),
    )  # fmt: skip


def _request_of(kept: KeptLaunch, trust: Sequence[str], allow_host: Sequence[str]) -> LaunchRequest:
    words = kept.values["words"]  # of an older launcher, without what it could not be told
    profile = words.get("profile")  # a stranger's is checked as if it were typed
    if profile is not None:
        window = f"{profile['begin_s']}-{profile['end_s']}"
        profile = parse_profile("nsys", ",".join(map(str, profile["ranks"])), window)
    trusted, hosts = [*words["trust"], *kept.values["code"].get("imports", ())], words.get("allow_host", ())
    missing = [f"--trust {word}" for word in dict.fromkeys(trusted) if word not in trust]
    missing += [f"--allow-host {word}" for word in dict.fromkeys(hosts) if word not in allow_host]
    if missing:
        raise UserError(f"{kept.run_dir} was launched with {' '.join(missing)}, which a folder cannot grant; "
                        f"to allow it again, add the same options")  # fmt: skip
    return LaunchRequest(
        recipe=str(kept.recipe_file), cluster=words["cluster"], nodes=words["nodes"], gpus=words.get("gpus"),
        trust=packages_of(trust), trusts_cluster=CLUSTER in trust,
        allow=tuple(words["allow"]), allow_host=tuple(allow_host), code=words["code"],
        parts=words["parts"], rank_silence=words.get("rank_silence"), rank_timeout=words.get("rank_timeout"),
        paths=words.get("paths") is not False, sweep=tuple(words.get("sweep", ())),
        profile=profile,
    )  # fmt: skip


def _table(kept: KeptLaunch, target: Path, typed: Sequence[str]) -> Json:
    """Of a sweep: its table as it was before anything had run."""
    if not kept.runs or not (kept.run_dir / SWEEP).is_file():
        return None
    found = read_json(kept.run_dir / SWEEP)
    rows = [{**row, "words": [str(kept.recipe_of(row["name"])), f"run_dir={target / row['name']}", *typed],
             "exit_status": None, "state": "waiting", "seconds": None, "figures": {}}
            for row in found["points"] if row["name"] in kept.runs]  # fmt: skip
    return {**found, "points": rows}


def _code(kept: KeptLaunch) -> Code:
    if not kept.values["code"]["files"]:
        return nothing("the launch copied no code, and neither does this one: the installed packages run")
    code = read_copy(kept.folder / "code", kept.values["code"]["commit"])
    if code.hash() != kept.values["code"]["sha256"]:
        raise UserError(f"{kept.folder / 'code'} has changed since it was submitted; submit the recipe again")
    return without_keys(code)
