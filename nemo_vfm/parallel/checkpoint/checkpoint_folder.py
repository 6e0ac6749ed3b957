"""Finds the checkpoints of a folder, reads their manifests, and picks the newest one that passes its hash check.

With several ranks each hashes its share of the files, and all learn every result, so that all load the same one.
"""

from pathlib import Path

from nemo_vfm.core import log
from nemo_vfm.core.errors import CorruptCheckpoint, UserError
from nemo_vfm.core.storage import checkpoint_names
from nemo_vfm.core.storage.checkpoint_names import CheckpointRecord
from nemo_vfm.core.storage.files import sha256_file
from nemo_vfm.parallel.checkpoint import checkpoint_index, tensor_file
from nemo_vfm.parallel.checkpoint import checkpoint_manifest as manifests
from nemo_vfm.parallel.checkpoint.checkpoint_index import SUFFIX
from nemo_vfm.parallel.checkpoint.checkpoint_manifest import CheckpointManifest
from nemo_vfm.parallel.checkpoint.checkpoint_ranks import ALONE, exchange, run_on_ranks
from nemo_vfm.parallel.checkpoint.tensor_file import FileDigest
from nemo_vfm.parallel.ranks.gather import Gather


def list_checkpoints(folder: Path) -> list[Path]:
    """The finished checkpoints of a folder, oldest first; one may be a link to where a user moved it."""
    return [path for path in checkpoint_names.list_checkpoints(folder) if path.suffix != checkpoint_names.LIGHTNING]


def records(folder: Path) -> list[CheckpointRecord]:
    """What the manifests say, oldest first; checkpoints whose manifest cannot be read are left out."""
    found = []
    for path in list_checkpoints(folder):
        try:
            manifest = manifests.read(path)
        except (CorruptCheckpoint, UserError):
            continue
        found.append(
            CheckpointRecord(path, manifest["step"], manifest["run"], manifest["metrics"], manifest["permanent"])
        )
    return found


def verify(path: Path, ranks: Gather = ALONE) -> CheckpointManifest:
    """The manifest of a checkpoint whose files are all there, unchanged and its own; every rank must call it.

    Raises:
        CorruptCheckpoint: a file is missing, surplus, truncated, changed or of another checkpoint; on every rank.
        UserError: a version of nemo_vfm wrote it that this one cannot read.
    """
    found: list[CheckpointManifest] = []

    def verify_own_share() -> None:
        found.append(manifest := manifests.read(path))
        files = manifest["files"]
        if surplus := sorted({file.name for file in path.glob(f"*{SUFFIX}")} - files.keys()):
            raise CorruptCheckpoint(f"{path}: {surplus[0]} exists but is not in the manifest.")
        by_size = sorted(files, key=lambda name: (-files[name]["bytes"], name))
        for name in by_size[ranks.rank() :: ranks.num_ranks()]:
            _verify_file(path / name, files[name], manifest)

    run_on_ranks(ranks, verify_own_share)
    return found[0]


def _verify_file(file: Path, expected: FileDigest, manifest: CheckpointManifest) -> None:
    if not file.is_file():
        raise CorruptCheckpoint(f"{file.parent}: {file.name} is missing; the manifest lists it.")
    size = file.stat().st_size
    if size != expected["bytes"]:
        raise CorruptCheckpoint(
            f"{file.parent}: {file.name} is damaged; it has {size} bytes, but the manifest says {expected['bytes']}."
        )
    try:
        sha256 = sha256_file(file)
    except OSError as error:
        raise CorruptCheckpoint(f"{file} cannot be read ({error.strerror or error}).") from error
    if sha256 != expected["sha256"]:
        raise CorruptCheckpoint(
            f"{file.parent}: {file.name} is damaged; its bytes do not match the hash in the manifest."
        )  # fmt: skip
    if file.name != checkpoint_index.NAME:
        # A file says itself which group, step and run it is of, so that a swap is seen even where hashes were redone.
        own = {"group": checkpoint_index.group_of(file.name), "step": str(manifest["step"]), "run": manifest["run"]}
        about = tensor_file.read_header(file).about
        other = [f"{key} {about[key][:80]}" for key in own if key in about and about[key] != own[key]]
        if other:
            raise CorruptCheckpoint(f"{file} belongs to another checkpoint: {', '.join(other)}.")


def latest(folder: Path, ranks: Gather = ALONE) -> Path | None:
    """The newest checkpoint whose hashes hold; damaged newer ones are passed over, loudly. None if there is none.

    Every rank must call it, and all are given the same.

    Raises:
        CorruptCheckpoint: there are checkpoints, and all of them are damaged.
        UserError: they are of several runs, or of a version that cannot be read, or not seen by every rank.
    """
    candidates = list_checkpoints(folder)
    seen = [set(names) for names in exchange(ranks, [path.name for path in candidates])]
    for rank, names in enumerate(seen):
        if names != seen[0]:
            name = min(names ^ seen[0])
            sees, lacks = (0, rank) if name in seen[0] else (rank, 0)
            raise UserError(
                f"rank {sees} sees {folder / name}, but rank {lacks} does not. The run folder must be on a disk that "
                f"all ranks share; choose another run_dir."
            )
    run_on_ranks(ranks, lambda: _require_one_run(folder) if ranks.rank() == 0 else None)
    for path in reversed(candidates):
        try:
            verify(path, ranks)
        except CorruptCheckpoint as error:
            if ranks.rank() == 0:
                log.warn(f"{error} Falling back to the previous checkpoint.")
        else:
            return path
    if candidates:
        raise CorruptCheckpoint(
            f"None of the {len(candidates)} checkpoints in {folder} is complete; delete them to start over."
        )
    return None


def _require_one_run(folder: Path) -> None:
    of = {record.run: record.path.name for record in records(folder) if record.run}
    if len(of) > 1:
        raise UserError(
            f"{folder} holds checkpoints of {len(of)} runs ({', '.join(sorted(of.values()))} are from different "
            f"ones); move away what does not belong here. To start from another run's weights, use start_from."
        )
