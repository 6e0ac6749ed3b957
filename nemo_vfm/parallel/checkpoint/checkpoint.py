"""Saves named tensors and a state as a checkpoint folder that is whole or absent, and loads the newest whole one.

A checkpoint is `step-00000100/` with safetensors files for each group (model, ema, optimizer) and the manifest, which
is written last. One process writes one file per group. Of several ranks each writes what it holds, and `pieces.json`
says which file holds which part of a tensor. Any layout of devices reads what any other wrote. There is no pickle in
it. safetensors is imported when used, so that engines need torch alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from nemo_vfm.core.errors import CorruptCheckpoint, UserError
from nemo_vfm.core.storage.checkpoint_names import Keep
from nemo_vfm.core.storage.files import read_json, sha256_file
from nemo_vfm.core.types.job import RECIPE
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.parallel.checkpoint import checkpoint_index, checkpoint_one_file, tensor_file
from nemo_vfm.parallel.checkpoint import checkpoint_manifest as manifests
from nemo_vfm.parallel.checkpoint.checkpoint_folder import latest as latest
from nemo_vfm.parallel.checkpoint.checkpoint_folder import list_checkpoints
from nemo_vfm.parallel.checkpoint.checkpoint_folder import records as records
from nemo_vfm.parallel.checkpoint.checkpoint_folder import verify as verify
from nemo_vfm.parallel.checkpoint.checkpoint_ranks import ALONE, run_on_ranks
from nemo_vfm.parallel.checkpoint.checkpoint_reader import SavedTensors
from nemo_vfm.parallel.checkpoint.checkpoint_snapshot import require_room as require_room
from nemo_vfm.parallel.checkpoint.checkpoint_snapshot import snapshot
from nemo_vfm.parallel.checkpoint.checkpoint_writer import CheckpointInfo, write
from nemo_vfm.parallel.ranks.gather import Gather


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What lies in a checkpoint: tensors by group and name, and the JSON state that was saved with them."""

    step: int
    groups: Mapping[str, Mapping[str, Tensor]]  #: read when asked for, whole or in part, see `SavedTensors`
    state: Json
    run: str = ""  #: names the run that wrote it; empty where it is not known
    path: Path | None = None  #: where it lies
    #: by group; that of its file, or of the list of its files' where there are several
    sha256: Mapping[str, str] = field(default_factory=dict)


def save(
    folder: Path, step: int, groups: Mapping[str, Mapping[str, Tensor]], state: Json, keep: Keep = Keep(),
    about: CheckpointInfo = CheckpointInfo(), ranks: Gather = ALONE,
) -> Path:  # fmt: skip
    """Write `folder/step-<step>`; a kill at any moment leaves it whole or absent, and an earlier one loadable.

    Args:
        folder: the run's checkpoint folder.
        step: optimizer steps done.
        groups: tensors by group and name, whole or spread over devices.
        state: anything JSON can hold; that of rank 0 is written.
        keep: which checkpoints stay once this one is written.
        ranks: who writes it together; each calls this.

    Raises:
        UserError: the disk is full or fails; what was there before is untouched.
    """
    return write(folder, snapshot(folder, step, groups, about.run, ranks), state, keep, about, ranks)


def load(path: Path, ranks: Gather = ALONE) -> Checkpoint:
    """A whole checkpoint, its tensors not read yet; every rank must call it. CorruptCheckpoint if it is damaged."""
    return _open(path, verify(path, ranks))


def open_latest(folder: Path, ranks: Gather = ALONE) -> Checkpoint | None:
    """What `latest` finds, opened: every byte is hashed once. Every rank must call it."""
    path = latest(folder, ranks)
    return None if path is None else _open(path, manifests.read(path))


def _open(path: Path, manifest: manifests.CheckpointManifest) -> Checkpoint:
    index = checkpoint_index.read(path, manifest["files"])
    groups = {group: SavedTensors(path, entries) for group, entries in index.items()}
    sha256 = {group: checkpoint_index.fingerprint(manifest["files"], group) for group in groups}
    return Checkpoint(manifest["step"], groups, manifest["state"], manifest["run"], path, sha256)


def find(path: Path) -> Path:
    """The checkpoint that a path means: one, the newest of a folder of them, or the newest of a run or of its one step.

    Raises:
        UserError: there is none there, or there are several steps that have some.
    """
    if _is_one(path):
        return path
    chosen = next((found for place in _places(path) if (found := latest(place)) is not None), None)
    if chosen is None:
        raise _no_checkpoint(path)
    return chosen


