"""Writes the index files that megatron-energon 7.4.1 needs beside a finished folder of our shards.

The tars stay as they are. Three things are added. `.nv-meta/` says how many samples each tar has, which belong to which
part, and where every member lies. One `.tar.idx` per tar says where each sample begins. `energon.yaml` is a metadataset
that gives every part exactly. Everything but `index.sqlite` follows from the shards alone, byte for byte. SQLite writes
its own version into the header, so another SQLite writes other bytes around the same tables.
"""

import hashlib
import json
import shutil
import sqlite3
import struct
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.storage.files import sync, write_bytes, write_text
from nemo_vfm.data.shards.shard_files import ShardSet
from nemo_vfm.data.shards.shard_folder import Entry
from nemo_vfm.data.shards.tar_members import BLOCK

#: What the files say they were written by: the release whose reader they were tested with.
ENERGON_VERSION = "7.4.1"
META, METADATASET = ".nv-meta", "energon.yaml"
TRAIN = "train"
_PICTURES = ("latents.safetensors", "mp4", "mkv", "webm", "mov", "avi", "png", "jpg", "jpeg")

_TABLES = (
    "CREATE TABLE samples (tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL UNIQUE, "
    "sample_index INTEGER NOT NULL, byte_offset INTEGER, byte_size INTEGER)",
    "CREATE TABLE sample_parts (tar_file_id INTEGER, sample_index INTEGER, part_name TEXT, "
    "content_byte_offset INTEGER, content_byte_size INTEGER)",
)
_INDICES = (
    "CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index)",
    "CREATE INDEX idx_sample_parts_seq ON sample_parts(tar_file_id, sample_index, content_byte_offset)",
    "CREATE INDEX idx_sample_parts_full ON "
    "sample_parts(tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size)",
)


@dataclass(frozen=True, slots=True)
class _Tar:
    """One tar."""

    name: str  #: of the file
    entries: Sequence[Entry]  #: its samples, in the tar's order
    begins: Sequence[int]  #: where each sample's first header lies, and where the last one's last member ends


def write_energon_meta(folder: Path, splits: Mapping[str, Collection[str]] | None = None) -> dict[str, int]:
    """Make a finished folder of our shards readable by megatron-energon, in place; how many samples each part has.

    Energon divides whole tars. A tar whose samples are all of one part is given to that part; a mixed one is trained
    on without those samples, and the other parts find theirs through `energon.yaml`. `splits` says which keys each
    part, such as `val`, has; what is in none is trained on.

    Raises:
        UserError: the folder is not finished, a key is unknown or in two parts, or a part has an odd name.
    """
    if not (folder / "shards.json").is_file():
        raise UserError(f"{folder} has no shards.json, so it is not one of our finished folders; prepare other tars "
                        f"with `energon prepare`")  # fmt: skip
    tars = []
    for name, group in groupby(ShardSet(folder).entries, lambda entry: entry.shard):
        entries = list(group)
        begins = [min(offset for offset, _ in entry.members.values()) - BLOCK for entry in entries]
        offset, size = max(entries[-1].members.values())
        tars.append(_Tar(name, entries, [*begins, offset + size + -size % BLOCK]))
    parts = _parts(tars, splits or {})
    for tar in tars:
        write_bytes(folder / f"{tar.name}.idx", struct.pack(f"<{len(tar.begins)}Q", *tar.begins))
    # Parts by the files that give each exactly; a part without samples has none.
    lists = [
        f"  {name}:\n    path: .\n    split_part: {name}\n    split_config: {'split' if name == TRAIN else name}.yaml\n"
        for name, keys in parts.items()
        if keys
    ]
    head = "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n"
    write_text(folder / METADATASET, head + "".join(lists))
    _replace(folder / META, _texts(tars, parts, hashlib.sha256((folder / "shards.json").read_bytes()).digest()), tars)
    return {name: len(keys) for name, keys in parts.items()}


