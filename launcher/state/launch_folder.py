"""Writes and reads `launch/` of a run folder: recipe, scripts, code, packages, and the submitted jobs.

`launch.json` is written last, so a folder without it is no launch. It is replaced as a whole at each change.
What it says is checked: a run folder may be a stranger's, and its names become paths and arguments.
"""

import fcntl
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, cast

from launcher.plan.launch import POINTS, Launch, words_of
from launcher.plan.trusted_modules import is_own
from launcher.render.batch_hooks import ATTEMPTS, RESUBMITTED
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.storage.files import read_json, sha256_file, sha256_text, write_json, write_text
from nemo_vfm.core.types.job import LAUNCH, SWEEP
from nemo_vfm.core.types.json_value import Json

SCHEMA = "nemo_vfm.launch/1"
_FILE = "launch.json"
_MAX_BYTES = 64 << 20


@dataclass(slots=True)
class KeptLaunch:
    """What a launch folder says."""

    run_dir: Path  #: the run folder
    values: dict[str, Any]  #: of launch.json
    _successors: dict[str, list[str]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.look_again()

    @property
    def folder(self) -> Path:
        """`launch/` in the run folder."""
        return self.run_dir / LAUNCH

    @property
    def jobs(self) -> list[dict[str, Any]]:
        """In order: name, script, which one it waits for, and numbers that Slurm gave, the latest last."""
        return cast(list[dict[str, Any]], self.values["jobs"])

    @property
    def recipe_file(self) -> Path:
        """The composed recipe, under the name of what it was composed from; of a sweep, that of its first run."""
        return self.recipe_of(self.runs[0]) if self.runs else self.folder / f"{self.values['recipe']}.yaml"

    @property
    def runs(self) -> list[str]:
        """Of a sweep, their names, in the order of its tasks; else none."""
        return cast(list[str], self.values.get("runs", []))

    def recipe_of(self, run: str) -> Path:
        return self.folder / POINTS / run / f"{self.values['recipe']}.yaml"

    @property
    def is_local(self) -> bool:
        return bool(self.values["cluster"]["_target_"].endswith(".Local"))

    def numbers(self, job: Mapping[str, Any]) -> list[str]:
        """Slurm's numbers of the last submission of a job: its own and those that went on, the latest last."""
        return line_of(job["slurm"][-1], self._successors) if job["slurm"] else []

    def all_numbers(self, job: Mapping[str, Any]) -> set[str]:
        """Those of every submission."""
        return {number for first in job["slurm"] for number in line_of(first, self._successors)}

    def slurm_ids(self) -> list[str]:
        """The numbers of the last submission of each job."""
        return [number for job in self.jobs for number in self.numbers(job)]

    def look_again(self) -> None:
        """Read which jobs have been submitted by jobs since."""
        self._successors = successors(self._lines(RESUBMITTED))

    def record_submission(self, name: str, slurm_id: str) -> None:
        """Note a number, at once: a job that nobody knows of cannot be cancelled."""
        for job in self.jobs:
            if job["name"] == name:
                job["slurm"].append(slurm_id)
        self.save()

    def record_cancellation(self, slurm_ids: Set[str]) -> None:
        """Note numbers that the user took back: Slurm forgets why a job ended."""
        for job in self.jobs:
            if not slurm_ids.isdisjoint(self.numbers(job)):
                job["cancelled"] = job["slurm"][-1]
        self.save()

    def save(self) -> None:
        write_json(self.folder / _FILE, self.values)

    def attempts(self) -> list["Attempt"]:
        """Ends of attempts, as the jobs themselves wrote them down; half a line is passed over."""
        rows = [line.split("\t") for line in self._lines(ATTEMPTS)]
        return [Attempt(*row) for row in rows if len(row) == len(fields(Attempt)) and row[0] != "time"]

    def _lines(self, name: str) -> list[str]:
        """Of a file that jobs write; none where they have not begun to."""
        try:
            return _plain_file(self.folder / name).read_text(errors="replace").split("\n")  # others are in sentences
        except (FileNotFoundError, NotADirectoryError):
            return []
        except ValueError as error:
            raise UserError(f"{self.folder / name} cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt's end."""

    time: str  #: in UTC
    job: str  #: Slurm's number
    restart: str  #: how often it had been begun again
    status: str  #: exit status
    kind: str  #: what that means
    step: str  #: of the newest checkpoint; -1 where there is none
    nodes: str  #: that it ran on
    sentence: str  #: for people
    moved: str  #: whether it got further than the one before
    blamed: str  #: the node that it was laid to, if any


def read(path: Path) -> KeptLaunch:
    """The launch in a run folder, or in its `launch/`."""
    run_dir = path.absolute()
    if run_dir.name == LAUNCH and (run_dir / _FILE).is_file():
        run_dir = run_dir.parent
    try:
        values = read_json(_plain_file(run_dir / LAUNCH / _FILE))
    except FileNotFoundError as error:
        raise UserError(
            f"{path} was not launched: it holds no {LAUNCH}/{_FILE}; `vfm-launch list` shows what was"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{run_dir / LAUNCH / _FILE} cannot be read: {error}") from error
    if not isinstance(values, dict) or values.get("schema") != SCHEMA:
        raise UserError(f"{run_dir / LAUNCH / _FILE} was written by another version of the launcher; use that version")
    if wrong := next(_wrong_keys(values, _WHOLE, ""), None):  # the first value that no launcher writes, by its address
        raise UserError(f"{run_dir / LAUNCH / _FILE} is not what a launcher writes: look at {wrong}, or submit the "
                        f"recipe again in another folder")  # fmt: skip
    return KeptLaunch(run_dir, values)


def require_own(kept: KeptLaunch) -> None:
    """Raises UserError where another user wrote the launch: its scripts would run as yours."""
    for file in (kept.folder / _FILE, *(kept.folder / job["script"] for job in kept.jobs)):
        if file.exists() and file.stat().st_uid != os.geteuid():
            raise UserError(f"{file} belongs to another user, and its content would run as you; submit the recipe "
                            f"yourself: vfm-launch submit {kept.recipe_file}")  # fmt: skip


def require_unchanged(kept: KeptLaunch, jobs: Sequence[Mapping[str, Any]]) -> None:
    """Raises UserError where the script of one of these jobs is not the one that the launch wrote."""
    for job in jobs:
        file = kept.folder / job["script"]
        try:
            digest = sha256_file(_plain_file(file))
        except (OSError, ValueError) as error:
            raise UserError(f"{file} cannot be read: {error}; submit the recipe again") from error
        if job.get("sha256", digest) != digest:
            raise UserError(
                f"{file} has changed since the launch wrote it, and is not run; submit the recipe again: "
                f"vfm-launch submit {kept.recipe_file}, with cluster.options for what you changed"
            )


def _plain_file(file: Path) -> Path:
    """Raises ValueError where reading it would wait for ever, or fill the memory."""
    found = file.stat()
    if not stat.S_ISREG(found.st_mode) or found.st_size > _MAX_BYTES:
        raise ValueError(f"it is not a regular file of at most {_MAX_BYTES >> 20} MiB")
    return file


def read_existing(run_dir: Path) -> KeptLaunch | None:
    """The launch that a folder holds already, if any."""
    return read(run_dir) if (run_dir / LAUNCH / _FILE).is_file() else None


@contextmanager
def submission_lock(run_dir: Path) -> Iterator[None]:
    """Be the only one who submits in this folder while the block runs."""
    folder = run_dir / LAUNCH
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)  # code and logs are the owner's
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UserError(f"cannot write in {run_dir}: {error.strerror}; choose another run_dir") from error
    try:
        with suppress(OSError):  # some cluster file systems have no locks: then nobody may submit twice in a second
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UserError(f"another process is submitting in {run_dir}; try again") from error
        yield
    finally:
        os.close(descriptor)


def write(launch: Launch, scripts: Mapping[str, str]) -> KeptLaunch:
    """Put a launch into its folder, with the text of each share's script by the share's name."""
    folder, before = launch.folder, read_existing(launch.run_dir)
    for recipe, text in launch.recipes().items():
        recipe.parent.mkdir(parents=True, exist_ok=True)
        write_text(recipe, f"# {launch.title or launch.name_of_recipe}\n{text}")
    if launch.table is not None:
        write_json(launch.run_dir / SWEEP, launch.table)
    write_text(folder / "packages.txt", launch.packages)
    (folder / "logs").mkdir(exist_ok=True)
    write_text(folder / "code.sha256", launch.code.listing())
    if launch.code.files:
        launch.code.write(folder / "code")
    for name, text in scripts.items():
        script = folder / f"{name}.sh"
        script.unlink(missing_ok=True)
        with os.fdopen(os.open(script, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700), "w", encoding="utf-8") as file:
            file.write(text)
    kept = KeptLaunch(launch.run_dir, {**_values(launch, scripts), "earlier": _earlier(before, launch.id)})
    if before is not None and before.values["id"] == launch.id:  # the same again: its numbers go on
        for job, old in zip(kept.jobs, before.jobs, strict=True):
            job["slurm"] = old["slurm"]
            job["cancelled"] = old.get("cancelled", "")
    kept.save()
    return kept


def _values(launch: Launch, scripts: Mapping[str, str]) -> dict[str, Any]:
    code = launch.code
    return {
        "schema": SCHEMA, "id": launch.id, "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "name": launch.name, "title": launch.title, "recipe": launch.name_of_recipe, "run_dir": str(launch.run_dir),
        "workdir": str(launch.workdir), "words": words_of(launch.request), "cluster": launch.values,
        "recipe_sha256": sha256_text(launch.recipe), "packages_sha256": sha256_text(launch.packages),
        "code": {"sha256": code.hash(), "commit": code.commit, "files": len(code.files), "bytes": code.num_bytes,
                 "root": str(code.root) if code.root else None,
                 "imports": [*launch.modules.trusted, *(["nemo_vfm"] if is_own(code.root) else [])]},
        "runs": [run.name for run in launch.runs], "jobs": _jobs(launch, scripts),
    }  # fmt: skip


def _jobs(launch: Launch, scripts: Mapping[str, str]) -> list[Json]:
    names = ["", *(share.name for share in launch.shares)]
    return [
        {"name": share.name, "script": f"{share.name}.sh", "step": share.step, "phase": share.phase,
         "waits_for": previous, "nodes": share.nodes, "tasks_per_node": share.tasks_per_node,
         "gpus_per_node": share.gpus_per_node, "array": share.array, "kind": share.kind,
         "degrees": dict(share.degrees), "slurm": [], "cancelled": "",
         "sha256": sha256_text(scripts[share.name]) if scripts else ""}
        for share, previous in zip(launch.shares, names, strict=False)
    ]  # fmt: skip


def _earlier(before: KeptLaunch | None, now: str) -> Sequence[Json]:
    """What stood in the folder before, in short: each other launch with its numbers."""
    if before is None:
        return []
    ids = {job["name"]: job["slurm"] for job in before.jobs}
    old: list[Json] = before.values.get("earlier", [])
    if before.values["id"] == now:
        return old
    return [*old, {"id": before.values["id"], "created": before.values["created"], "jobs": ids}]


_LINE = re.compile(r"([0-9]+)(?:_[0-9]+)?\t([0-9]+)(?:_[0-9]+)?")


def successors(lines: Sequence[str]) -> dict[str, list[str]]:
    """Number -> the numbers that go on with its work, without those of tasks; half a line is passed over."""
    found: dict[str, list[str]] = {}
    for line in lines:
        if match := _LINE.fullmatch(line):
            found.setdefault(match[1], []).append(match[2])
    return found


def line_of(number: str, known: Mapping[str, Sequence[str]]) -> list[str]:
    """A number and all that went on with its work, the latest last."""
    found, seen = [number], {number}
    for one in found:  # it grows meanwhile
        more = [later for later in known.get(one, ()) if later not in seen]
        found += dict.fromkeys(more)
        seen.update(more)
    return found


_MAX_TASKS = 100_000
_Check = Callable[[Any], bool]


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value.isprintable() and len(value) < 5000


def _is_name(value: object) -> bool:
    """One part of a path, which is no option either."""
    return _is_text(value) and value not in ("", ".", "..") and "/" not in str(value) and not str(value).startswith("-")


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value <= 10**12


def _or_none(check: _Check) -> _Check:
    return lambda value: value is None or check(value)


def _each(check: _Check) -> _Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _is_profile(value: object) -> bool:
    times = isinstance(value, dict) and all(_is_number(value.get(name)) for name in ("begin_s", "end_s"))
    return times and isinstance(value, dict) and _each(_is_number)(value.get("ranks"))


_JOB: dict[str, _Check] = {
    "name": _is_name, "script": _is_name, "phase": _is_text, "waits_for": _is_text,
    "step": lambda value: _is_text(value) and not value.startswith("/") and ".." not in PurePosixPath(value).parts,
    "nodes": _is_number, "tasks_per_node": _is_number, "gpus_per_node": _is_number,
    "array": lambda value: _is_number(value) and value <= _MAX_TASKS,
    "slurm": _each(lambda value: isinstance(value, str) and value.isascii() and value.isdecimal()),
    "degrees": lambda value: isinstance(value, dict) and all(map(_is_number, value.values())),
}  # fmt: skip
_WHOLE: dict[str, Any] = {
    "id": _is_text, "created": _is_text, "title": _is_text, "recipe": _is_name, "workdir": _is_text,
    "words": {"cluster": _is_text, "nodes": _or_none(_is_number), "gpus": _or_none(_is_number),
              "trust": _each(_is_text), "allow": _each(_is_text),
              "code": lambda value: isinstance(value, bool), "parts": _is_number},
    "cluster": {"_target_": _is_text}, "code": {"files": _is_number, "sha256": _is_text, "commit": _or_none(_is_text)},
    "jobs": lambda value: isinstance(value, list) and bool(value),
}  # fmt: skip


def _wrong_keys(values: Any, checks: Mapping[str, Any], where: str) -> Iterator[str]:
    for name, check in checks.items():
        value = values.get(name) if isinstance(values, dict) else None
        if isinstance(check, dict):
            yield from _wrong_keys(value, check, f"{where}{name}.")
        elif not check(value):
            yield f"{where}{name}"
    if checks is _WHOLE:
        yield from _wrong_in_parts(values)


def _wrong_in_parts(values: Mapping[str, Any]) -> Iterator[str]:
    """Lists, and what an older launcher did not write."""
    for number, job in enumerate(values["jobs"] if isinstance(values.get("jobs"), list) else ()):
        yield from _wrong_keys(job, _JOB, f"jobs.{number}.")
        for name in ("sha256", "cancelled"):
            if isinstance(job, dict) and not _is_text(job.get(name, "")):
                yield f"jobs.{number}.{name}"
    if not _each(_is_name)(values.get("runs", [])):
        yield "runs"
    if not _each(_is_text)(values["code"].get("imports", [])):
        yield "code.imports"
    if not _or_none(_is_profile)(values["words"].get("profile")):
        yield "words.profile"
    if not _or_none(_is_number)(values["cluster"].get("max_at_once")):
        yield "cluster.max_at_once"
