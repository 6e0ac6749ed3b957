# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A launch that was kept and a new run folder in, the same launch for that folder out: recipe, cluster, size and code.

The code is the copy that the launch has kept, whatever the working tree has become; packages are those of today.
"""

from pathlib import Path

from launcher.asked import Asked
from launcher.chain import chain
from launcher.chosen import cluster_again
from launcher.facts import work
from launcher.folder import Kept
from launcher.launch import Launch, composed_text, known
from launcher.snapshot import Code, nothing, packages, read_copy
from nemo_vfm.config import compose
from nemo_vfm.core.errors import UserError


def again(kept: Kept, run_dir: Path) -> Launch:
    """The launch.

    Raises:
        UserError: it is the same folder, or the copy of the code was changed.
    """
    target = Path.cwd() / run_dir
    if target == kept.run_dir:
        raise UserError(f"{run_dir} is where it ran; name another folder, or go on there: vfm-launch retry {run_dir}")
    asked = _asked(kept, target)
    where, unknown = known(cluster_again(kept.values["cluster"], asked.trust))
    code = _code(kept)
    found, composed = work(asked, code.root), compose(asked.recipe, asked.changes)
    return Launch(
        asked=asked, where=where, values=kept.values["cluster"], recipe=composed_text(composed), run_dir=target,
        workdir=Path(kept.values["workdir"]), work=found, name_of_recipe=kept.values["recipe"],
        title=kept.values["title"], code=code, packages=packages(),
        shares=tuple(chain(found, where, asked.nodes, asked.parts)), unknown=tuple(unknown),
    )  # fmt: skip


def _asked(kept: Kept, target: Path) -> Asked:
    words = kept.values["words"]
    return Asked(
        recipe=str(kept.recipe_file), changes=(f"run_dir={target}",), cluster=words["cluster"],
        nodes=words["nodes"], trust=tuple(words["trust"]), allow=tuple(words["allow"]), code=words["code"],
        parts=words["parts"],
    )  # fmt: skip


def _code(kept: Kept) -> Code:
    if not kept.values["code"]["files"]:
        return nothing("the launch took no code along, and neither does this one: what is installed runs")
    code = read_copy(kept.folder / "code", kept.values["code"]["commit"])
    if code.hash() != kept.values["code"]["sha256"]:
        raise UserError(f"{kept.folder / 'code'} is not any more what was submitted; submit the recipe anew")
    return code
