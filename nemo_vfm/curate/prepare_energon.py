"""Adds the index files with which megatron-energon reads a finished folder of shards."""

from nemo_vfm.core.errors import NothingKept
from nemo_vfm.core.storage.uri import local
from nemo_vfm.core.storage.write_path import ChangedPath
from nemo_vfm.core.types.job import Outcome, Run
from nemo_vfm.data.shards.energon_index import TRAIN, write_energon_meta
from nemo_vfm.data.shards.shard_files import ShardSet
from nemo_vfm.data.shards.shard_folder import is_held_out


class WriteEnergon:
    """Adds the index files of megatron-energon to a folder of shards; the tars and our own index do not change.

    Quick, since only the index is read; repeated at every run.

    Args:
        shards: folder that curation or its encode step wrote, on a disk.
        val_fraction: share of the samples in the part `val`, at least 0 and below 1; the same samples that training
            with this `val_fraction` holds out.
    """

    def __init__(self, *, shards: ChangedPath, val_fraction: float = 0.0) -> None:
        if not 0 <= val_fraction < 1:
            raise ValueError(f"val_fraction must be at least 0 and below 1, got {val_fraction}")
        self.shards, self.val_fraction = local(shards, "the shards for energon"), val_fraction

    def run(self, run: Run) -> Outcome:
        """Write `.nv-meta`, the tars' `.tar.idx` and `energon.yaml` into the folder.

        Raises:
            UserError: the folder is not finished.
            NothingKept: it has no samples.
        """
        entries = ShardSet(self.shards).entries
        if not entries:
            raise NothingKept(f"{self.shards} holds no samples; see what the previous step dropped, and why")
        held_out = {entry.key for entry in entries if is_held_out(entry, self.val_fraction)}
        counts = write_energon_meta(self.shards, {"val": held_out} if held_out else {})
        parts = ", ".join(f"{count} {part}" for part, count in counts.items())
        return Outcome(f"energon reads {self.shards}: {parts}", {"samples": len(entries), "train": counts[TRAIN]})
