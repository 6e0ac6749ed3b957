"""Brings the weights that a training begins with, such as another run's, and says which of them it trains."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from torch import Tensor, nn

from nemo_vfm.core import log
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.storage.uri import Address, Place, place
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.adapters.low_rank_adapter import AdaptedModel, LowRankAdapter, begin
from nemo_vfm.parallel.apply.local_shard import mismatch, some
from nemo_vfm.parallel.checkpoint.checkpoint import Checkpoint, require_whole, weights_of
from nemo_vfm.parallel.checkpoint.checkpoint_ranks import joined, together
from nemo_vfm.parallel.checkpoint.checkpoint_reader import everywhere, put, shapes_of
from nemo_vfm.parallel.checkpoint.checkpoint_store import opened
from nemo_vfm.parallel.plan.adapter_split import is_adapter
from nemo_vfm.parallel.ranks.gather import Gather


class WarmStart:
    """Starts from the weights of another run. A run that has its own checkpoint resumes from that instead.

    An embedding table may have more rows than there: the old ones are taken, and the new ones begin as the seed says.
    The optimizer state of rows that are taken is taken, too, where the table's optimizer is the same.

    Args:
        path: a run folder, a step's folder, a folder of checkpoints (the newest whole one is taken), or a checkpoint;
            local or in an object store. Or a local transformers folder of a language model, or a local diffusers
            folder of a video model (Cosmos, Wan): the pipeline's or the transformer's. Convert files of other programs
            first; the message says how.
        weights: which of its weights; None takes the averaged ones (ema) where there are some, else the model's own.
        may_differ: names of weights, or what they begin with up to a dot, that may be absent there, unknown here or of
            another shape; those keep the values that the seed gives them. Everything else must fit.
    """

    def __init__(
        self, *, path: Place, weights: Literal["ema", "model"] | None = None, may_differ: Sequence[str] = ()
    ) -> None:
        self.path, self.weights, self.may_differ = place(path), weights, tuple(may_differ)

    def load_into(self, model: nn.Module) -> dict[str, Json]:
        """Put the weights in.

        Returns:
            What was taken from where, for the record.

        Raises:
            UserError: there are none, or they do not fit; the text shows how.
        """
        from nemo_vfm.models.convert.video.other_library import is_other_librarys, require_converted
        from nemo_vfm.parallel.tables.table_updater import take_table_state

        ranks = joined()
        if isinstance(self.path, Path) and is_other_librarys(self.path):
            return self._of_other_library(model, self.path, ranks)
        if isinstance(self.path, Path):
            require_converted(self.path)
        with opened(self.path, ranks) as found:
            chosen, saved = found.name, found.saved
            require_whole(saved, chosen)
            group = self.weights or ("ema" if "ema" in saved.groups else "model")
            new = self._put(model, weights_of(saved, group), chosen, ranks)
            take_table_state(model, saved.groups.get("tables", {}), ranks)
        sha256 = saved.sha256[group]
        if ranks.rank() == 0:
            _say(f"the {group} weights of {chosen}", sha256, new)
        return {"path": chosen, "run": saved.run, "step": saved.step, "weights": group,
                "sha256": sha256, "not_taken": new}  # fmt: skip

    def _of_other_library(self, model: nn.Module, folder: Path, ranks: Gather) -> dict[str, Json]:
        from nemo_vfm.models.convert.video.other_library import opened_folder
        from nemo_vfm.models.pretrained import fingerprint_of

        if self.weights == "ema":
            raise UserError(f"{folder} was written by another library and has no averaged weights; leave "
                            f"weights.start_from.weights out")  # fmt: skip
        with opened_folder(folder) as given:
            given.require_same_function(model)
            new = self._put(model, given, str(folder), ranks)
        # The bytes of all its files, once for all ranks.
        sha256 = str(together(ranks, lambda: fingerprint_of(given.folder) if ranks.rank() == 0 else None)[0])
        if ranks.rank() == 0:
            _say(f"the weights of {given.folder}", sha256, new)
        return {"path": str(given.folder), "run": "", "step": 0, "weights": "model", "sha256": sha256, "not_taken": new}

    def _put(self, model: nn.Module, given: Mapping[str, Tensor], chosen: str, ranks: Gather) -> list[str]:
        """Load what fits, each rank its part; the names that did not, and may differ."""
        from nemo_vfm.parallel.tables.table_updater import grown_tables

        own = {name: tensor for name, tensor in model.state_dict().items() if not is_adapter(name)}
        here, there = everywhere(own, ranks), shapes_of(given)
        self._require_known(here.keys() | there.keys(), chosen)
        old_rows = grown_tables(model, here, there)
        own |= {name: own[name][:rows] for name, rows in old_rows.items()}
        unfit = [name for name in sorted(here.keys() | there.keys()) if here.get(name) != there.get(name)]
        unfit = [name for name in unfit if name not in old_rows]
        new = [name for name in unfit if any(_below(name, prefix) for prefix in self.may_differ)]
        if rest := [name for name in unfit if name not in new]:
            differences = mismatch(*({name: of[name] for name in rest if name in of} for of in (here, there)))
            raise UserError(f"The weights of {chosen} do not fit this model. The checkpoint is of another model "
                            f"({differences}). If some may be new, set weights.start_from.may_differ="
                            f"[{rest[0].partition('.')[0]}]")  # fmt: skip
        put({name: tensor for name, tensor in own.items() if name not in new}, given, ranks)
        return new

    def _require_known(self, names: "Sequence[str] | set[str]", chosen: str) -> None:
        for prefix in self.may_differ:
            if not any(_below(name, prefix) for name in names):
                have = some(sorted({name.partition(".")[0] for name in names}), 6)
                raise UserError(
                    f"may_differ: neither this model nor {chosen} has weights below {prefix!r}; they have {have}."
                )


class Weights:
    """Where a training's weights come from. Without anything given they are drawn from the seed, and all are trained.

    Args:
        start_from: another run whose weights this one begins with: a run folder or a checkpoint, or a mapping of path,
            weights and may_differ; None draws them from the seed.
        adapters: low-rank adapters to train instead of the model's weights, which stay those of `start_from`. Only the
            adapters have gradients, optimizer state, a running average and checkpoints. None trains the model.
    """

    def __init__(self, *, start_from: Place | WarmStart | None = None, adapters: LowRankAdapter | None = None) -> None:
        if adapters is not None and start_from is None:
            raise ValueError("adapters do not train the model's own weights, so these must be pretrained: set "
                             "start_from")  # fmt: skip
        self.start_from = WarmStart(path=start_from) if isinstance(start_from, Path | Address) else start_from
        self.adapters = adapters

    def trained(self, model: Factory[[], nn.Module]) -> Factory[[], nn.Module]:
        """What builds the model that is trained."""
        return model if self.adapters is None else AdaptedModel(model, self.adapters)

    def load_into(self, model: nn.Module, saved: Checkpoint | None) -> Json:
        """Load `start_from` into the model. A run with adapters loads its frozen weights at every start.

        Args:
            saved: the run's own checkpoint.

        Returns:
            What was taken from where; None where nothing was.

        Raises:
            UserError: the frozen weights differ from those this run began with.
        """
        if self.start_from is None or (saved is not None and self.adapters is None):
            return None
        source = self.start_from.load_into(model)
        if saved is None:
            begin(model)
        elif source["sha256"] != (before := (saved.state.get("started_from") or {}).get("sha256")):
            raise UserError(f"the adapters of this run were trained on weights of sha256 {str(before)[:12]}..., and "
                            f"{source['path']} has {source['sha256'][:12]}...; use the original weights")  # fmt: skip
        return source

    def say_what_differs(self, step: int, before: Json) -> None:
        """Another alpha changes what the same matrices compute; another rank would have been refused before."""
        if self.adapters is not None and (difference := self.adapters.differs_from(before)):
            log.warn(f"adapters differ from those of the {step} steps before ({difference}): the network changes "
                     f"now, and a run with these from the start would have different weights")  # fmt: skip


def _say(what: str, sha256: str, new: Sequence[str]) -> None:
    log.info(f"begins with {what} (sha256 {sha256[:12]}...)")
    if new:
        log.warn(f"not loaded from there (initialised by the seed or left out): {some(new, 6)}")


def _below(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")
