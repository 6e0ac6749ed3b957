"""Writes and reads a checkpoint's sealed `manifest.json`, every value checked.

The version is `major.minor`. Another minor version has only added keys that a reader may ignore, so it is read; another
major version is refused. Version 1 is written by one process, one file per group. In version 2 a group lies in one file
per rank, with `pieces.json` beside them, which a reader of version 1 would take for damage. `seal` is the sha256 of all
other keys as sorted, compact JSON, in every version. So a flipped bit in the version is recognised as damage and not
taken for a future version.
"""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

from nemo_vfm.core import log
from nemo_vfm.core.errors import CorruptCheckpoint, UserError
from nemo_vfm.core.storage import checkpoint_names
from nemo_vfm.core.storage.files import sha256_text, write_json
from nemo_vfm.core.types.json_value import Json, each_key_once
from nemo_vfm.parallel.checkpoint.tensor_file import FileDigest

NAME = checkpoint_names.MANIFEST
MAX_BYTES = 16 << 20
_VERSION = re.compile(r"nemo_vfm\.checkpoint/(\d{1,6})(?:\.(\d{1,6}))?")
_OURS = {1: 1, 2: 0}  # major: the newest minor version of it
_FILE = re.compile(r"\w[\w.-]{0,120}\.safetensors|pieces\.json", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}")


class CheckpointManifest(TypedDict):
    """What `manifest.json` holds."""

    schema: str  #: and its version
    seal: NotRequired[str]  #: of all other keys; version 1.0 had none.
    step: int  #: optimizer steps done
    run: str  #: which run it is of; empty where version 1.0 did not say.
    files: dict[str, FileDigest]  #: name -> its digest
    metrics: dict[str, float]  #: the newest figures, by which the best are kept
    permanent: bool  #: whether no rule deletes it
    state: Json  #: what training remembers besides tensors


def write(folder: Path, content: Mapping[str, Json]) -> None:
    """Write the manifest of what lies in a folder."""
    major = 2 if "pieces.json" in content["files"] else 1
    whole = {"schema": f"nemo_vfm.checkpoint/{major}.{_OURS[major]}", **content}
    write_json(folder / NAME, {**whole, "seal": seal(whole)})


def seal(manifest: Mapping[str, Json]) -> str:
    """The sha256 of a manifest without its seal."""
    content = {key: value for key, value in manifest.items() if key != "seal"}
    return sha256_text(json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False))


def read(folder: Path) -> CheckpointManifest:
    """A manifest whose every value is what it should be; keys that version 1.0 did not have are filled in.

    Raises:
        CorruptCheckpoint: it cannot be read, was changed, or says what cannot be.
        UserError: it is of another major version.
    """
    try:
        path = folder / NAME
        _require(path.stat().st_size <= MAX_BYTES, "it is too large")
        found = json.loads(path.read_bytes(), object_pairs_hook=each_key_once)
        _require(isinstance(found, dict), "it is not a mapping")
        manifest = {"run": "", "metrics": {}, "permanent": False, **found} if "seal" not in found else found
        match = _VERSION.fullmatch(manifest["schema"])
        if match is None:
            raise ValueError(f"its schema is {manifest['schema'][:40]!r}")
        version = int(match[1]), int(match[2] or 0)
        if "seal" in manifest or version >= (1, 1):
            _require(manifest.get("seal") == seal(manifest), "its seal does not match")
        if version[0] in _OURS:
            _judge(manifest, folder)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptCheckpoint(f"{folder}: manifest.json is damaged ({error}).") from error
    if version[0] not in _OURS:
        raise UserError(
            f"{folder} was written as version {version[0]} of our checkpoints; this nemo_vfm reads "
            f"versions {' and '.join(map(str, _OURS))}. Use the version of nemo_vfm that wrote it, or a newer one."
        )
    if version[1] > _OURS[version[0]]:
        log.warn_once(
            f"{folder} has the newer version {version[0]}.{version[1]}; this nemo_vfm reads only the fields that it "
            "knows"
        )
    return cast("CheckpointManifest", manifest)


def _judge(manifest: dict[str, Any], folder: Path) -> None:
    step, files, named = manifest["step"], manifest["files"], checkpoint_names.step_of(folder.name)
    _require(type(step) is int and 0 <= step < 2**63, "its step is not a whole number")
    _require(named in (-1, step), f"it is from step {step}")
    _require(isinstance(files, dict) and bool(files), "it lists no files")
    for name, entry in files.items():
        _require(_FILE.fullmatch(name) is not None, f"it lists {name[:80]!r}, which is not a file of a checkpoint")
        _require(type(entry["bytes"]) is int and entry["bytes"] >= 0, f"the size of {name} is invalid")
        _require(_SHA256.fullmatch(entry["sha256"]) is not None, f"the hash of {name} is invalid")
    metrics = manifest["metrics"]
    _require(all(type(v) in (int, float) and math.isfinite(v) for v in metrics.values()), "a metric is not a number")
    _require(isinstance(manifest["run"], str) and type(manifest["permanent"]) is bool, "it does not name its run")
    _require("state" in manifest, "it has no state")


def _require(true: bool, otherwise: str) -> None:
    if not true:
        raise ValueError(otherwise)
