"""Exports clips to tars that megatron-energon reads, with a part held out for validation."""

from pathlib import Path

from nemo_vfm.curate.sink.export import ExportResult, clips
from nemo_vfm.data.shards.energon_index import write_energon_meta
from nemo_vfm.data.shards.shard_files import ShardSet, ShardWriter
from nemo_vfm.data.shards.shard_folder import is_held_out


class Energon:
    """WebDataset tars with `.nv-meta/`, for Megatron's loader; ours reads them as well.

    The clips that are held out are those that our own loader holds out for the same share.

    Args:
        samples_per_shard: clips a tar.
        val_share: part of the clips held out as `val`, 0 to 1.
    """

    def __init__(self, *, samples_per_shard: int = 512, val_share: float = 0.0) -> None:
        if samples_per_shard < 1 or not 0 <= val_share < 1:
            raise ValueError(
                f"samples_per_shard must be at least 1 and val_share from 0 to below 1, got {samples_per_shard} "
                f"and {val_share}"
            )
        self.samples_per_shard, self.val_share = samples_per_shard, val_share

    def write(self, shards: ShardSet, folder: Path, at: Path) -> ExportResult:
        written, held_out = ExportResult(), []
        with ShardWriter(folder, samples_per_shard=self.samples_per_shard) as writer:
            for entry in clips(shards, written):
                names = list(entry.members)
                writer.write(entry.key, dict(zip(names, shards.read_all(entry, names), strict=True)), entry.index)
                written.written += 1
                held_out += [entry.key] if is_held_out(entry, self.val_share) else []
        if written.written:
            parts = write_energon_meta(folder, {"val": held_out} if held_out else None)
            written.notes.append(f"parts: {', '.join(f'{number} {name}' for name, number in parts.items())}")
        return written
