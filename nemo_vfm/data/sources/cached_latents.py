"""Tells sources that give cached latents from those that give pixels."""

from pathlib import Path

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.storage.uri import Place
from nemo_vfm.data.shards.sample_members import LATENTS
from nemo_vfm.data.shards.shard_folder import folder_at, indexed_entries, read_shards_json
from nemo_vfm.data.shards.shard_paths import folders_of
from nemo_vfm.data.sources.blend import Blend
from nemo_vfm.data.sources.packed import PackedLatents
from nemo_vfm.data.sources.shard_data import ShardData
from nemo_vfm.data.sources.streamed import StreamedTars


def gives_latents(data: object) -> bool:
    """Whether its samples are known to be cached latents, all of them."""
    if isinstance(data, Blend):
        return all(gives_latents(source.data) for source in data.sources.values())
    if isinstance(data, ShardData) and data.shapes is not None:
        return data.shapes.learns_latents()
    if isinstance(data, ShardData):
        return data.buckets is None or all(map(_has_latents, folders_of(data.shards)))
    return isinstance(data, PackedLatents) or (isinstance(data, StreamedTars) and data.bucket is None)


def _has_latents(folder: Place) -> bool:
    """Whether a folder of ours here has latents, which are read in the place of its clips; one index is looked at."""
    if not isinstance(folder, Path):
        return False
    try:
        first = indexed_entries(folder, folder_at(folder, None), read_shards_json(folder)[:1])[:1]
    except (UserError, DataError, OSError):  # given later, or without an index
        return False
    return any(LATENTS in entry.members for entry in first)
