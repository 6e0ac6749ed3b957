"""Opens a run folder: locks it, compares the recipe with its contents, and writes its manifest and status."""

import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from nemo_vfm.config import difference, read_values
from nemo_vfm.core import __version__, lease_registry, progress
from nemo_vfm.core.errors import RunFolderError
from nemo_vfm.core.log import info, warn, warn_once
from nemo_vfm.core.secret import conceal_keys
from nemo_vfm.core.storage.files import (
    is_full,
    read_bytes,
    read_json,
    read_json_object,
    sha256_text,
    write_json,
    write_text,
)
from nemo_vfm.core.types.job import LAUNCH, LOCK, MANIFEST, PARTS, RECIPE, RECORDS, STATUS, Run
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.runtime.run_lock import lock

SCHEMA = "nemo_vfm.run/1"
_MAX_BYTES = 16 << 20  # of a composed recipe, which is written out in full
_BLOCK_BYTES = 4096  # that a file of few bytes takes of a disk
_TEMPORARY = re.compile(r"\..+\.\d+\.tmp(\.\w+)?")
_VERSION = re.compile(r"nemo_vfm\.run/(\d{1,6})(?:\.\d{1,6})?")
Differences = dict[str, tuple[str, str]]


@contextmanager
def open_folder(
    path: Path, recipe: str, seed: int, allowed: Sequence[str] = (), *, source: Path | None = None
) -> Iterator[Run]:
    """Prepare a run folder and hold it; its recipe may differ from this one's text in the allowed keys.

    The manifest keeps name and first line of the recipe's file, `source`, for people.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"cannot make the folder {path}: {error.strerror}; choose another run_dir") from error
    with lock(path):
        found = _compare(path, recipe, allowed)
        changed = found or {}
        try:
            # Manifest and recipe; a folder that holds just this stays as it is.
            file = path / RECIPE
            if not (file.is_file() and _read_kept(file) == recipe and (path / MANIFEST).is_file()):
                steps = read_values(recipe, "this recipe").get("steps")
                fresh = manifest(recipe, seed, steps if isinstance(steps, dict) else (), source)
                if file.is_file():  # it goes on with another duration or the like
                    earlier = _earlier(path / MANIFEST)
                    keys = {key: {"from": a, "to": b} for key, (a, b) in changed.items()}
                    change = {"at": fresh["created"], "keys": keys,
                              "allowed": [key for key in changed if difference.is_allowed(key, allowed)]}  # fmt: skip
                    before = earlier.get("changed")
                    fresh |= {"created": earlier.get("created", fresh["created"])}
                    fresh |= {"changed": [*(before if isinstance(before, list) else []), change]}
                write_json(path / MANIFEST, fresh)
                write_text(file, recipe)  # last: a folder without it is not yet a run
        except OSError as error:
            raise RunFolderError(f"cannot write in {path}: {error.strerror}; nothing was changed there") from error
        yield Run(folder=path, settings=read_values(recipe, "this recipe"), seed=seed, resume=found is not None)


def _compare(path: Path, recipe: str, allowed: Sequence[str]) -> Differences | None:
    """How this run differs from the one already in the folder; None if the folder is new. Other content is refused."""
    file = path / RECIPE
    if not file.is_file():
        # What a start that was killed may leave before the recipe is there, and what is no job's.
        names = sorted({other.name for other in path.iterdir()} - {LOCK, MANIFEST, LAUNCH, PARTS})
        if others := [name for name in names if not _TEMPORARY.fullmatch(name)]:
            raise RunFolderError(f"{path} is not empty and not a run folder (it holds {', '.join(others[:3])}); "
                                 f"choose another run_dir")  # fmt: skip
        return None
    # Refuse the folder of a later version; of the same major version only keys were added.
    version = _VERSION.fullmatch(str(_earlier(path / MANIFEST).get("schema", SCHEMA)))
    if version is not None and version[1] != "1":
        raise RunFolderError(f"{path} was written as version {version[1]} of our run folders; this nemo_vfm reads "
                             f"version 1. Use the version of nemo_vfm that wrote it, or a newer one")  # fmt: skip
    found = difference.differences(read_values(_read_kept(file), str(file)), read_values(recipe, "this recipe"))
    try:
        difference.accept(found, allowed, str(path))
    except RunFolderError:
        if not difference.made_nothing(path):
            raise
        for name in RECORDS:
            (path / name).unlink(missing_ok=True)
        info(f"{path}: the run that was begun here made nothing, so this recipe takes its folder")
        return None
    for key, (old, new) in found.items():
        info(f"resuming with {key}: {new} (it was {old})")
    return found


def _read_kept(file: Path) -> str:
    try:
        return read_bytes(file, _MAX_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise RunFolderError(f"{file} is not the recipe of a run ({error}); choose another run_dir") from error


def _earlier(file: Path) -> dict[str, Json]:
    """A record that is there; a damaged one is no reason to stop, since nothing is lost by it."""
    try:
        found = read_json(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        warn(f"{file} cannot be read ({error}); it is rewritten, without what it said of earlier tries")
        return {}
    return found if isinstance(found, dict) else {}


def now() -> str:
    """The time, in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass
