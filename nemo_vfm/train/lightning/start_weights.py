"""Loads the weights of a checkpoint, anybody's, into a LightningModule; nothing that is in the file is run."""

from collections.abc import Mapping, Sequence
from contextlib import closing

from lightning.pytorch import LightningModule
from torch import Tensor

from nemo_vfm.core import log
from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.models.convert.foreign import format_of, read_foreign
from nemo_vfm.models.convert.weight_files import open_safetensors
from nemo_vfm.parallel.apply.local_shard import mismatch, some
from nemo_vfm.parallel.checkpoint.checkpoint_reader import shapes_of
from nemo_vfm.train.lightning.best import BEST, find_checkpoint
from nemo_vfm.train.lightning.fit_settings import StartWeights


def begin_with(start: StartWeights, module: LightningModule, slot: str = "start_from") -> None:
    """Put the weights in; `slot` is the recipe's word for them. UserError says which are missing or do not fit."""
    path = start.path
    if path.is_dir():  # of a run: the best checkpoint, where there is one, else the last
        path = find_checkpoint(path, "best" if (path / "checkpoints" / BEST).exists() else "last")
    module.configure_model()  # the layers that a module makes in this hook have weights, too; it may be called twice
    own = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}  # no extra state
    try:
        if format_of(path) == "safetensors":  # mapped, not yet read
            with closing(open_safetensors(path)) as mapped:
                given = {name: mapped.get_tensor(name) for name in mapped.keys()}  # noqa: SIM118  # it is no mapping
        else:
            given = read_foreign(path, key=start.key, leave_out=True).weights
    except (DataError, UserError, OSError) as error:
        said = str(error).replace("--key", f"{slot}.key")  # as a command that reads such files has it
        raise UserError(f"{slot}: {path}: {said}") from error
    here, there = shapes_of(own), shapes_of(given)
    unfit = sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
    new = [name for name in unfit if any(f"{name}.".startswith(f"{prefix}.") for prefix in start.may_differ)]
    if rest := [name for name in unfit if name not in new]:
        differences = mismatch(*({name: of[name] for name in rest if name in of} for of in (here, there)))
        hint = f" If some may be new, set start_from.may_differ=[{rest[0].partition('.')[0]}]"
        raise UserError(f"{slot}: the weights of {path} do not fit the module: {_counts(rest, here, there)} "
                        f"({differences}).{hint if slot == 'start_from' else ''}")  # fmt: skip
    taken = {name: given[name] for name in own if name not in new}
    module.load_state_dict(taken, strict=False)
    log.info(f"begins with {len(taken)} weights of {path}")
    if new:
        log.warn(f"not loaded from there: {_counts(new, here, there)} ({some(new, 6)})")


def _counts(names: Sequence[str], here: Mapping[str, object], there: Mapping[str, object]) -> str:
    kinds = {"are missing there": [name for name in names if name not in there],
             "are unknown here": [name for name in names if name not in here],
             "have another shape": [name for name in names if name in here and name in there]}  # fmt: skip
    return ", ".join(f"{len(found)} {words}" for words, found in kinds.items() if found)
