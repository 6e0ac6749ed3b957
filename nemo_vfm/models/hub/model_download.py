# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Brings a model's files of one commit into a folder: resumes, verifies every file, and writes the record last."""

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.log import bar, info
from nemo_vfm.core.storage.files import is_full, sync
from nemo_vfm.models.hub.file_download import FileDownload
from nemo_vfm.models.hub.file_names import RECORD, UNFINISHED, path_in
from nemo_vfm.models.hub.file_selection import about_left_out, file_selection, files_text, size_text
from nemo_vfm.models.hub.get_record import GetRecord, found_record
from nemo_vfm.models.hub.hub_address import HubAddress
from nemo_vfm.models.hub.hub_client import HubClient
from nemo_vfm.models.hub.hub_file import Digest, HubFile, digest_of
from nemo_vfm.models.hub.hub_listing import file_target, listing_of

_RESERVE_BYTES = 64 << 20  # a full disk breaks more than a download


def get_model(address: HubAddress, folder: Path, only: Sequence[str], client: Callable[[], HubClient]) -> str:
    """Bring a model, or the rest of it; what is here already is read and compared, and not brought again.

    Args:
        address: of the model.
        folder: to make, or of an earlier run of the same.
        only: patterns of the files to bring; none brings all but weights that may hold code.
        client: makes the one that asks the hub; it is not made where all is here.

    Returns:
        What was done, as a sentence.

    Raises:
        UserError: the folder holds something else, a pattern fits nothing, the disk is too small, or the hub refuses.
        DataError: the hub lies about a file, or a file here was changed.
        HubError: the hub does not answer; the next run goes on.
    """
    record = found_record(folder)
    if record is not None:
        record.require_same(address, folder)
        wanted, here = _compared(record, folder, only)
        if set(wanted) == set(here) == set(record.files):
            return (f"nothing to do: {files_text(list(here.values()))} of {address} are here and have the hashes "
                    f"of commit {record.commit}")  # fmt: skip
    with _alone(folder) as parts:
        if record is None:
            record = _pinned(address, client(), parts)
            wanted, here = _compared(record, folder, only)
        missing = [file for path, file in wanted.items() if path not in here]
        brought = _downloaded(missing, record, folder, client) if missing else {}
        record.with_files({**here, **brought}).write(folder / RECORD)
    return f"brought {files_text(missing)} of {address}, commit {record.commit}"


def _pinned(address: HubAddress, client: HubClient, parts: Path) -> GetRecord:
    """Write down what the revision means before anything is brought, so that no later run takes another commit."""
    listing = listing_of(client, address)
    found = {file.path: file for file in listing.files}
    record = GetRecord(address, str(client.access.url), listing.commit, {}, found)
    record.write(parts / RECORD)
    return record


def _compared(record: GetRecord, folder: Path, only: Sequence[str]) -> tuple[dict[str, HubFile], dict[str, HubFile]]:
    """The files that are wanted, those of earlier runs among them, and of these the ones that are here, by path."""
    selection = file_selection(record.all_files(), only)
    info(f"{record.address} is commit {record.commit}: {files_text(selection.chosen)}")
    if absent := [file for file in selection.left_out if file.path not in record.files]:
        info(about_left_out(absent))
    wanted = {file.path: file for file in (*record.files.values(), *selection.chosen)}
    return wanted, _verified(list(wanted.values()), folder)


def _verified(files: Sequence[HubFile], folder: Path) -> dict[str, HubFile]:
    """Those that are here, each with its sha256.

    Raises:
        DataError: one has other bytes.
    """
    there = [(file, where) for file in files if (where := path_in(folder, file.path)).exists()]
    if not there:
        return {}
    with _bytes_bar("verify", [file for file, _ in there], 0) as advance:
        return {file.path: _kept(file, where, advance) for file, where in there}


def _kept(file: HubFile, where: Path, advance: Callable[[int], None]) -> HubFile:
    found = digest_of(where)
    try:
        file.require_same(found)
    except DataError as error:
        raise DataError(f"{error}; {where} was changed here: remove it to bring it again, or give another "
                        "folder") from None  # fmt: skip
    advance(file.size)
    return _with_sha256(file, found)


def _downloaded(
    files: Sequence[HubFile], record: GetRecord, folder: Path, client: Callable[[], HubClient]
) -> dict[str, HubFile]:
    parts = folder / UNFINISHED
    begun = sum(min(file.size, _size(parts / file.part_name)) for file in files)
    _require_space(sum(file.size for file in files) - begun, folder)
    if begun:
        info(f"{size_text(begun)} are here from an earlier run")
    here: dict[str, HubFile] = {}
    with _bytes_bar("get", files, begun) as advance, _full_disk_is_said(folder):
        download = FileDownload(client(), record.commit, parts, advance)
        for file in files:
            found = download.bring(file, file_target(record.address.model, record.commit, file.path), folder)
            here[file.path] = _with_sha256(file, found)
    return here


def _with_sha256(file: HubFile, found: Digest) -> HubFile:
    return replace(file, sha256=found.sha256)


def _require_space(size: int, folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if size + _RESERVE_BYTES > free:
        raise UserError(f"{size_text(size)} are to come, and the disk of {folder} has {size_text(free)} free; make "
                        "room, name another folder, or bring a part by --only")  # fmt: skip


@contextmanager
def _alone(folder: Path) -> Iterator[Path]:
    """The folder of what is not whole, for one process at a time; it is removed when all is done."""
    parts = folder / UNFINISHED
    new = [one for one in (folder, *folder.parents) if not one.exists()]
    if parts.is_symlink():
        raise DataError(f"{parts} is a link; links are not followed")
    parts.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(parts, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _lock(descriptor, folder)
        try:
            yield parts
            shutil.rmtree(parts)
            sync(folder)
        finally:
            _remove_empty(parts, new)
    finally:
        os.close(descriptor)


def _remove_empty(parts: Path, new: Sequence[Path]) -> None:
    """Leave nothing behind where nothing was brought; the next run asks anew which commit the revision is."""
    with suppress(OSError):
        if {path.name for path in parts.iterdir()} == {RECORD} and [*parts.parent.iterdir()] == [parts]:
            (parts / RECORD).unlink()
    for folder in (parts, *new):
        with suppress(OSError):
            folder.rmdir()


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
            raise UserError(f"another `nemo-vfm get` writes to {folder}; wait for it, or end it") from None
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL):  # some network disks have no locks
            raise


@contextmanager
def _full_disk_is_said(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise UserError(
                f"the disk of {folder} is full; make room and run the same command again to go on"
            ) from None
        raise


@contextmanager
def _bytes_bar(title: str, files: Sequence[HubFile], done: int) -> Iterator[Callable[[int], None]]:
    """Progress in megabytes; the function takes bytes."""
    with bar(title, round(sum(file.size for file in files) / 1e6), completed=round(done / 1e6), unit="MB") as line:
        yield lambda count: line.advance(count / 1e6)


def _size(part: Path) -> int:
    return part.lstat().st_size if part.is_file() else 0
