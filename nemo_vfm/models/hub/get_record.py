# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Reads and writes `get.json`: which model a folder holds, of which commit, and every file's size and hash."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.storage.files import read_json, write_json
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.hub.file_names import RECORD, UNFINISHED, require_names
from nemo_vfm.models.hub.hub_address import HubAddress, hub_address, is_commit
from nemo_vfm.models.hub.hub_file import HubFile, recorded_file

_FORMAT = 1
_MOST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class GetRecord:
    """What a folder holds.

    Args:
        address: of the model, with the revision that was asked for.
        hub: that answered, such as https://huggingface.co.
        commit: what the revision was when it was asked for.
        files: by path, that are here; each with its sha256.
        left_out: by path, the commit's other files.
    """

    address: HubAddress
    hub: str
    commit: str
    files: Mapping[str, HubFile]
    left_out: Mapping[str, HubFile]

    def all_files(self) -> tuple[HubFile, ...]:
        """Those of the commit, in the order of their names."""
        return tuple(file for _, file in sorted({**self.left_out, **self.files}.items()))

    def with_files(self, brought: Mapping[str, HubFile]) -> Self:
        """The same with these files here."""
        files = {**self.files, **brought}
        left = {path: file for path, file in self.left_out.items() if path not in files}
        return type(self)(self.address, self.hub, self.commit, dict(sorted(files.items())), left)

    def require_same(self, address: HubAddress, folder: Path) -> None:
        """Refuse to put another model, or another revision of it, into a folder.

        Raises:
            UserError: it would be another.
        """
        here = f"{folder} holds {self.address} (commit {self.commit})"
        if address.model != self.address.model:
            raise UserError(f"{here}, not {address}; give another folder")
        if address.revision not in (self.address.revision, self.commit):
            raise UserError(f"{here}, and you ask for {address}; give another folder, so that no folder is a mixture")

    def write(self, file: Path) -> None:
        """Write it whole."""
        write_json(file, {"format": _FORMAT, "model": self.address.model, "hub": self.hub,
                          "revision": self.address.revision, "commit": self.commit,
                          "files": {path: _entry(one) for path, one in self.files.items()},
                          "left_out": {path: _entry(one) for path, one in self.left_out.items()}})  # fmt: skip


def found_record(folder: Path) -> GetRecord | None:
    """What an earlier run wrote into a folder, whole or not; None where it wrote nothing.

    Raises:
        UserError: the folder has other content.
        DataError: what is there is not a record.
    """
    begun = [] if (folder / UNFINISHED).is_symlink() else [folder / UNFINISHED / RECORD]
    for file in (folder / RECORD, *begun):
        if file.is_file() and not file.is_symlink():
            return _read(file)
    if folder.exists() and (not folder.is_dir() or {path.name for path in folder.iterdir()} - {UNFINISHED}):
        raise UserError(f"{folder} exists and does not come from `nemo-vfm get`; nothing in it is changed: give "
                        "another folder")  # fmt: skip
    return None


def _read(file: Path) -> GetRecord:
    try:
        found = read_json(file, _MOST_BYTES)
        commit = found["commit"]
        if found["format"] != _FORMAT or not is_commit(commit):
            raise ValueError(commit)
        address = hub_address(f"hf://{found['model']}@{found['revision']}")
        record = GetRecord(address, str(found["hub"]), commit, _files(found["files"]), _files(found["left_out"]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DataError(f"{file} is not what `nemo-vfm get` writes; remove it with its folder, and get the model "
                        "again") from error  # fmt: skip
    require_names([*record.files, *record.left_out])
    return record


def _files(entries: Json) -> dict[str, HubFile]:
    return {str(path): recorded_file(str(path), entry) for path, entry in sorted(entries.items())}


def _entry(file: HubFile) -> dict[str, Json]:
    known = {"size": file.size, "sha256": file.sha256, "git_sha1": file.git_sha1}
    return {key: value for key, value in known.items() if value is not None}
