"""Composes, builds and runs recipes from Python, with OmegaConf's `DictConfig` as the currency.

All three say what is wrong as the command line does: every problem with its file, line and column. What `--trust`,
`--allow-host` and `--allow-write` permit there is permitted here by an argument, never by the config.
"""

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_vfm.config import build_part, trust_list
from nemo_vfm.config import compose as compose_tree
from nemo_vfm.config.dict_config import address_of, from_dict_config, to_dict_config
from nemo_vfm.config.recipe_errors import Mark, SourceText
from nemo_vfm.config.tree import Scalar
from nemo_vfm.core import ranks
from nemo_vfm.core.errors import Interrupted, LostRank, NemoVfmError, NextPhase, NothingKept, Preempted, UserError
from nemo_vfm.core.network.permission import folder_word
from nemo_vfm.core.preemption import listen_for_signals
from nemo_vfm.core.storage.files import read_json_object
from nemo_vfm.core.types.job import STATUS, Outcome
from nemo_vfm.runtime.recipe_run import RecipeRun, RunEnding, RunOptions
from nemo_vfm.runtime.user_permissions import permissions

if TYPE_CHECKING:
    from omegaconf import DictConfig


_ERRORS = {kind.exit_code: kind for kind in (UserError, NothingKept, LostRank, Preempted, Interrupted, NextPhase)}


def compose(
    recipe: str | Path, overrides: Sequence[str] = (), *, conf: Sequence[str | Path] = (), overlay: Sequence[str] = ()
) -> "DictConfig":
    """Read a recipe with everything that it names, and make changes.

    Args:
        recipe: a file, or a name that `nemo-vfm list` shows.
        overrides: as on the command line: `a.b=value`, `slot=choice`, `~a.b`.
        conf: more folders of ingredients, searched first.
        overlay: names of overlays, such as those that make a recipe small.

    Returns:
        The whole recipe. References stay references, and what the user must still give is `???`.

    Raises:
        RecipeError: a file is missing or is no recipe, or a change cannot be made.
    """
    return to_dict_config(compose_tree(recipe, overrides, [Path(folder) for folder in conf], overlay))


def build(
    cfg: "DictConfig", *, trust: Sequence[str] = (), allow_hosts: Sequence[str] = (),
    allow_write: Sequence[str | Path] = (), **given: Any,
) -> Any:  # fmt: skip
    """Make the component that a config, or a part of one, describes.

    Args:
        cfg: a mapping with a `_target_`, such as `cfg.model`. References are counted from the root that it is part of.
        trust: names that may stand behind `_target_` beside ours, as for `--trust`.
        allow_hosts: what may be contacted, as for `--allow-host`.
        allow_write: folders that may be written in, as for `--allow-write`.
        given: arguments that a job would give later: `build(cfg.optimizer, params=model.parameters())`.

    Raises:
        RecipeError: something in this part is wrong or missing, or the constructor refused its arguments.
    """
    composed = from_dict_config(cfg)
    allowed = permissions(_words(allow_hosts, allow_write), composed.path)
    return build_part(composed, address_of(cfg), given, trust_list(trust), allowed)


def run(
    cfg: "DictConfig", *, run_dir: str | Path | None = None, trust: Sequence[str] = (), allow: Sequence[str] = (),
    allow_hosts: Sequence[str] = (), allow_write: Sequence[str | Path] = (), only: str | None = None,
) -> Outcome:  # fmt: skip
    """Run a job in its run folder, as `nemo-vfm run` does; run it again to resume.

    A config for several devices runs on as many processes, which are started here unless torchrun or srun has done so.

    Args:
        cfg: a whole recipe.
        run_dir: the run folder, wherever it lies; `cfg.run_dir` must lie below the working directory.
        trust: names that may stand behind `_target_` beside ours, as for `--trust`.
        allow: keys in which the config may differ from the one that the run folder holds, as for `--allow`.
        allow_hosts: what may be contacted, as for `--allow-host`.
        allow_write: folders that may be written in, as for `--allow-write`.
        only: one step of a workflow.

    Returns:
        A summary and the job's figures.

    Raises:
        UserError: the config is wrong, or the run folder holds another run.
        Preempted: a signal asked the run to end; its work is saved.
        NothingKept: the job finished without a single output.
    """
    composed = from_dict_config(cfg)
    if run_dir is not None:
        mark = Mark(SourceText.from_word(f"run_dir={run_dir}"), 1, len("run_dir=") + 1)
        composed = replace(composed, root=composed.root.with_item("run_dir", Scalar(str(run_dir), mark), mark))
    endings: list[RunEnding] = []
    given = RunOptions(trust=trust, allow=allow, allow_host=_words(allow_hosts, allow_write), only=only)
    with ExitStack() as stack:
        words: list[str] = []
        if not ranks.is_given():  # what names the recipe to other processes; what the user typed is typed there, too
            file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / f"{composed.path.stem}.yaml"
            file.write_text(composed.to_yaml())
            words = [str(file), *composed.typed_words()]
        before = read_json_object(composed.run_dir / STATUS)
        with listen_for_signals():
            status = RecipeRun(composed, words, given, endings.append).run()
    if not endings:
        left = read_json_object(composed.run_dir / STATUS)  # by rank 0 of the processes that were started
        if status:
            text = left.get("error") if left != before else ""
            text = text or (f"the processes of the run in {composed.run_dir} ended with status {status}; they gave "
                            f"the reason above")  # fmt: skip
            raise _ERRORS.get(status, NemoVfmError)(text)
        return Outcome(str(left.get("summary", "")), left.get("figures", {}))
    if endings[-1].error is not None:
        raise endings[-1].error
    assert endings[-1].outcome is not None
    return endings[-1].outcome


def _words(hosts: Sequence[str], folders: Sequence[str | Path]) -> list[str]:
    """What the user allows, as `permissions` reads it."""
    return [*hosts, *map(folder_word, folders)]