def open_checkpoint(path: Path, ranks: Gather = ALONE) -> Checkpoint:
    """What `find` finds, or weights in one file, opened: every byte is hashed once. Every rank must call it.

    Raises:
        UserError: see `find`; or not every rank sees the same there.
        CorruptCheckpoint: it does not match its manifest.
    """
    seen = run_on_ranks(ranks, lambda: _file_stamps(path))
    if any(other != seen[0] for other in seen):
        raise UserError(f"Ranks see different files in {path}; it must be on a disk that all ranks share.")
    kind, places = seen[0]
    if kind == "checkpoint":
        return load(path, ranks)
    if kind == "one file":
        file = Path(places[0])
        sha256 = str(run_on_ranks(ranks, lambda: _verify_hash(file) if ranks.rank() == 0 else None)[0])
        about = tensor_file.read_header(file).about
        step, group = about.get("step", ""), about.get("group", "model")
        tensors = SavedTensors(file.parent, checkpoint_index.of_one_file(file))
        return Checkpoint(
            int(step) if step.isdecimal() else 0, {group: tensors}, {}, about.get("run", ""), path, {group: sha256}
        )
    chosen = next((found for place in places if (found := open_latest(Path(place), ranks)) is not None), None)
    if chosen is None:
        raise _no_checkpoint(path)
    return chosen


def _file_stamps(path: Path) -> Json:
    if _is_one(path):
        return ["checkpoint", []]
    if path.suffix == checkpoint_index.SUFFIX and path.is_file():
        return ["one file", [str(path)]]
    file, about = path / checkpoint_one_file.NAME, path / checkpoint_one_file.ABOUT
    if file.is_file() and about.is_file() and not (path / manifests.NAME).exists():  # `nemo-vfm convert` made it
        return ["one file", [str(file)]]
    return ["folder", [str(place) for place in _places(path)]]


def _verify_hash(file: Path) -> str:
    about = file.with_name(checkpoint_one_file.ABOUT)
    try:
        found = sha256_file(file)
        metadata = read_json(about) if about.is_file() else {}
    except (OSError, ValueError) as error:
        raise CorruptCheckpoint(f"{file} or {about.name} beside it cannot be read ({error}).") from error
    is_ours = isinstance(metadata, dict) and file.name == checkpoint_one_file.NAME
    expected = metadata.get("model_sha256", found) if is_ours else found
    if expected != found:
        raise CorruptCheckpoint(f"{file} is damaged; its bytes do not match the hash in {about.name}.")
    return found


def _is_one(path: Path) -> bool:
    return (path / manifests.NAME).is_file() and not (path / RECIPE).is_file()


def _places(path: Path) -> list[Path]:
    below = sorted(path.glob("*/checkpoints"))
    if not list_checkpoints(path) and not (path / "checkpoints").is_dir() and len(below) > 1:
        steps = ", ".join(str(folder.parent) for folder in below)
        raise UserError(f"Several folders below {path} hold checkpoints; name one of {steps}.")
    return [path, path / "checkpoints", *below]


def adapters_alone(path: Path) -> str:
    """Why a run or checkpoint cannot begin a model, by its manifest alone; empty where it can, or nothing is known."""
    try:
        steps = [path] if _is_one(path) else [one for place in _places(path) for one in list_checkpoints(place)[-1:]]
        state = manifests.read(steps[0])["state"] if steps else None
    except (UserError, CorruptCheckpoint):
        return ""
    return _of_adapters(path) if isinstance(state, dict) and state.get("adapters") is not None else ""


def require_whole(saved: Checkpoint, name: str) -> None:
    """UserError where a checkpoint holds adapters alone."""
    if isinstance(saved.state, dict) and saved.state.get("adapters") is not None:
        raise UserError(_of_adapters(name))


def _of_adapters(name: object) -> str:
    return (f"{name} holds only adapters, as saved by training adapters. `nemo-vfm convert {name} OUT --to "
            f"transformers`, or `--to diffusers --pipeline BASE`, merges them into their model; then "
            f"name OUT")  # fmt: skip


def _no_checkpoint(path: Path) -> UserError:
    return UserError(f"There is no checkpoint in {path}; expected folders such as step-00000100. Train first.")


def load_weights(path: Path, group: str) -> dict[str, Tensor]:
    """The weights of `group` ("model" or "ema") of the checkpoint that `path` means, see `find`, all of them read."""
    weights = weights_of(open_checkpoint(path), group)
    return {name: weights[name] for name in weights}


def weights_of(saved: Checkpoint, group: str) -> Mapping[str, Tensor]:
    """One group of a checkpoint. UserError if it has no such group."""
    if group not in saved.groups:
        raise UserError(f"{saved.path} holds no {group} weights; it has {', '.join(sorted(saved.groups))}.")
    return saved.groups[group]
