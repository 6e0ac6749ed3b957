# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A finished folder of shards in; the same shards in an object store out, seen whole or not at all.

Shards are named there by what is in them, so those of another version are never overwritten: one object, `shards.json`,
is exchanged at the end and decides which version is seen. What an upload that was killed had brought is used again.
"""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from nemo_vfm.core import store
from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.files import read_json, sha256_text
from nemo_vfm.core.log import info
from nemo_vfm.core.place import Address
from nemo_vfm.core.types import Json
from nemo_vfm.data.shard_index import read_shards_json

_OURS = re.compile(r"shard-\d{6}-[0-9a-f]{16}\.(tar|json)")
_AT_ONCE = 4


def upload_shards(folder: Path, target: Address) -> int:
    """Bring a folder of shards into the store.

    The version before the last stays until the next upload, for those who are reading it.

    Returns:
        How many files were sent; 0 where all was there.

    Raises:
        UserError: the target holds something else.
        StoreError: the store does not answer, or refuses us; what was there before is still seen.
    """
    there = {item.name: item.size for item in store.items(target)}
    before = _names(target) if "shards.json" in there else set()
    marker, files = _renamed(folder)
    missing = {name: path for name, path in files.items() if there.get(name) != path.stat().st_size}
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="upload") as threads:
        list(threads.map(lambda name: store.upload(missing[name], target / name), sorted(missing)))
    if store.read(target / "shards.json") == marker:
        return len(missing)
    store.write(marker, target / "shards.json")
    for name in sorted(there.keys() - files.keys() - before):
        if _OURS.fullmatch(name):
            store.remove(target / name)
    info(f"{target}: {len(missing)} files sent, {len(files) - len(missing)} were there")
    return len(missing) + 1


def _renamed(folder: Path) -> tuple[bytes, dict[str, Path]]:
    """The bytes of the store's shards.json, and which file goes there under which name."""
    content: Json = read_json(folder / "shards.json")
    files: dict[str, Path] = {}
    for shard, written in zip(read_shards_json(folder), content["shards"], strict=True):
        stem = shard["name"].removesuffix(".tar")
        name = f"{stem}-{sha256_text(shard['sha256'] + shard['index_sha256'])[:16]}"
        files |= {f"{name}{end}": folder / f"{stem}{end}" for end in (".tar", ".json")}
        written["name"] = f"{name}.tar"
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode(), files


def _names(target: Address) -> set[str]:
    """The files of the version that is seen now."""
    try:
        tars = [shard["name"] for shard in read_shards_json(target)]
    except DataError as error:
        raise UserError(f"{target} holds something else than shards of ours ({error}); take another copy_to") from error
    return {name for tar in tars for name in (tar, f"{tar.removesuffix('.tar')}.json")}
