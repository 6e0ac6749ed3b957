# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Two recipes in, the keys in which they differ out, sorted into harmless ones and others."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nemo_vfm.core.errors import RunFolderError
from nemo_vfm.workflow import is_inert

_ABSENT = "nothing"


def differences(there: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """`{key: (value there, value now)}`; where a run lies is not part of what it is."""
    old, new = dict(_flat(there)), dict(_flat(now))
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key) and key != "run_dir"]
    return {key: (str(old.get(key, _ABSENT)), str(new.get(key, _ABSENT))) for key in keys}


def is_harmless(key: str) -> bool:
    """Whether a run may go on with another value: its length, its workers, what it logs and how often it saves."""
    parts = key.split(".")
    return parts[-1] == "duration" or any(is_inert(part) or part in ("logger", "loggers") for part in parts)


def accept(found: Mapping[str, tuple[str, str]], allowed: Sequence[str], folder: str) -> None:
    """Refuse a folder that holds another run.

    Raises:
        RunFolderError: a difference is neither harmless nor allowed; the text shows each.
    """
    refused = {key: pair for key, pair in found.items() if not (is_harmless(key) or _is_allowed(key, allowed))}
    if refused:
        lines = "\n".join(f"  {key}: {old} there, {new} now" for key, (old, new) in refused.items())
        raise RunFolderError(
            f"{folder} holds a run of another recipe:\n{lines}\n"
            f"Take another folder with run_dir=..., or go on all the same with --allow {next(iter(refused))}"
        )


def _is_allowed(key: str, allowed: Sequence[str]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in allowed)


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, below in value.items():
            yield from _flat(below, f"{path}.{key}" if path else key)
    else:
        yield path, value
