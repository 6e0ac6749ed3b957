# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Named tensors and a state in, a checkpoint folder out that is whole or absent; and the newest whole one back.

A checkpoint is `step-00000100/` holding one safetensors file a group (model, ema, optimizer) and, written last, the
manifest. There is no pickle in it. safetensors is imported when used, so that engines need torch alone.
"""

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from nemo_vfm.core import held, log
from nemo_vfm.core.errors import CorruptCheckpoint, UserError
from nemo_vfm.core.files import sha256_file, sync
from nemo_vfm.core.types import Json
from nemo_vfm.parallel import checkpoint_manifest as manifests
from nemo_vfm.parallel import tensor_file
from nemo_vfm.parallel.retention import Keep, Record, surplus

_NAME = re.compile(r"step-(\d{8,})")
_SUFFIX = ".safetensors"
_ROOM = 1.05  # of the bytes of the tensors, for headers and manifest


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What was read back: tensors by group and name, and the JSON state that was saved with them.

    Args:
        run: names the run that wrote it; empty where it is not known.
    """

    step: int
    groups: Mapping[str, Mapping[str, Tensor]]
    state: Json
    run: str = ""


@dataclass(frozen=True, slots=True)
class About:
    """What is said of a checkpoint besides its content.

    Args:
        run: names the run; a file of another run is not taken for one of this.
        metrics: measured at this very step, for choosing the best.
        permanent: no later purge takes it.
    """

    run: str = ""
    metrics: Mapping[str, float] | None = None
    permanent: bool = False


def save(
    folder: Path, step: int, groups: Mapping[str, Mapping[str, Tensor]], state: Json, keep: Keep = Keep(),  # noqa: B008 (frozen)
    about: About = About(),
) -> Path:  # fmt: skip
    """Write `folder/step-<step>`; a kill at any moment leaves it whole or absent, and an earlier one loadable.

    Args:
        folder: the run's checkpoint folder.
        step: optimizer steps done.
        groups: tensors by group and name; each group becomes one file.
        state: anything JSON can hold.
        keep: which checkpoints stay once this one is written.

    Raises:
        UserError: the disk is full or fails; what was there before is untouched.
    """
    held.stop_if_lost()
    final = folder / f"step-{step:08d}"
    temporary = folder / f".{final.name}.{os.getpid()}.tmp"
    try:
        require_room(folder, sum(_bytes(tensors) for tensors in groups.values()))
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        files = {
            f"{group}{_SUFFIX}": _write(temporary, group, step, tensors, about) for group, tensors in groups.items()
        }
        manifests.write(temporary, {
            "step": step, "run": about.run, "files": files, "metrics": dict(about.metrics or {}),
            "permanent": about.permanent, "state": state,
        })  # fmt: skip
        _put(temporary, final)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise UserError(
            f"The checkpoint of step {step} could not be written to {folder} ({_why(error)}). Earlier ones are "
            f"untouched; make room or mend the disk, and run it again."
        ) from error
    _purge(folder, keep, about.run, final)
    return final


def require_room(folder: Path, num_bytes: int) -> None:
    """Refuse before anything is written where the disk clearly cannot take so many bytes.

    Raises:
        UserError: it cannot.
    """
    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.is_dir())
    free = shutil.disk_usage(there).free
    if free < num_bytes * _ROOM:
        raise UserError(
            f"A checkpoint needs {num_bytes * _ROOM / 1e9:.3g} GB, and the disk of {folder} has {free / 1e9:.3g} GB "
            f"free. Make room, or take another run_dir; earlier checkpoints are untouched."
        )


def _bytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def _why(error: OSError) -> str:
    return error.strerror or str(error)


def _write(folder: Path, group: str, step: int, tensors: Mapping[str, Tensor], about: About) -> dict[str, Json]:
    return tensor_file.write(
        folder / f"{group}{_SUFFIX}", tensors, {"group": group, "step": str(step), "run": about.run}
    )


def _put(temporary: Path, final: Path) -> None:
    """Give a whole folder its name. What is there under it already is a damaged one, or a link that a user made."""
    sync(temporary)
    if final.is_symlink():
        final.unlink()  # the link alone: what it points to is not ours
    elif final.exists():
        aside = final.with_name(f"{temporary.name}.old.tmp")
        shutil.rmtree(aside, ignore_errors=True)
        final.replace(aside)
    temporary.replace(final)
    sync(final.parent)


def _purge(folder: Path, keep: Keep, run: str, newest: Path) -> None:
    """Delete what the rule does not keep, once the newest is known to be whole; a failure costs only disk space."""
    try:
        # Those of later steps are damaged ones that a resume passed over: they must not push out what was just written.
        known = [r for r in records(folder) if r.run in ("", run) and not r.path.is_symlink()]
        gone = surplus([r for r in known if r.step <= int(newest.name.removeprefix("step-"))], keep)
        if gone:
            verify(newest)
        for path in gone:
            # The rename is one act: a purge that is killed half-way leaves nothing that looks whole.
            path.replace(folder / f".{path.name}.{os.getpid()}.tmp")
        for leftover in folder.glob(".step-*.tmp"):
            shutil.rmtree(leftover, ignore_errors=True)  # it does not follow links, and leaves one where it is
    except (OSError, CorruptCheckpoint) as error:
        log.warn(f"Old checkpoints were not deleted: {error}")


