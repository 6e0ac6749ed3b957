"""Checks what launch.json says: a run folder may be a stranger's, and its names become paths and arguments."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

_MOST_TASKS = 100_000
_Check = Callable[[Any], bool]


def first_wrong(values: Mapping[str, Any]) -> str:
    """The first value that no launcher writes, by its address; empty where there is none."""
    return next(_wrong(values, _WHOLE, ""), "")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value.isprintable() and len(value) < 5000


def _is_name(value: object) -> bool:
    """One part of a path, which is no option either."""
    return _is_text(value) and value not in ("", ".", "..") and "/" not in str(value) and not str(value).startswith("-")


def _is_below(value: object) -> bool:
    path = PurePosixPath(str(value))
    return _is_text(value) and not path.is_absolute() and ".." not in path.parts


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value <= 10**12


def _is_number_of_slurm(value: object) -> bool:
    return isinstance(value, str) and value.isascii() and value.isdecimal()


def _or_none(check: _Check) -> _Check:
    return lambda value: value is None or check(value)


def _each(check: _Check) -> _Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _is_profile(value: object) -> bool:
    times = isinstance(value, dict) and all(_is_number(value.get(name)) for name in ("begin_s", "end_s"))
    return times and isinstance(value, dict) and _each(_is_number)(value.get("ranks"))


_JOB: dict[str, _Check] = {
    "name": _is_name, "script": _is_name, "step": _is_below, "phase": _is_text, "waits_for": _is_text,
    "nodes": _is_number, "tasks_per_node": _is_number, "gpus_per_node": _is_number,
    "array": lambda value: _is_number(value) and value <= _MOST_TASKS, "slurm": _each(_is_number_of_slurm),
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


def _wrong(values: Any, checks: Mapping[str, Any], where: str) -> Iterator[str]:
    for name, check in checks.items():
        value = values.get(name) if isinstance(values, dict) else None
        if isinstance(check, dict):
            yield from _wrong(value, check, f"{where}{name}.")
        elif not check(value):
            yield f"{where}{name}"
    if checks is _WHOLE:
        yield from _wrong_in_parts(values)


def _wrong_in_parts(values: Mapping[str, Any]) -> Iterator[str]:
    """Lists, and what an older launcher did not write."""
    for number, job in enumerate(values["jobs"] if isinstance(values.get("jobs"), list) else ()):
        yield from _wrong(job, _JOB, f"jobs.{number}.")
        for name in ("sha256", "cancelled"):
            if isinstance(job, dict) and not _is_text(job.get(name, "")):
                yield f"jobs.{number}.{name}"
    if not _each(_is_name)(values.get("runs", [])):
        yield "runs"
    if not _each(_is_text)(values["code"].get("imports", [])):
        yield "code.imports"
    if not _or_none(_is_profile)(values["words"].get("profile")):
        yield "words.profile"
    if not _or_none(_is_number)(values["cluster"].get("most_at_once")):
        yield "cluster.most_at_once"
