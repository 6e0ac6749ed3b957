# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A launch that was kept and a new run folder in, the same launch for that folder out: recipe, cluster, size and code.

The code is the copy that the launch has kept, whatever the working tree has become; packages are those of today.
"""

from dataclasses import replace
from pathlib import Path

from launcher.asked import Asked
from launcher.chain import chain
from launcher.chosen import cluster_again
from launcher.facts import Point, work
from launcher.folder import Kept
from launcher.launch import Launch, composed_text, known, swept_run
from launcher.snapshot import Code, nothing, packages, read_copy
from launcher.sweep import SweptRun, shared
from nemo_vfm.config import compose
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.files import read_json
from nemo_vfm.core.types import SWEEP, Json


def again(kept: Kept, run_dir: Path) -> Launch:
    """The launch.

    Raises:
        UserError: it is the same folder, or the copy of the code was changed.
    """
    target = Path.cwd() / run_dir
    if target == kept.run_dir:
        raise UserError(f"{run_dir} is where it ran; name another folder, or go on there: vfm-launch retry {run_dir}")
    asked = _asked(kept)
    where, unknown = known(cluster_again(kept.values["cluster"], asked.trust))
    code, runs = _code(kept), _runs(kept, target, asked)
    one = asked.alone(runs[0].changes) if runs else replace(asked, changes=(f"run_dir={target}",))
    found, recipe = work(one, code.root), composed_text(compose(one.recipe, one.changes))
    shares = shared([Point(name=run.name, changes=run.changes, work=found) for run in runs], where, asked.nodes)
    shares = tuple(replace(share, degrees=kept.jobs[0]["degrees"]) for share in shares)  # of all runs, not of the first
    return Launch(
        asked=asked if runs else one, where=where, values=kept.values["cluster"], recipe=recipe, run_dir=target,
        workdir=Path(kept.values["workdir"]), work=found, name_of_recipe=kept.values["recipe"],
        title=kept.values["title"], code=code, packages=packages(), unknown=tuple(unknown), runs=runs,
        shares=shares or tuple(chain(found, where, asked.nodes, asked.parts)), table=_table(kept, target),
    )  # fmt: skip


def _asked(kept: Kept) -> Asked:
    words = kept.values["words"]  # of an older launcher, without what it could not be told
    return Asked(
        recipe=str(kept.recipe_file), cluster=words["cluster"], nodes=words["nodes"], trust=tuple(words["trust"]),
        allow=tuple(words["allow"]), allow_host=tuple(words.get("allow_host", ())), code=words["code"],
        parts=words["parts"], rank_silence=words.get("rank_silence"), rank_timeout=words.get("rank_timeout"),
        sweep=tuple(words.get("sweep", ())),
    )  # fmt: skip


def _runs(kept: Kept, target: Path, asked: Asked) -> tuple[SweptRun, ...]:
    """Of a sweep: they took the same devices when it was submitted, so they do now."""
    changes = {name: [f"run_dir={target / name}"] for name in kept.runs}
    return tuple(swept_run(name, replace(asked, recipe=str(kept.recipe_of(name))).alone(own), own)
                 for name, own in changes.items())  # fmt: skip


def _table(kept: Kept, target: Path) -> Json:
    """Of a sweep: its table as it was before anything had run."""
    if not kept.runs or not (kept.run_dir / SWEEP).is_file():
        return None
    found = read_json(kept.run_dir / SWEEP)
    rows = [{**row, "words": [str(kept.recipe_of(row["name"])), f"run_dir={target / row['name']}"],
             "exit_status": None, "state": "waiting", "seconds": None, "figures": {}}
            for row in found["points"] if row["name"] in kept.runs]  # fmt: skip
    return {**found, "points": rows}


def _code(kept: Kept) -> Code:
    if not kept.values["code"]["files"]:
        return nothing("the launch took no code along, and neither does this one: what is installed runs")
    code = read_copy(kept.folder / "code", kept.values["code"]["commit"])
    if code.hash() != kept.values["code"]["sha256"]:
        raise UserError(f"{kept.folder / 'code'} is not any more what was submitted; submit the recipe anew")
    return code
