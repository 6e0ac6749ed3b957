"""Reads and writes `get.json`: a folder's model and commit, and the size and hash of every file."""

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
    """The contents of a downloaded folder.

    Args:
        address: the model and the requested revision.
        hub: URL of the hub, such as https://huggingface.co.
        commit: the commit that the revision pointed to.
        files: downloaded files by path, each with its sha256.
        left_out: the commit's other files by path.
    """

    address: HubAddress
    hub: str
    commit: str
    files: Mapping[str, HubFile]
    left_out: Mapping[str, HubFile]

    def all_files(self) -> tuple[HubFile, ...]:
        """Return all files of the commit, sorted by path."""
        return tuple(file for _, file in sorted({**self.left_out, **self.files}.items()))

    def with_files(self, downloaded: Mapping[str, HubFile]) -> Self:
        """Return a copy that lists these files as downloaded."""
        files = {**self.files, **downloaded}
        left = {path: file for path, file in self.left_out.items() if path not in files}
        return type(self)(self.address, self.hub, self.commit, dict(sorted(files.items())), left)

    def require_same(self, address: HubAddress, folder: Path) -> None:
        """Refuse to mix two models or revisions in one folder.

        Raises:
            UserError: the address names another model or revision.
        """
        here = f"{folder} holds {self.address} (commit {self.commit})"
        if address.model != self.address.model:
            raise UserError(f"{here}, not {address}; give another folder")
        if address.revision not in (self.address.revision, self.commit):
            raise UserError(f"{here}, not revision {address.revision}; give another folder")

    def write(self, file: Path) -> None:
        """Write the record atomically."""
        write_json(file, {"format": _FORMAT, "model": self.address.model, "hub": self.hub,
                          "revision": self.address.revision, "commit": self.commit,
                          "files": {path: _entry(one) for path, one in self.files.items()},
                          "left_out": {path: _entry(one) for path, one in self.left_out.items()}})  # fmt: skip


def found_record(folder: Path) -> GetRecord | None:
    """Return the record of a complete or partial earlier download; None if there was none.

    Raises:
        UserError: the folder has other content.
        DataError: the record is invalid.
    """
    partial = [] if (folder / UNFINISHED).is_symlink() else [folder / UNFINISHED / RECORD]
    for file in (folder / RECORD, *partial):
        if file.is_file() and not file.is_symlink():
            return _read(file)
    if folder.exists() and (not folder.is_dir() or {path.name for path in folder.iterdir()} - {UNFINISHED}):
        raise UserError(f"{folder} exists and was not created by `nemo-vfm get`; nothing in it was changed: "
                        "give another folder")  # fmt: skip
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
        raise DataError(f"{file} is not a valid record of `nemo-vfm get`; remove its folder and download the model "
                        "again") from error  # fmt: skip
    require_names([*record.files, *record.left_out])
    return record


def _files(entries: Json) -> dict[str, HubFile]:
    return {str(path): recorded_file(str(path), entry) for path, entry in sorted(entries.items())}


def _entry(file: HubFile) -> dict[str, Json]:
    known = {"size": file.size, "sha256": file.sha256, "git_sha1": file.git_sha1}
    return {key: value for key, value in known.items() if value is not None}
