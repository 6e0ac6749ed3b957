"""Copies a folder's checkpoints to an object store, and fetches the newest whole one where the folder is gone.

A copy lies at `<address>/step-<n>/`. Its manifest is sent last, so that a reader never takes half a checkpoint. Beside
them lies `recipe.json`: a run that resumes from the store without a folder of its own must be the same run.
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nemo_vfm.core import log
from nemo_vfm.core.errors import CorruptCheckpoint, DataError, UserError
from nemo_vfm.core.recipe_keys import with_new_keys
from nemo_vfm.core.storage import object_store
from nemo_vfm.core.storage.checkpoint_names import CheckpointRecord, Keep, surplus
from nemo_vfm.core.storage.uri import Address, Place
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.parallel.checkpoint import checkpoint
from nemo_vfm.parallel.checkpoint import checkpoint_manifest as manifests
from nemo_vfm.parallel.checkpoint.checkpoint import Checkpoint
from nemo_vfm.parallel.checkpoint.checkpoint_folder import list_checkpoints
from nemo_vfm.parallel.checkpoint.checkpoint_ranks import ALONE
from nemo_vfm.parallel.ranks.gather import Gather

_MANIFEST = re.compile(r"(?:(?:checkpoints/)?step-\d{8,}/)?" + re.escape(manifests.NAME))
_RECIPE = "recipe.json"
#: A recipe may differ in these and still be the same run; everything else decides what is learned.
_FREE = re.compile(r"run_dir|duration|num_workers|every_steps|keep_\w+|copy_to|cache|folder|max_gb|timeout_s")


@dataclass(frozen=True, slots=True)
class OpenedCheckpoint:
    """A checkpoint that can be read here."""

    path: Path  #: where it lies for now
    name: str  #: what to call it, wherever it came from
    saved: Checkpoint  #: what lies in it, to be read inside the block


def begin(target: Address, folder: Path, settings: Mapping[str, Json]) -> None:
    """Before a run: see that its copies belong here, and fetch the newest where the run has no checkpoint of its own.

    Raises:
        UserError: checkpoints of another run, with other settings, lie there.
        StoreError: the store does not answer, or refuses us; better now than after the first thousand steps.
    """
    steps, known = _steps(target), object_store.read(target / _RECIPE, max_bytes=1 << 24)
    if list_checkpoints(folder):
        _require_own_runs(target, steps, folder)
    elif steps:
        try:
            parsed = with_new_keys(json.loads(known or b"{}"))
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"{target / _RECIPE} is not the recipe of a run ({error}); choose another copy_to"
            ) from error
        there, here = (dict(_training_settings(of, "")) for of in (parsed, settings))
        if found := [key for key in {**there, **here} if there.get(key) != here.get(key)]:
            first = f"{found[0]}: {there.get(found[0], 'nothing')} there, {here.get(found[0], 'nothing')} here"
            raise UserError(
                f"{target} holds checkpoints of a run with another recipe ({first}). Choose another copy_to; "
                f"to start from its weights, use weights.start_from"
            )
        _fetch_newest(target, steps, folder)
    if known != (now := json.dumps(settings, indent=1).encode()):
        object_store.write(now, target / _RECIPE)


def copy(folder: Path, target: Address, keep: Keep) -> None:
    """Bring the store up to the folder: whole checkpoints that are not there yet, and away with those not kept.

    Raises:
        StoreError: the store does not answer, or refuses us; what is whole there stays whole.
    """
    there = set(_steps(target))
    for path in list_checkpoints(folder):
        if path.name not in there:
            try:
                for name in (*sorted(checkpoint.verify(path)["files"]), manifests.NAME):
                    object_store.upload(path / name, target / path.name / name)
            except CorruptCheckpoint as error:
                log.warn_once(f"not copied: {error}")
    if keep.last is None:
        return
    found = []
    with tempfile.TemporaryDirectory() as temporary:
        for name in _steps(target):
            try:
                manifest = _manifest(target / name, Path(temporary) / name)
            except (CorruptCheckpoint, UserError, DataError):
                continue
            found.append(
                CheckpointRecord(
                    Path(name), manifest["step"], manifest["run"], manifest["metrics"], manifest["permanent"]
                )
            )
    for gone in surplus(found, keep):  # its manifest first: a purge that is killed leaves nothing that looks whole
        object_store.remove(target / gone.name / manifests.NAME)
        object_store.remove_folder(target / gone.name)


@contextmanager
def open_checkpoint(place: Place, ranks: Gather = ALONE) -> Iterator[OpenedCheckpoint]:
    """The checkpoint that a place means, as `open_checkpoint`; one in a store is fetched for the length of the block.

    Every rank must call it. From a store each fetches a copy of its own: they may have no disk in common.

    Raises:
        UserError: there is none there.
    """
    if not isinstance(place, Address):
        saved = checkpoint.open_checkpoint(place, ranks)
        assert saved.path is not None
        yield OpenedCheckpoint(saved.path, str(saved.path), saved)
        return
    steps = _steps(place)
    with tempfile.TemporaryDirectory() as folder:
        fetched = _fetch_newest(place, steps, Path(folder)) if steps else None
        if fetched is None:
            raise UserError(f"There is no checkpoint at {place}; expected objects such as step-00000100/manifest.json.")
        yield OpenedCheckpoint(fetched, str(steps[fetched.name]), checkpoint.load(fetched))


def _steps(place: Address) -> dict[str, Address]:
    """The finished checkpoints at an address, oldest first: the name of each, and where it lies."""
    found = [item.name.rpartition("/")[0] for item in object_store.items(place) if _MANIFEST.fullmatch(item.name)]
    places = [place / name if name else place for name in found]
    return {address.name: address for address in sorted(places, key=lambda address: (len(address.name), address.name))}


def _fetch_newest(place: Address, steps: dict[str, Address], folder: Path) -> Path:
    """The newest whole checkpoint, in `folder`; damaged newer ones are passed over, loudly."""
    for name, address in reversed(steps.items()):
        temporary = folder / f".{name}.{os.getpid()}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            for file, expected in _manifest(address, temporary)["files"].items():
                object_store.download(address / file, temporary / file, sha256=expected["sha256"])
            checkpoint.verify(temporary)
            temporary.replace(folder / name)
        except DataError as error:
            log.warn(f"{address}: {error} Falling back to the previous checkpoint.")
        else:
            log.info(f"fetched {address}")
            return folder / name
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    raise CorruptCheckpoint(f"None of the {len(steps)} checkpoints at {place} is complete.")


def _manifest(address: Address, folder: Path) -> manifests.CheckpointManifest:
    folder.mkdir(parents=True, exist_ok=True)
    object_store.download(address / manifests.NAME, folder / manifests.NAME)
    return manifests.read(folder)


def _require_own_runs(target: Address, steps: dict[str, Address], folder: Path) -> None:
    own = {record.run for record in checkpoint.records(folder)}
    if steps and not own:
        raise CorruptCheckpoint(
            f"None of the checkpoints in {folder} is complete; delete them to resume from the newest copy at {target}."
        )
    with tempfile.TemporaryDirectory() as temporary:
        for name, address in reversed(steps.items()):
            try:
                run = _manifest(address, Path(temporary) / name)["run"]
            except DataError:
                continue
            if run not in own:
                raise UserError(
                    f"{target} holds {name} from a different run than {folder.parent}; choose another copy_to."
                )
            return


def _training_settings(value: Json, address: str) -> Iterator[tuple[str, str]]:
    """Every value that decides what is learned, as text, by its address."""
    if not isinstance(value, Mapping | list):
        yield address, json.dumps(value)
        return
    for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
        if not _FREE.fullmatch(str(key)):
            yield from _training_settings(item, f"{address}.{key}" if address else str(key))
