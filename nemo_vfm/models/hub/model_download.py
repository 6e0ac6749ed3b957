"""Downloads a model's files of one commit into a folder: resumes, verifies every file, and writes the record last.

The files are those that match `--only`, else all except weights that may contain code. The record, `get.json`, has the
folder's model and commit, and the size and hash of every file.
"""

import errno
import fcntl
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.log import bar, info
from nemo_vfm.core.sanitize import printable
from nemo_vfm.core.storage.files import is_full, read_json, sync, write_json
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.hub.file_download import FileDownloader
from nemo_vfm.models.hub.hub_client import HubClient
from nemo_vfm.models.hub.hub_file import HubFile, listing_of, recorded_file
from nemo_vfm.models.hub.hub_names import RECORD, UNFINISHED, HubAddress, hub_address, is_commit, path_in, require_names

_RESERVE_BYTES = 64 << 20  # kept free, because other programs need disk space too
#: Pickles and weights of other frameworks: redundant next to safetensors, and loading some of them runs code.
LEFT_OUT = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".h5", ".keras", ".msgpack", ".ot", ".nemo")
_SHOWN = 12
_FORMAT = 1
_MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class GetRecord:
    """The contents of a downloaded folder."""

    address: HubAddress  #: the model and the requested revision
    hub: str  #: URL of the hub, such as https://huggingface.co
    commit: str  #: the commit that the revision pointed to
    files: Mapping[str, HubFile]  #: downloaded files by path, each with its sha256
    left_out: Mapping[str, HubFile]  #: the commit's other files by path

    def require_same(self, address: HubAddress, folder: Path) -> None:
        """Refuse to mix two models or revisions in one folder."""
        here = f"{folder} holds {self.address} (commit {self.commit})"
        if address.model != self.address.model:
            raise UserError(f"{here}, not {address}; give another folder")
        if address.revision not in (self.address.revision, self.commit):
            raise UserError(f"{here}, not revision {address.revision}; give another folder")

    def write(self, file: Path) -> None:
        write_json(file, {"format": _FORMAT, "model": self.address.model, "hub": self.hub,
                          "revision": self.address.revision, "commit": self.commit,
                          "files": {path: _entry(one) for path, one in self.files.items()},
                          "left_out": {path: _entry(one) for path, one in self.left_out.items()}})  # fmt: skip