def existing(folder: Path) -> list[Path]:
    """The finished checkpoints of a folder, oldest first; one may be a link to where a user moved it."""
    found = [path for path in folder.glob("step-*") if _NAME.fullmatch(path.name) and (path / manifests.NAME).is_file()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))


def records(folder: Path) -> list[Record]:
    """What the manifests say, oldest first; checkpoints whose manifest cannot be read are left out."""
    found = []
    for path in existing(folder):
        try:
            manifest = manifests.read(path)
        except (CorruptCheckpoint, UserError):
            continue
        found.append(Record(path, manifest["step"], manifest["run"], manifest["metrics"], manifest["permanent"]))
    return found


def verify(path: Path) -> Json:
    """The manifest of a checkpoint whose files are all there, unchanged and its own.

    Raises:
        CorruptCheckpoint: a file is missing, surplus, truncated, changed or of another checkpoint.
        UserError: a version of nemo_vfm wrote it that this one cannot read.
    """
    manifest = manifests.read(path)
    if surplus_files := sorted({file.name for file in path.glob(f"*{_SUFFIX}")} - manifest["files"].keys()):
        raise CorruptCheckpoint(f"{path}: {surplus_files[0]} is there and not in the manifest.")
    for name, expected in manifest["files"].items():
        file = path / name
        if not file.is_file():
            raise CorruptCheckpoint(f"{path}: {name} is missing; the manifest lists it.")
        if file.stat().st_size != expected["bytes"] or _sha256(file) != expected["sha256"]:
            raise CorruptCheckpoint(f"{path}: {name} is damaged; its bytes do not match the hash in the manifest.")
        _require_own(file, manifest)
    return manifest


def _sha256(file: Path) -> str:
    try:
        return sha256_file(file)
    except OSError as error:
        raise CorruptCheckpoint(f"{file} cannot be read ({_why(error)}).") from error


def _require_own(file: Path, manifest: Json) -> None:
    """A file says itself which group, step and run it is of, so that a swap is seen even where hashes were redone."""
    own = {"group": file.name.removesuffix(_SUFFIX), "step": str(manifest["step"]), "run": manifest["run"]}
    about = tensor_file.read_header(file).about
    other = [f"{key} {about[key][:80]}" for key in own if key in about and about[key] != own[key]]
    if other:
        raise CorruptCheckpoint(f"{file} belongs elsewhere: it is of {', '.join(other)}.")


def latest(folder: Path) -> Path | None:
    """The newest checkpoint whose hashes hold; damaged newer ones are passed over, loudly. None if there is none.

    Raises:
        CorruptCheckpoint: there are checkpoints, and all of them are damaged.
        UserError: they are of several runs, or of a version that cannot be read.
    """
    candidates = existing(folder)
    _require_one_run(folder)
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


def _require_one_run(folder: Path) -> None:
    of = {record.run: record.path.name for record in records(folder) if record.run}
    if len(of) > 1:
        raise UserError(
            f"{folder} holds checkpoints of {len(of)} runs ({', '.join(sorted(of.values()))} are of different ones); "
            f"move away what does not belong here. To begin from another run's weights there is start_from."
        )


def load(path: Path) -> Checkpoint:
    """Read a whole checkpoint.

    Raises:
        CorruptCheckpoint: it does not match its manifest.
    """
    manifest = verify(path)
    groups = {name.removesuffix(_SUFFIX): tensor_file.read(path / name) for name in manifest["files"]}
    return Checkpoint(manifest["step"], groups, manifest["state"], manifest["run"])


def find(path: Path) -> Path:
    """The checkpoint that a path means: one, the newest of a folder of them, or the newest of a run or of its one step.

    Raises:
        UserError: there is none there, or there are several steps that have some.
    """
    if (path / manifests.NAME).is_file() and not (path / "recipe.yaml").is_file():
        return path
    below = sorted(path.glob("*/checkpoints"))
    if not existing(path) and not (path / "checkpoints").is_dir() and len(below) > 1:
        steps = ", ".join(str(folder.parent) for folder in below)
        raise UserError(f"Several folders below {path} hold checkpoints; name one of {steps}.")
    places = [path, path / "checkpoints", *below]
    chosen = next((found for place in places if (found := latest(place)) is not None), None)
    if chosen is None:
        raise UserError(f"There is no checkpoint in {path}; expected folders such as step-00000100. Train first.")
    return chosen


def load_weights(path: Path, group: str) -> dict[str, Tensor]:
    """The weights of `group` ("model" or "ema") of the checkpoint that `path` means, see `find`.

    Raises:
        UserError: there is no checkpoint there, or it has no such group.
    """
    chosen = find(path)
    files = verify(chosen)["files"]
    if f"{group}{_SUFFIX}" not in files:
        raise UserError(f"{chosen} holds no {group} weights; it has {', '.join(sorted(files))}.")
    return tensor_file.read(chosen / f"{group}{_SUFFIX}")
