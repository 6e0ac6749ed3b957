# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Named tensors and a state in, a checkpoint folder out that is whole or absent; and the newest whole one back.

A checkpoint is `step-00000100/` holding one safetensors file a group (model, ema, optimizer) and, written last,
`manifest.json` with the sha256 of each file. There is no pickle in it. safetensors is imported when used, so that
engines need torch alone.
"""

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from nemo_vfm.core import log
from nemo_vfm.core.errors import CorruptCheckpoint, UserError
from nemo_vfm.core.files import read_json, sha256_file, sync, write_json
from nemo_vfm.core.types import Json

SCHEMA = "nemo_vfm.checkpoint/1"
_NAME = re.compile(r"step-(\d{8})")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What was read back: tensors by group and name, and the JSON state that was saved with them."""

    step: int
    groups: Mapping[str, Mapping[str, Tensor]]
    state: Json


def save(folder: Path, step: int, groups: Mapping[str, Mapping[str, Tensor]], state: Json, keep: int | None) -> Path:
    """Write `folder/step-<step>`; a kill at any moment leaves it whole or absent.

    Args:
        folder: the run's checkpoint folder.
        step: optimizer steps done.
        groups: tensors by group and name; each group becomes one file.
        state: anything JSON can hold.
        keep: how many of the newest checkpoints stay; None keeps all.
    """
    final = folder / f"step-{step:08d}"
    temporary = folder / f".{final.name}.{os.getpid()}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    files = {f"{group}.safetensors": _write(temporary, group, tensors) for group, tensors in groups.items()}
    write_json(temporary / "manifest.json", {"schema": SCHEMA, "step": step, "files": files, "state": state})
    sync(temporary)
    shutil.rmtree(final, ignore_errors=True)
    temporary.replace(final)
    sync(folder)
    _forget(folder, keep)
    return final


def _write(folder: Path, group: str, tensors: Mapping[str, Tensor]) -> dict[str, Json]:
    from safetensors.torch import save_file

    path = folder / f"{group}.safetensors"
    # safetensors refuses views that share storage, and wants dense memory.
    save_file({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}, path)
    sync(path)
    return {"sha256": sha256_file(path), "bytes": path.stat().st_size}


def _forget(folder: Path, keep: int | None) -> None:
    for path in [] if keep is None else existing(folder)[:-keep]:
        # The manifest goes first: a purge that is killed half-way must not leave what looks whole.
        (path / "manifest.json").unlink(missing_ok=True)
        shutil.rmtree(path, ignore_errors=True)
    for leftover in folder.glob(".step-*.tmp"):
        shutil.rmtree(leftover, ignore_errors=True)


def existing(folder: Path) -> list[Path]:
    """The finished checkpoints of a folder, oldest first; links are passed over."""
    found = [path for path in folder.glob("step-*") if _NAME.fullmatch(path.name) and not path.is_symlink()]
    return sorted(path for path in found if (path / "manifest.json").is_file())


def verify(path: Path) -> Json:
    """The manifest of a checkpoint whose files are all there and unchanged.

    Raises:
        CorruptCheckpoint: a file is missing, truncated or changed, or the manifest cannot be read.
    """
    manifest = _manifest(path)
    for name, expected in manifest["files"].items():
        file = path / name
        if not file.is_file():
            raise CorruptCheckpoint(f"{path}: {name} is missing; the manifest lists it.")
        if file.stat().st_size != expected["bytes"] or sha256_file(file) != expected["sha256"]:
            raise CorruptCheckpoint(f"{path}: {name} is damaged; its bytes do not match the hash in the manifest.")
    return manifest


def _manifest(path: Path) -> Json:
    try:
        manifest = read_json(path / "manifest.json")
        schema, _ = manifest["schema"], manifest["files"].items()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptCheckpoint(f"{path}: manifest.json cannot be read ({error}).") from error
    if schema != SCHEMA:
        raise UserError(
            f"{path} was written as {schema!r}; this version reads {SCHEMA!r}. Use the version that wrote it."
        )
    return manifest


def latest(folder: Path) -> Path | None:
    """The newest checkpoint whose hashes hold; damaged newer ones are passed over, loudly. None if there is none.

    Raises:
        CorruptCheckpoint: there are checkpoints, and all of them are damaged.
    """
    candidates = existing(folder)
    for path in reversed(candidates):
        try:
            verify(path)
        except CorruptCheckpoint as error:
            log.warn(f"{error} Going back to the checkpoint before it.")
        else:
            return path
    if candidates:
        raise CorruptCheckpoint(
            f"None of the {len(candidates)} checkpoints in {folder} is whole; delete them to start over."
        )
    return None


def load(path: Path) -> Checkpoint:
    """Read a whole checkpoint.

    Raises:
        CorruptCheckpoint: it does not match its manifest.
    """
    manifest = verify(path)
    groups = {name.removesuffix(".safetensors"): _read(path / name) for name in manifest["files"]}
    return Checkpoint(manifest["step"], groups, manifest["state"])


def _read(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise CorruptCheckpoint(f"{path} is not a readable safetensors file ({error}).") from error


def load_weights(path: Path, group: str) -> dict[str, Tensor]:
    """The weights of `group` ("model" or "ema") from a checkpoint, or from the newest one of a folder of them.

    Raises:
        UserError: there is no checkpoint there, or it has no such group.
    """
    chosen = path if (path / "manifest.json").is_file() else latest(path)
    if chosen is None:
        raise UserError(f"There is no checkpoint in {path}; expected folders such as step-00000100. Train first.")
    files = verify(chosen)["files"]
    if f"{group}.safetensors" not in files:
        raise UserError(f"{chosen} holds no {group} weights; it has {', '.join(sorted(files))}.")
    return _read(chosen / f"{group}.safetensors")