def get_model(address: HubAddress, folder: Path, only: Sequence[str], client: Callable[[], HubClient]) -> str:
    """Download a model, or the files that are still missing; existing files are verified and kept.

    Args:
        address: of the model.
        folder: a new folder, or one of an earlier download of the same model.
        only: patterns of files to download; without any, all files except weights that may contain code.
        client: creates the hub's client; it is not called if no file is missing.

    Returns:
        A sentence that says what was done.
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
            # The revision's commit is recorded before any download, so that a resumed run uses the same commit.
            asked = client()
            commit, found = listing_of(asked, address)
            record = GetRecord(address, str(asked.access.url), commit, {}, found)
            record.write(parts / RECORD)
            wanted, present = _compare(record, folder, only)
        missing = [file for path, file in wanted.items() if path not in present]
        downloaded = _download(missing, record, folder, client) if missing else {}
        files = {**record.files, **{**present, **downloaded}}
        left = {path: file for path, file in record.left_out.items() if path not in files}
        replace(record, files=dict(sorted(files.items())), left_out=left).write(folder / RECORD)
    return f"downloaded {files_text(missing)} of {address}, commit {record.commit}"


def _compare(record: GetRecord, folder: Path, only: Sequence[str]) -> tuple[dict[str, HubFile], dict[str, HubFile]]:
    """Return the wanted files, including earlier downloads, and those that are present, both by path."""
    listed = [file for _, file in sorted({**record.left_out, **record.files}.items())]
    chosen, left_out = file_selection(listed, only)
    info(f"{record.address} is commit {record.commit}: {files_text(chosen)}")
    if absent := [file for file in left_out if file.path not in record.files]:
        ends = Counter(PurePosixPath(file.path).suffix.lower() for file in absent)
        kinds = ", ".join(f"{number} {end}" for end, number in sorted(ends.items()))
        size = size_text(sum(file.size for file in absent))
        info(f"left out because loading may run code or needs another framework: {kinds} ({size}); --only "
             "downloads it, and `nemo-vfm convert` reads it without running code")  # fmt: skip
    wanted = {file.path: file for file in (*record.files.values(), *chosen)}
    existing = {file: where for file in wanted.values() if (where := path_in(folder, file.path)).exists()}
    if not existing:
        return wanted, {}
    present = {}
    with _bytes_bar("verify", list(existing), 0) as advance:
        for file, where in existing.items():
            try:
                present[file.path] = file.verify(where)
            except DataError as error:
                raise DataError(f"{error}; {where} was changed locally: remove it to download it again, or give "
                                "another folder") from None  # fmt: skip
            advance(file.size)
    return wanted, present


def _download(
    files: Sequence[HubFile], record: GetRecord, folder: Path, client: Callable[[], HubClient]
) -> dict[str, HubFile]:
    parts = folder / UNFINISHED
    there = {file: part for file in files if (part := parts / file.part_name).is_file()}
    partial_bytes = sum(min(file.size, part.lstat().st_size) for file, part in there.items())
    size = sum(file.size for file in files) - partial_bytes
    free = shutil.disk_usage(folder).free
    if size + _RESERVE_BYTES > free:
        raise UserError(f"the download needs {size_text(size)}, but the disk of {folder} has {size_text(free)} free; "
                        "make room, give another folder, or download less with --only")  # fmt: skip
    if partial_bytes:
        info(f"resuming: {size_text(partial_bytes)} were downloaded by an earlier run")
    done: dict[str, HubFile] = {}
    try:
        with _bytes_bar("get", files, partial_bytes) as advance:
            downloader = FileDownloader(client(), record.commit, parts, advance)
            for file in files:
                target = f"/{record.address.model}/resolve/{record.commit}/{quote(file.path)}"
                done[file.path] = downloader.download(file, target, folder)
    except OSError as error:
        if is_full(error):
            raise UserError(
                f"the disk of {folder} is full; make room and run the same command again to resume"
            ) from None
        raise
    return done


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
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
                raise UserError(f"another `nemo-vfm get` is writing to {folder}; wait for it or stop it") from None
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL):  # network file systems may have no locks
                raise
        try:
            yield parts
            shutil.rmtree(parts)
            sync(folder)
        finally:
            # If nothing was downloaded, nothing stays; the next run then resolves the revision again.
            with suppress(OSError):
                if {path.name for path in parts.iterdir()} == {RECORD} and [*folder.iterdir()] == [parts]:
                    (parts / RECORD).unlink()
            for one in (parts, *new):
                with suppress(OSError):
                    one.rmdir()
    finally:
        os.close(descriptor)


@contextmanager
def _bytes_bar(title: str, files: Sequence[HubFile], done: int) -> Iterator[Callable[[int], None]]:
    """Show progress in megabytes; the yielded function takes bytes."""
    with bar(title, round(sum(file.size for file in files) / 1e6), completed=round(done / 1e6), unit="MB") as line:
        yield lambda count: line.advance(count / 1e6)


def found_record(folder: Path) -> GetRecord | None:
    """Return the record of a complete or partial earlier download; None if there was none."""
    partial = [] if (folder / UNFINISHED).is_symlink() else [folder / UNFINISHED / RECORD]
    for file in (folder / RECORD, *partial):
        if not file.is_file() or file.is_symlink():
            continue
        try:
            found = read_json(file, _MAX_BYTES)
            commit = found["commit"]
            if found["format"] != _FORMAT or not is_commit(commit):
                raise ValueError(commit)
            address = hub_address(f"hf://{found['model']}@{found['revision']}")
            files, left_out = ({str(path): recorded_file(str(path), one) for path, one in sorted(found[key].items())}
                               for key in ("files", "left_out"))  # fmt: skip
            record = GetRecord(address, str(found["hub"]), commit, files, left_out)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise DataError(f"{file} is not a valid record of `nemo-vfm get`; remove its folder and download the model "
                            "again") from error  # fmt: skip
        require_names([*record.files, *record.left_out])
        return record
    if folder.exists() and (not folder.is_dir() or {path.name for path in folder.iterdir()} - {UNFINISHED}):
        raise UserError(f"{folder} exists and was not created by `nemo-vfm get`; nothing in it was changed: "
                        "give another folder")  # fmt: skip
    return None


def _entry(file: HubFile) -> dict[str, Json]:
    known = {"size": file.size, "sha256": file.sha256, "git_sha1": file.git_sha1}
    return {key: value for key, value in known.items() if value is not None}


def file_selection(files: Sequence[HubFile], only: Sequence[str]) -> tuple[list[HubFile], list[HubFile]]:
    """Select files by pattern or by suffix: those to download, and those excluded by their type (none with `only`).

    In a pattern `*` matches anything, including `/`.
    """
    if only:
        unmatched = [pattern for pattern in only if not any(fnmatchcase(file.path, pattern) for file in files)]
        if unmatched:
            raise UserError(
                f"--only {printable(repr(unmatched[0]), 200)} matches no file of the model, which has {_names(files)}"
            )
        return [file for file in files if any(fnmatchcase(file.path, one) for one in only)], []
    left = [file for file in files if file.path.lower().endswith(LEFT_OUT)]
    chosen = [file for file in files if not file.path.lower().endswith(LEFT_OUT)]
    if left and not any(file.path.lower().endswith((".safetensors", ".gguf", ".onnx")) for file in chosen):
        raise UserError(f"the model has no safetensors weights, only {_names(left)}. Loading these elsewhere may run "
                        "code. Download them with --only 'PATTERN' and read them with `nemo-vfm convert`, which "
                        "runs none")  # fmt: skip
    if not chosen:
        raise UserError("the model has no files at this revision")
    return chosen, left


def files_text(files: Sequence[HubFile]) -> str:
    """Format the number and total size of files."""
    return f"{len(files)} {'file' if len(files) == 1 else 'files'} ({size_text(sum(file.size for file in files))})"


def size_text(size: int) -> str:
    """Format a number of bytes with a suitable unit."""
    for unit, divisor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= divisor:
            return f"{size / divisor:.1f} {unit}"
    return f"{size} bytes"


def _names(files: Sequence[HubFile]) -> str:
    names = [printable(file.path, 100) for file in files]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"
