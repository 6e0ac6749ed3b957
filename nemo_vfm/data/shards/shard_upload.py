"""Uploads a finished folder of shards to an object store; readers see it whole or not at all.

Shards are named there by the hash of their content, so those of another version are never overwritten. One object,
`shards.json`, is replaced at the end and decides which version is seen. Shards from an upload that was killed are
reused.
"""

import json
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.log import info
from nemo_vfm.core.storage import object_store
from nemo_vfm.core.storage.files import read_json, sha256_text
from nemo_vfm.core.storage.uri import Address
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.data.shards.shard_folder import read_shards_json

_OURS = re.compile(r"shard-\d{6}-[0-9a-f]{16}\.(tar|json)")
_AT_ONCE = 4
_BEFORE = "before"  # key of shards.json: the files of the version that it replaced


def upload_shards(folder: Path, target: Address | None) -> int:
    """Bring a folder of shards into the store; nothing to do without a target.

    The version before the last stays until the next upload, for those who are reading it.

    Returns:
        How many files were sent; 0 where all was there.

    Raises:
        UserError: the target holds something else.
        StoreError: the store does not answer, or refuses us; what was there before is still seen.
    """
    if target is None:
        return 0
    there = {item.name: item.size for item in object_store.items(target)}
    seen: dict[str, Json] = {}
    if "shards.json" in there:
        try:
            read_shards_json(target)
            seen = json.loads(object_store.read(target / "shards.json") or b"{}")
        except DataError as error:
            raise UserError(
                f"{target} holds something other than our shards ({error}); choose another copy_to"
            ) from error
    # The content of the store's shards.json, and which file goes there under which name.
    content: dict[str, Json] = read_json(folder / "shards.json")
    files: dict[str, Path] = {}
    for shard, written in zip(read_shards_json(folder), content["shards"], strict=True):
        stem = shard["name"].removesuffix(".tar")
        name = f"{stem}-{sha256_text(shard['sha256'] + shard['index_sha256'])[:16]}"
        files |= {f"{name}{end}": folder / f"{stem}{end}" for end in (".tar", ".json")}
        written["name"] = f"{name}.tar"
    missing = {name: path for name, path in files.items() if there.get(name) != path.stat().st_size}
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="upload") as threads:
        list(threads.map(lambda name: object_store.upload(missing[name], target / name), sorted(missing)))
    if {**seen, _BEFORE: None} == {**content, _BEFORE: None}:
        return len(missing)
    marker = {**content, _BEFORE: sorted(_files(seen))}
    object_store.write((json.dumps(marker, indent=1, ensure_ascii=False) + "\n").encode(), target / "shards.json")
    # The version before the last goes. What no shards.json ever named stays: another upload may be bringing it.
    kept, before = files.keys() | _files(seen), seen.get(_BEFORE)
    for name in before if isinstance(before, list) else ():
        if isinstance(name, str) and _OURS.fullmatch(name) and name not in kept:
            object_store.remove(target / name)
    info(f"{target}: {len(missing)} files sent, {len(files) - len(missing)} were already there")
    return len(missing) + 1


def _files(content: Mapping[str, Json]) -> set[str]:
    tars = [shard["name"] for shard in content.get("shards", ())]
    return {name for tar in tars for name in (tar, f"{tar.removesuffix('.tar')}.json")}
