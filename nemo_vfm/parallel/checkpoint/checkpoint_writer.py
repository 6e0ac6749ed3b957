"""Writes the snapshots of all ranks as one checkpoint folder, whole or absent, then deletes surplus older ones.

Rank 0 makes a folder under a temporary name, and every rank writes its files there. Once all are flushed, rank 0 writes
the manifest and renames the folder. Whatever fails on one rank fails on all of them.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from nemo_vfm.core import lease_registry, log
from nemo_vfm.core.errors import CorruptCheckpoint, UserError
from nemo_vfm.core.storage import checkpoint_names
from nemo_vfm.core.storage.checkpoint_names import Keep, surplus
from nemo_vfm.core.storage.files import sync
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.parallel.checkpoint import checkpoint_index, tensor_file
from nemo_vfm.parallel.checkpoint import checkpoint_manifest as manifests
from nemo_vfm.parallel.checkpoint.checkpoint_folder import records, verify
from nemo_vfm.parallel.checkpoint.checkpoint_ranks import ALONE, run_on_ranks
from nemo_vfm.parallel.checkpoint.checkpoint_snapshot import Snapshot
from nemo_vfm.parallel.ranks.gather import Gather

_PATIENCE_S = 10.0  # a folder that one machine made is seen by another only when its cache of names has grown old


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """The metadata of a checkpoint."""

    run: str = ""  #: names the run; a file of another run is not taken for one of this
    metrics: Mapping[str, float] | None = None  #: measured at this very step, for choosing the best
    permanent: bool = False  #: no later purge takes it


def write(
    folder: Path, taken: Snapshot, state: Json, keep: Keep, about: CheckpointInfo, ranks: Gather = ALONE
) -> Path:  # fmt: skip
    """Write `folder/step-<step>`, then delete what `keep` does not keep; every rank must call it.

    Raises:
        UserError: the disk of a rank is full or fails, or is not shared; what was there before is untouched.
        LostRank: another rank died.
    """
    final = folder / checkpoint_names.name(taken.step)
    temporary = folder / f".{final.name}.{os.getpid()}.tmp"
    try:
        temporary = folder / _on_rank_zero(ranks, lambda: _make_folder(temporary), taken.step, folder)
        parts = _each(ranks, lambda: _parts(temporary, taken), taken.step, folder)
        _on_rank_zero(ranks, lambda: _close(temporary, final, taken.step, parts, state, about), taken.step, folder)
    except BaseException:
        if ranks.rank() == 0:
            shutil.rmtree(temporary, ignore_errors=True)
        raise
    # Delete what the rule does not keep, once the newest is known to be whole; a failure costs only disk space.
    try:
        gone = run_on_ranks(ranks, lambda: _surplus(folder, keep, about.run, final) if ranks.rank() == 0 else None)[0]
        if gone:
            verify(final, ranks)
        if ranks.rank() == 0:
            for name in gone:
                # The rename is one act: a purge that is killed half-way leaves nothing that looks whole.
                (folder / name).replace(folder / f".{name}.{os.getpid()}.tmp")
            for leftover in folder.glob(".step-*.tmp"):
                shutil.rmtree(leftover, ignore_errors=True)  # it does not follow links, and leaves one where it is
    except (OSError, CorruptCheckpoint, UserError) as error:
        if ranks.rank() == 0:
            log.warn(f"Old checkpoints were not deleted: {error}")
    return final


def _each(ranks: Gather, work: Callable[[], Json], step: int, folder: Path) -> list[Json]:
    """What each rank gave, an error of a disk told as a sentence."""

    def attempt() -> Json:
        try:
            return work()
        except OSError as error:
            rank = f"rank {ranks.rank()}: " * (ranks.num_ranks() > 1)
            raise UserError(
                f"The checkpoint of step {step} could not be written to {folder} ({rank}{error.strerror or error}). "
                f"Earlier checkpoints are untouched; free some space or repair the disk, and run again."
            ) from error

    return run_on_ranks(ranks, attempt)


def _on_rank_zero(ranks: Gather, work: Callable[[], Json], step: int, folder: Path) -> Json:
    """What rank 0 gave, which alone worked."""
    return _each(ranks, lambda: work() if ranks.rank() == 0 else None, step, folder)[0]


def _make_folder(temporary: Path) -> str:
    lease_registry.stop_if_lost()
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    return temporary.name


class _WrittenPart(TypedDict):
    files: dict[str, tensor_file.FileDigest]
    index: checkpoint_index.PiecesFile


def _parts(temporary: Path, taken: Snapshot) -> _WrittenPart:
    """Write this rank's files, flushed; what the manifest says of them."""
    _require_shared(temporary, "the folder that rank 0 made for it")
    files = {name: tensor_file.write(temporary / name, packed) for name, packed in taken.files.items()}
    return {"files": files, "index": checkpoint_index.to_json(taken.index)}


def _require_shared(path: Path, what: str) -> None:
    until = time.monotonic() + _PATIENCE_S
    while not path.exists():
        if time.monotonic() > until:
            raise UserError(
                f"A checkpoint cannot be written: {path}, {what}, cannot be seen from here. The run folder must be "
                f"on a disk that all ranks share; choose another run_dir. Earlier checkpoints are untouched."
            )
        time.sleep(0.1)


def _close(
    temporary: Path, final: Path, step: int, parts: list[_WrittenPart], state: Json, about: CheckpointInfo
) -> None:
    """Once every file is on the disk: the index, the manifest, the name."""
    files = {name: entry for part in parts for name, entry in part["files"].items()}
    for name in files:
        _require_shared(temporary / name, "a file that another rank wrote")
    if len(parts) > 1:
        try:
            index = checkpoint_index.merge(part["index"] for part in parts)
        except ValueError as error:
            raise UserError(f"The training cannot be saved: {error}.") from error
        text = json.dumps(checkpoint_index.to_json(index), separators=(",", ":"), ensure_ascii=False)
        files[checkpoint_index.NAME] = tensor_file.write_blocks(temporary / checkpoint_index.NAME, [text.encode()])
    lease_registry.stop_if_lost()
    manifests.write(temporary, {
        "step": step, "run": about.run, "files": files, "metrics": dict(about.metrics or {}),
        "permanent": about.permanent, "state": state,
    })  # fmt: skip
    sync(temporary)
    # What is there under its name already is a damaged one, or a link that a user made.
    if final.is_symlink():
        final.unlink()  # the link alone: what it points to is not ours
    elif final.exists():
        aside = final.with_name(f"{temporary.name}.old.tmp")
        shutil.rmtree(aside, ignore_errors=True)
        final.replace(aside)
    temporary.replace(final)
    sync(final.parent)


def _surplus(folder: Path, keep: Keep, run: str, newest: Path) -> list[str]:
    # Those of later steps are damaged ones that a resume passed over: they must not push out what was just written.
    known = [r for r in records(folder) if r.run in ("", run) and not r.path.is_symlink()]
    return [p.name for p in surplus([r for r in known if r.step <= checkpoint_names.step_of(newest.name)], keep)]
