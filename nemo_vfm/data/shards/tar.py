"""Lists where the members of a tar's samples lie, and writes tar headers."""

import tarfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from nemo_vfm.core.errors import DataError
from nemo_vfm.data.shards.tar_members import BLOCK, Member, TarMembers, Unreadable, neighbours

MAX_MEMBER_BYTES = 4 << 30


@dataclass(slots=True)
class TarIndex:
    """What a tar holds.

    Args:
        samples: key -> extension -> (offset, size), in the tar's order.
        skipped: reason -> how many members were left out for it.
    """

    samples: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)


def header(name: str, size: int) -> bytes:
    """The 512 bytes before a member: no time, owner or machine in them, so equal members give equal bytes."""
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = size, 0, 0o644
    return info.tobuf(tarfile.USTAR_FORMAT)


def padding(size: int) -> bytes:
    """The zeros after a member of this size."""
    return bytes(-size % BLOCK)


def index_tar(path: Path) -> TarIndex:
    """List the samples of anyone's WebDataset tar by reading its headers.

    Links, devices, sparse files, names with `..` or a leading slash, repeated names and formats that are code are
    left out and counted; a tar that ends early gives the members that are whole. The members of a sample need not be
    side by side, but a second sample of the same key is left out.

    Raises:
        DataError: this is not an uncompressed tar.
    """
    index, end = TarIndex(), path.stat().st_size
    try:
        with path.open("rb") as file:
            members = TarMembers(
                file, str(path), max_member_bytes=MAX_MEMBER_BYTES, skip=lambda size: file.seek(min(size, end), 1)
            )
            index.skipped = members.skipped
            places = ((one.key, one.extension, (one.offset, one.size)) for one in members if _is_whole(one, end, index))
            for key, found in neighbours(places, index.skipped):
                known = index.samples.setdefault(key, found)
                if known is not found and known.keys() & found.keys():
                    index.skipped["a duplicate key"] += len(found)
                elif known is not found:
                    known.update(found)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    except Unreadable:
        if not index.samples:
            raise
        index.skipped["unreadable header"] += 1
    return index


def _is_whole(member: Member, end: int, index: TarIndex) -> bool:
    if member.offset + member.size > end:
        index.skipped["cut off by the tar's end"] += 1
        return False
    return True
