"""Downloads a model's files of one commit into a folder: resumes, verifies every file, and writes the record last."""

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
from nemo_vfm.models.hub.file_download import FileDownloader
from nemo_vfm.models.hub.file_names import RECORD, UNFINISHED, path_in
from nemo_vfm.models.hub.file_selection import file_selection, files_text, left_out_text, size_text
from nemo_vfm.models.hub.get_record import GetRecord, found_record
from nemo_vfm.models.hub.hub_address import HubAddress
from nemo_vfm.models.hub.hub_client import HubClient
from nemo_vfm.models.hub.hub_file import Digest, HubFile, digest_of
from nemo_vfm.models.hub.hub_listing import file_target, listing_of

_RESERVE_BYTES = 64 << 20  # kept free, because other programs need disk space too


def get_model(address: HubAddress, folder: Path, only: Sequence[str], client: Callable[[], HubClient]) -> str:
    """Download a model, or the files that are still missing; existing files are verified and kept.

    Args:
        address: of the model.
        folder: a new folder, or one of an earlier download of the same model.
        only: patterns of files to download; without any, all files except weights that may contain code.
        client: creates the hub's client; it is not called if no file is missing.

    Returns:
        A sentence that says what was done.

    Raises:
        UserError: the folder has other content, a pattern matches nothing, the disk is full, or access is denied.
        DataError: a download does not match the commit, or a local file was changed.
        HubError: all attempts failed; the next run resumes.
    """
    record = found_record(folder)
    if record is not None:
        record.require_same(address, folder)
        wanted, present = _compare(record, folder, only)
        if set(wanted) == set(present) == set(record.files):
            return (f"nothing to do: {files_text(list(present.values()))} of {address} are present and match "
                    f"commit {record.commit}")  # fmt: skip
    with _locked_parts(folder) as parts:
        if record is None:
            record = _pin(address, client(), parts)
            wanted, present = _compare(record, folder, only)
        missing = [file for path, file in wanted.items() if path not in present]
        downloaded = _download(missing, record, folder, client) if missing else {}
        record.with_files({**present, **downloaded}).write(folder / RECORD)
    return f"downloaded {files_text(missing)} of {address}, commit {record.commit}"


def _pin(address: HubAddress, client: HubClient, parts: Path) -> GetRecord:
    """Record the revision's commit before any download, so that a resumed run uses the same commit."""
    listing = listing_of(client, address)
    found = {file.path: file for file in listing.files}
    record = GetRecord(address, str(client.access.url), listing.commit, {}, found)
    record.write(parts / RECORD)
    return record


def _compare(record: GetRecord, folder: Path, only: Sequence[str]) -> tuple[dict[str, HubFile], dict[str, HubFile]]:
    """Return the wanted files, including earlier downloads, and those that are present, both by path."""
    selection = file_selection(record.all_files(), only)
    info(f"{record.address} is commit {record.commit}: {files_text(selection.chosen)}")
    if absent := [file for file in selection.left_out if file.path not in record.files]:
        info(left_out_text(absent))
    wanted = {file.path: file for file in (*record.files.values(), *selection.chosen)}
    return wanted, _verify(list(wanted.values()), folder)


def _verify(files: Sequence[HubFile], folder: Path) -> dict[str, HubFile]:
    """Return the files that are present, each with its sha256.

    Raises:
        DataError: a file does not match the commit.
    """
    existing = [(file, where) for file in files if (where := path_in(folder, file.path)).exists()]
    if not existing:
        return {}
    with _bytes_bar("verify", [file for file, _ in existing], 0) as advance:
        return {file.path: _verify_file(file, where, advance) for file, where in existing}


def _verify_file(file: HubFile, where: Path, advance: Callable[[int], None]) -> HubFile:
    found = digest_of(where)
    try:
        file.verify(found)
    except DataError as error:
        raise DataError(f"{error}; {where} was changed locally: remove it to download it again, or give "
                        "another folder") from None  # fmt: skip
    advance(file.size)
    return _with_sha256(file, found)


def _download(
    files: Sequence[HubFile], record: GetRecord, folder: Path, client: Callable[[], HubClient]
) -> dict[str, HubFile]:
    parts = folder / UNFINISHED
    partial_bytes = sum(min(file.size, _size(parts / file.part_name)) for file in files)
    _require_space(sum(file.size for file in files) - partial_bytes, folder)
    if partial_bytes:
        info(f"resuming: {size_text(partial_bytes)} were downloaded by an earlier run")
    done: dict[str, HubFile] = {}
    with _bytes_bar("get", files, partial_bytes) as advance, _report_full_disk(folder):
        downloader = FileDownloader(client(), record.commit, parts, advance)
        for file in files:
            found = downloader.download(file, file_target(record.address.model, record.commit, file.path), folder)
            done[file.path] = _with_sha256(file, found)
    return done


def _with_sha256(file: HubFile, found: Digest) -> HubFile:
    return replace(file, sha256=found.sha256)


def _require_space(size: int, folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if size + _RESERVE_BYTES > free:
        raise UserError(f"the download needs {size_text(size)}, but the disk of {folder} has {size_text(free)} free; "
                        "make room, give another folder, or download less with --only")  # fmt: skip


@contextmanager
def _locked_parts(folder: Path) -> Iterator[Path]:
    """Lock the folder for partial files for this process; remove it after success."""
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
    """Remove the folders if nothing was downloaded; the next run then resolves the revision again."""
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
            raise UserError(f"another `nemo-vfm get` is writing to {folder}; wait for it or stop it") from None
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL):  # some network file systems have no locks
            raise


@contextmanager
def _report_full_disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise UserError(
                f"the disk of {folder} is full; make room and run the same command again to resume"
            ) from None
        raise


@contextmanager
def _bytes_bar(title: str, files: Sequence[HubFile], done: int) -> Iterator[Callable[[int], None]]:
    """Show progress in megabytes; the yielded function takes bytes."""
    with bar(title, round(sum(file.size for file in files) / 1e6), completed=round(done / 1e6), unit="MB") as line:
        yield lambda count: line.advance(count / 1e6)


def _size(part: Path) -> int:
    return part.lstat().st_size if part.is_file() else 0
