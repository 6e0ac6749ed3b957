"""Asks a hub which commit a revision points to and which files the commit has."""

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.sanitize import printable
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.hub.file_names import require_names
from nemo_vfm.models.hub.hub_address import HubAddress, is_commit
from nemo_vfm.models.hub.hub_client import HubClient
from nemo_vfm.models.hub.hub_file import HubFile, listed_file

MOST_FILES = 20_000
_MOST_JSON_BYTES = 64 << 20  # of a complete listing: 20,000 files at 3 kB
_LEAST_PAGE = 50  # files per page, which bounds the number of requests


@dataclass(frozen=True, slots=True)
class Listing:
    """All files of one commit.

    Args:
        commit: 40 hexadecimal digits.
        files: sorted by path.
    """

    commit: str
    files: tuple[HubFile, ...]


def listing_of(client: HubClient, address: HubAddress) -> Listing:
    """Resolve a revision to a commit, once, and list the files of that commit.

    Raises:
        UserError: the model or revision does not exist, or access is denied.
        DataError: the hub returns another commit or an invalid listing.
        HubError: all attempts failed.
    """
    commit = _commit(client, address)
    found = tuple(sorted(_files(client, address.model, commit), key=lambda file: file.path))
    require_names(file.path for file in found)
    return Listing(commit, found)


def file_target(model: str, commit: str, path: str) -> str:
    """Return the request target of a file, below the hub's URL."""
    return f"/{model}/resolve/{commit}/{quote(path)}"


def _commit(client: HubClient, address: HubAddress) -> str:
    target = f"/api/models/{address.model}/revision/{quote(address.revision, safe='')}"
    answer, _, _ = client.json(f"the commit of {address}", target, _MOST_JSON_BYTES)
    commit = answer.get("sha") if isinstance(answer, dict) else None
    if not isinstance(commit, str) or not is_commit(commit):
        raise DataError(f"the hub did not resolve {address}: {printable(repr(commit), 80)} is not a commit")
    if address.is_commit and commit != address.revision:
        raise DataError(f"the hub returned commit {commit}, but {address.revision} was requested")
    return commit


def _files(client: HubClient, model: str, commit: str) -> Iterator[HubFile]:
    target: str | None = f"/api/models/{model}/tree/{commit}?recursive=true"
    count = length = pages = 0
    while target is not None:
        entries, target, size = client.json(f"the list of files of {model}", target, _MOST_JSON_BYTES - length)
        pages, length = pages + 1, length + size
        for entry in _entries(entries):
            if (file := listed_file(entry)) is not None:
                count += 1
                yield file
        if count > MOST_FILES or pages > MOST_FILES // _LEAST_PAGE:
            raise DataError(
                f"the hub's listing has more than {MOST_FILES:,} files or too many pages; no model is that large"
            )


def _entries(answer: Json) -> list[Json]:
    if not isinstance(answer, list):
        raise DataError("the hub's listing of files is not a list")
    return answer
