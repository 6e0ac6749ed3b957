"""Puts the weights of another run, or of another library's folder, into a model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from torch import Tensor, nn

from nemo_vfm.core import log
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.storage.uri import Place
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.convert.video.other_library import is_other_librarys, opened_folder, require_converted
from nemo_vfm.models.pretrained import fingerprint_of
from nemo_vfm.parallel.apply.local_shard import mismatch, some
from nemo_vfm.parallel.checkpoint.checkpoint import require_whole, weights_of
from nemo_vfm.parallel.checkpoint.checkpoint_ranks import gather_group, run_on_ranks
from nemo_vfm.parallel.checkpoint.checkpoint_reader import gather_shapes, put, shapes_of
from nemo_vfm.parallel.checkpoint.checkpoint_store import open_checkpoint
from nemo_vfm.parallel.plan.adapter_split import is_adapter
from nemo_vfm.parallel.ranks.gather import Gather
from nemo_vfm.parallel.tables.table_updater import grown_tables, take_table_state


def load_into(
    model: nn.Module, path: Place, weights: Literal["ema", "model"] | None, may_differ: Sequence[str], slot: str
) -> dict[str, Json]:
    """Put the weights of another run, or of another library's folder, into a model; returns what was taken from where.

    See `WarmStart` for the arguments; `slot` is its key. UserError shows what is not there or does not fit.
    """
    ranks = gather_group()
    if isinstance(path, Path) and is_other_librarys(path):
        if weights == "ema":
            raise UserError(f"{path} was written by another library and has no averaged weights; leave "
                            f"{slot}.weights out")  # fmt: skip
        with opened_folder(path) as given:
            given.require_same_function(model)
            new = _put(model, given, str(path), may_differ, ranks, slot)
        # The bytes of all its files, once for all ranks.
        sha256 = str(run_on_ranks(ranks, lambda: fingerprint_of(given.folder) if ranks.rank() == 0 else None)[0])
        chosen, run, step, group, what = str(given.folder), "", 0, "model", "weights"
    else:
        if isinstance(path, Path):
            require_converted(path)
        with open_checkpoint(path, ranks) as found:
            chosen, saved = found.name, found.saved
            require_whole(saved, chosen)
            group = weights or ("ema" if "ema" in saved.groups else "model")
            new = _put(model, weights_of(saved, group), chosen, may_differ, ranks, slot)
            take_table_state(model, saved.groups.get("tables", {}), ranks)
        run, step, sha256, what = saved.run, saved.step, saved.sha256[group], f"{group} weights"
    if ranks.rank() == 0:
        begins = "begins with" if slot == "weights.start_from" else f"{slot}:"
        log.info(f"{begins} the {what} of {chosen} (sha256 {sha256[:12]}...)")
        if new:
            log.warn(f"not loaded from there (initialised by the seed or left out): {some(new, 6)}")
    return {"path": chosen, "run": run, "step": step, "weights": group, "sha256": sha256, "not_taken": new}


def _put(
    model: nn.Module, given: Mapping[str, Tensor], chosen: str, may_differ: Sequence[str], ranks: Gather, slot: str
) -> list[str]:
    """Load what fits, each rank its part; the names that did not, and may differ."""
    own = {name: tensor for name, tensor in model.state_dict().items() if not is_adapter(name)}
    here, there = gather_shapes(own, ranks), shapes_of(given)
    for prefix in may_differ:
        if not any(_below(name, prefix) for name in here.keys() | there.keys()):
            have = some(sorted({name.partition(".")[0] for name in here.keys() | there.keys()}), 6)
            raise UserError(
                f"may_differ: neither this model nor {chosen} has weights below {prefix!r}; they have {have}."
            )
    old_rows = grown_tables(model, here, there)
    own |= {name: own[name][:rows] for name, rows in old_rows.items()}
    unfit = [name for name in sorted(here.keys() | there.keys()) if here.get(name) != there.get(name)]
    unfit = [name for name in unfit if name not in old_rows]
    new = [name for name in unfit if any(_below(name, prefix) for prefix in may_differ)]
    if rest := [name for name in unfit if name not in new]:
        differences = mismatch(*({name: of[name] for name in rest if name in of} for of in (here, there)))
        hint = f"If some may be new, set {slot}.may_differ=[{rest[0].partition('.')[0]}]"
        hint = hint if slot == "weights.start_from" else f"{slot} must be a run of the model beside it"
        raise UserError(f"The weights of {chosen} do not fit this model. The checkpoint is of another model "
                        f"({differences}). {hint}")  # fmt: skip
    put({name: tensor for name, tensor in own.items() if name not in new}, given, ranks)
    return new


def _below(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")