class Status:
    """Keeps `status.json`: what the run is doing, and that it is alive."""

    folder: Path  #: the run folder
    _started: str = field(default_factory=now)
    _stop: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def heartbeat(self) -> Iterator[None]:
        """Write a heartbeat every few seconds while the block runs."""
        beat = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self.write("running")
        beat.start()
        try:
            yield
        finally:
            self._stop.set()
            beat.join()

    def read_finished(self) -> Json:
        """The whole file where it tells of a run that was finished, or None."""
        found = read_json_object(self.folder / STATUS)
        return found if found.get("state") == "done" else None

    def write(self, state: str, **more: Json) -> bool:
        """Replace the file: running, done, failed, nothing_kept, preempted, between_phases or interrupted.

        Returns:
            Whether it could be written; why not is said once and never an error: it must not hide the one that the
            file tells of.
        """
        process = {"pid": os.getpid(), "host": socket.gethostname()}
        times = {"started": self._started, "heartbeat": now()}
        return self.put({"state": state, **process, **times, **progress.current(), **more})

    def put(self, whole: Json) -> bool:
        """Replace the file by what it holds from now on; see `write`."""
        lease_registry.stop_if_lost()
        try:
            write_json(self.folder / STATUS, whole)
        except OSError as error:
            # The last word goes into the block that the file has: on a full disk there is no room for another file.
            short = {"error": str(whole["error"])[:1000]} if "error" in whole else {}
            text = json.dumps({**whole, **short}).encode()
            if is_full(error) and whole["state"] != "running" and len(text) <= _BLOCK_BYTES:
                with suppress(OSError), (self.folder / STATUS).open("r+b", buffering=0) as file:
                    if file.write(text) == len(text):
                        file.truncate()
                        return True
            if self.folder.is_dir():
                warn_once(f"{self.folder / STATUS} cannot be written: {error.strerror}")
            return False
        return True

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_S):
            self.write("running")


_PACKAGES = ("torch", "lightning", "numpy", "pydantic", "PyYAML", "webdataset", "av", "decord", "safetensors",
             "pyarrow")  # fmt: skip


def manifest(recipe: str, seed: int, steps: Iterable[str] = (), source: Path | None = None) -> Json:
    """The content of `manifest.json`: of the recipe's composed text, the names of its steps, and its file."""
    from nemo_vfm.config.roots import header

    hardware = f"{platform.processor() or platform.machine()} CPU"
    # Else it is the CPU: to import torch for that takes three quarters of the start of a job that does without.
    if "torch" in sys.modules or any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/kfd").exists():
        from nemo_vfm.core import device

        hardware = device.describe()
    versions = {"nemo_vfm": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    memory_gb = None
    with suppress(ValueError, OSError):
        memory_gb = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    return {
        "schema": SCHEMA, "recipe": source.stem if source else None,
        "purpose": conceal_keys(header(source).title) if source else None,
        "created": now(), "recipe_sha256": sha256_text(recipe), "seed": seed, "steps": list(steps),
        "commit": _commit(), "versions": versions,
        "hardware": {"device": hardware, "cpus": os.cpu_count(), "memory_gb": memory_gb,
                     "system": f"{platform.system()} {platform.release()}"},
    }  # fmt: skip


def _commit() -> str | None:
    """The commit of the checkout that runs, with `+changes` where files differ from it; None outside a checkout."""
    root = Path(__file__).resolve().parents[2]
    git = shutil.which("git")
    if git is None or not (root / ".git").exists():
        return None
    asked = (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
    try:  # an absolute program and fixed words: nothing of the recipe reaches this line
        commit, changes = (
            subprocess.check_output([git, "-C", str(root), *words], text=True, stderr=subprocess.PIPE, timeout=20)  # noqa: S603
            for words in asked
        )
    except (subprocess.SubprocessError, OSError):
        return None
    return commit.strip() + ("+changes" if changes.strip() else "")


HEARTBEAT_S = 10.0