def _parts(tars: Sequence[_Tar], splits: Mapping[str, Collection[str]]) -> dict[str, set[str]]:
    """Every part's keys; each sample is in one."""
    rest = {entry.key for tar in tars for entry in tar.entries}
    parts: dict[str, set[str]] = {TRAIN: set()}
    for name, keys in splits.items():
        if not name.isidentifier() or name == "split":
            raise UserError(f"{name!r} cannot be the name of a part; use a name such as val or test")
        if missing := set(keys) - rest:
            raise UserError(f"sample {min(missing)} of part {name} is not in the shards, or in another part, too")
        parts[name] = set(keys)
        rest -= parts[name]
    parts[TRAIN] |= rest
    return parts


def _texts(tars: Sequence[_Tar], parts: Mapping[str, set[str]], identity: bytes) -> dict[str, str]:
    """The small files of `.nv-meta`."""
    counts = {tar.name: len(tar.entries) for tar in tars}
    standard: dict[str, list[str]] = {part: [] for part in parts}
    for tar in tars:  # to the part that all its samples are in, if there is one
        owners = {name for entry in tar.entries for name, keys in parts.items() if entry.key in keys}
        standard[owners.pop() if len(owners) == 1 else TRAIN].append(tar.name)
    texts = {
        ".info.json": json.dumps({"energon_version": ENERGON_VERSION, "shard_counts": counts}, indent=2),
        "index.uuid": str(uuid.UUID(bytes=identity[:16], version=4)),
        "split.yaml": _split(standard, _without(tars, parts[TRAIN], standard[TRAIN])),
        "dataset.yaml": "__module__: megatron.energon\n__class__: CrudeWebdataset\n",
    }
    for part in parts.keys() - {TRAIN}:
        names = [tar.name for tar in tars if any(entry.key in parts[part] for entry in tar.entries)]
        texts[f"{part}.yaml"] = _split({part: names}, _without(tars, parts[part], names))
    # A second description with a sample type: `energon info` stops at one without (7.4.1).
    members = set.intersection(*(set(entry.members) for tar in tars for entry in tar.entries)) if tars else set()
    picture = next((name for name in _PICTURES if name in members), None)
    if picture is not None and "txt" in members:
        kind = "sample_type:\n  __module__: megatron.energon\n  __class__: CaptioningSample\n"
        texts["captioning.yaml"] = f"{kind}field_map:\n  image: {picture}\n  caption: txt\n"
    return texts


def _without(tars: Sequence[_Tar], keys: set[str], names: Collection[str]) -> list[str]:
    """Energon's names of the samples in some tars that are not among the keys."""
    return [f"{tar.name}/{e.key}" for tar in tars if tar.name in names for e in tar.entries if e.key not in keys]


def _split(parts: Mapping[str, Sequence[str]], exclude: Sequence[str]) -> str:
    lists = "".join(f"  {name}:{_items(names, 2)}" for name, names in parts.items())
    return f"split_parts:\n{lists}exclude:{_items(exclude, 0)}"


def _items(names: Sequence[str], indent: int) -> str:
    """A list in YAML; names of ours need no escape, and quotes keep digits texts."""
    return "".join(["\n", *(f"{' ' * indent}- '{name}'\n" for name in names)]) if names else " []\n"


def _replace(meta: Path, texts: Mapping[str, str], tars: Sequence[_Tar]) -> None:
    """Fill a folder and put it in the old one's place: energon sees none of it or all."""
    partial = meta.with_name(f"{meta.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    for name, text in sorted(texts.items()):
        write_text(partial / name, text)
    database = sqlite3.connect(partial / "index.sqlite")
    try:
        for statement in _TABLES:
            database.execute(statement)
        samples = (
            (number, entry.key, index, begin, end - begin)
            for number, tar in enumerate(tars)
            for index, (entry, (begin, end)) in enumerate(zip(tar.entries, pairwise(tar.begins), strict=True))
        )
        database.executemany("INSERT INTO samples VALUES (?, ?, ?, ?, ?)", samples)
        members = (
            (number, index, name, offset, size)
            for number, tar in enumerate(tars)
            for index, entry in enumerate(tar.entries)
            for name, (offset, size) in sorted(entry.members.items(), key=lambda member: member[1])
        )
        database.executemany("INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)", members)
        for statement in _INDICES:
            database.execute(statement)
        database.commit()
    finally:
        database.close()
    sync(partial / "index.sqlite")
    shutil.rmtree(meta, ignore_errors=True)
    partial.rename(meta)
    sync(meta.parent)
