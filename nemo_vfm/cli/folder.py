# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A composed recipe in, its run folder out: locked, compared with what it holds, with recipe, manifest and status."""

import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from nemo_vfm.cli import difference
from nemo_vfm.cli.lock import NAME as LOCK
from nemo_vfm.cli.lock import lock
from nemo_vfm.cli.manifest import manifest, now
from nemo_vfm.config import read_values
from nemo_vfm.core.errors import RunFolderError
from nemo_vfm.core.files import read_json, write_json, write_text
from nemo_vfm.core.log import info
from nemo_vfm.core.types import Json, Run

HEARTBEAT_S = 10.0
MANIFEST = "manifest.json"


@contextmanager
def open_folder(
    path: Path, recipe: str, seed: int, allowed: Sequence[str] = (), *, source: Path | None = None
) -> Iterator[Run]:
    """Prepare a run folder and hold it.

    Args:
        recipe: the composed recipe's text.
        allowed: keys in which the recipe may differ from the one that the folder holds.
        source: the recipe's file, whose name and first line the manifest keeps for people.

    Raises:
        RunFolderError: it holds something else, is in use, or cannot be written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"cannot make the folder {path}: {error.strerror}; take another run_dir") from error
    with lock(path):
        resume = _compare(path, recipe, allowed)
        _describe(path, recipe, seed, source)
        yield Run(folder=path, recipe=recipe, seed=seed, resume=resume)


def _compare(path: Path, recipe: str, allowed: Sequence[str]) -> bool:
    """Whether the folder holds an earlier run of this recipe; refuse any other content."""
    file = path / "recipe.yaml"
    if not file.is_file():
        if others := sorted(other.name for other in path.iterdir() if other.name not in (LOCK, MANIFEST)):
            raise RunFolderError(f"{path} is not empty and not a run folder (it holds {', '.join(others[:3])}); "
                                 f"take another run_dir")  # fmt: skip
        return False
    found = difference.differences(read_values(file.read_text(), str(file)), read_values(recipe, "this recipe"))
    difference.accept(found, allowed, str(path))
    for key, (old, new) in found.items():
        info(f"going on with {key}: {new} (it was {old})")
    return True


def _describe(path: Path, recipe: str, seed: int, source: Path | None) -> None:
    """Write manifest and recipe; a folder that holds just this stays as it is."""
    file = path / "recipe.yaml"
    if file.is_file() and file.read_text() == recipe and (path / MANIFEST).is_file():
        return
    fresh = manifest(recipe, seed, source)
    if file.is_file() and (path / MANIFEST).is_file():  # it goes on with another duration or the like
        earlier = read_json(path / MANIFEST)
        fresh = {**fresh, "created": earlier["created"], "changed": [*earlier.get("changed", []), fresh["created"]]}
    write_json(path / MANIFEST, fresh)
    write_text(file, recipe)  # last: a folder without it is not yet a run


@dataclass
class Status:
    """Keeps `status.json`: what the run is doing, and that it is alive.

    Args:
        folder: the run folder.
    """

    folder: Path
    _started: str = field(default_factory=now)
    _stop: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Write a heartbeat every few seconds while the block runs."""
        beat = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self.write("running")
        beat.start()
        try:
            yield
        finally:
            self._stop.set()
            beat.join()

    def write(self, state: str, **more: Json) -> None:
        """Replace the file: running, done, failed, nothing_kept or interrupted."""
        process = {"pid": os.getpid(), "host": socket.gethostname()}
        times = {"started": self._started, "heartbeat": now()}
        write_json(self.folder / "status.json", {"state": state, **process, **times, **more})

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_S):
            try:
                self.write("running")
            except OSError:  # a full disk must not end the run from here; the job meets it itself
                continue
