"""Decides which hosts a run may send data to, with which key, and where it may write. The user allows these, no recipe.

The code that composes a recipe gives `Permissions` to the components that send (`config/build.py`). No key of a recipe
can hold one. It travels with the component to worker processes and other machines.
"""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Protocol, runtime_checkable

from nemo_vfm.core.network.ssrf_guard import ServiceUrl, is_private, service_url
from nemo_vfm.core.secret import register
from nemo_vfm.core.storage.files import real_path
from nemo_vfm.core.storage.uri import SCHEMES, Address
from nemo_vfm.core.types.json_value import Json


class SentMark:
    """Marks an argument whose text leaves this machine: see `SentText`."""


@dataclass(frozen=True, slots=True)
class UserOnly:
    """Marks an argument that takes one value from the user alone, who types it; no recipe can give it."""

    value: object  #: which gives up a protection


#: A text that is sent to somebody: what comes from the environment is refused in it.
SentText = Annotated[str, SentMark()]
#: JSON that is sent to somebody.
SentJson = Annotated[Json, SentMark()]
_FOLDER = "file://"  # before a folder that a run may write in
#: A key typed in the place of a variable's name is not shown again, so lower case, which keys have, is refused.
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,63}")
_BARE = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[\w.-]+)(?::\d{1,5})?")


@dataclass(frozen=True, slots=True)
class AllowedHost:
    """One host or bucket that the user allows."""

    place: str  #: `https://host:443`, `s3://bucket`, `ray://host:10001`, or `file:///folder` that may be written in
    variable: str | None = None  #: of the environment, whose value is the key; None sends none
    private: bool = False  #: whether it may be on this machine or in its network
    source: str = "--allow-host"  #: where the user says so, in words
    name: str = ""  #: in the user's file; empty for an option of the command line
    url: str = ""  #: the whole address in the file; empty for an option


@dataclass(frozen=True, slots=True)
class Recipient:
    """Who would get something from a run, for the list that `check` and `run` show."""

    place: str  #: host or bucket
    gets: str  #: what, in words
    variables: tuple[str, ...] = ()  #: of the environment, whose values sign or open the requests
    source: str = ""  #: who says so, in words


@runtime_checkable
class Sends(Protocol):
    """A component that may reach the network by itself."""

    def recipients(self) -> Sequence[Recipient]:
        """Everybody it would reach."""
        ...


@dataclass(frozen=True, slots=True)
class Permissions:
    """Everything that the user allows; without arguments nothing.

    Args:
        allowed: hosts, buckets and folders.
        file: the user's endpoints file, for messages.
        trouble: why that file was not read; empty where it was, or where there is none.
        withheld: (variable, value) of all that the recipe takes from the environment; no request may hold a value.
    """

    allowed: tuple[AllowedHost, ...] = ()
    file: str = "the endpoints file"
    trouble: str = ""
    withheld: tuple[tuple[str, str], ...] = field(default=(), repr=False, compare=False)

    @classmethod
    def of(cls, *words: str) -> "Permissions":
        """What `--allow-host` says, a word each."""
        return cls(merge_hosts(map(allowed_host, words)))

    def find_endpoint(self, name: str) -> AllowedHost:
        """The endpoint of the user's file that a recipe names.

        Raises:
            ValueError: there is none.
        """
        found = {one.name: one for one in self.allowed if one.url.startswith("http")}
        if name in found:
            return found[name]
        known = f"it has {', '.join(sorted(filter(None, found)))}" if found else "it names none"
        raise ValueError(f"{self.file} has no endpoint of this name: {self.trouble or known}. Add it there: "
                         "NAME: {url: https://..., api_key_env: VARIABLE}")  # fmt: skip

    def service(self, url: ServiceUrl) -> AllowedHost:
        """What an option says of the host of a URL that a recipe gives.

        Raises:
            ValueError: none says anything.
        """
        found = [one for one in self.allowed if one.place == url.origin]
        if not found:
            raise ValueError(self.refusal(url.origin))
        if named := [one.name for one in found if one.name and len(found) == 1]:
            raise ValueError(f"{url.origin} is named in {self.file}; write name: {named[0]} instead of the URL")
        return next(one for one in found if not one.name)

    def allows(self, place: str) -> bool:
        """Whether the user allows a bucket, or another address that takes no key of ours."""
        return any(one.place == place for one in self.allowed)

    def may_write(self, path: Path) -> bool:
        """Whether the user allows the folder that a path lies in, or the path itself."""
        folders = (Path(one.place.removeprefix(_FOLDER)) for one in self.allowed if one.place.startswith(_FOLDER))
        return any(real_path(path).is_relative_to(real_path(folder)) for folder in folders)

    def refusal(self, place: str) -> str:
        """Why nothing goes to a host or bucket that a recipe names, and what the user can do."""
        reason = f" ({self.file} was not read: {self.trouble})" if self.trouble else ""
        bare = place.partition("://")[2].removesuffix(":443")
        short = bare if place.startswith("http") and allowed_place(bare, None).place == place else place
        key = f", or {short}=VARIABLE if it needs a key" if place.startswith("http") else ""
        return (f"nothing is sent to {place} until you allow it{reason}: if you trust it, add --allow-host "
                f"{short}{key}, or name it in {self.file}")  # fmt: skip


#: For whatever is made without a user who could allow something.
NOTHING = Permissions()


def merge_hosts(found: Iterable[AllowedHost]) -> tuple[AllowedHost, ...]:
    """All of them, those that say the same once.

    Raises:
        ValueError: two options say different things about one host, so that its key would depend on their order.
    """
    kept: dict[tuple[str, str], AllowedHost] = {}
    for one in found:
        earlier = kept.setdefault((one.place, one.name), one)
        if earlier != one:
            raise ValueError(f"--allow-host is given twice for {one.place}, differently; keep one")
    return tuple(kept.values())


def allowed_host(word: str) -> AllowedHost:
    """What `--allow-host HOST[:PORT][=VARIABLE]` allows.

    A name means https, an address of this machine or network http. `http://HOST` allows a name inside the network,
    `s3://BUCKET` a bucket, `ray://HOST:PORT` a Ray cluster, `file:///DIR` what `--allow-write /DIR` does.

    Raises:
        ValueError: it is not understood; a key in the place of its variable's name is not repeated.
    """
    if word.startswith(_FOLDER):
        return allowed_folder(word.removeprefix(_FOLDER))
    place, equals, variable = word.partition("=")
    if equals:
        require_variable(variable)
    return allowed_place(place, variable or None)


def folder_word(folder: str | Path) -> str:
    """A folder of `--allow-write` as a word of `--allow-host`: whole, since others may run elsewhere."""
    return f"{_FOLDER}{Path(folder).expanduser().absolute()}"


def allowed_folder(text: str, source: str = "--allow-write") -> AllowedHost:
    """A folder, or a single file, that a run may write.

    Raises:
        ValueError: it is no whole path.
    """
    if not text.startswith("/"):
        raise ValueError(f"{text[:100]!r} is not an absolute path; it must start with /")
    return AllowedHost(f"{_FOLDER}{text}", source=source)


def allowed_place(text: str, variable: str | None, *, private: bool | None = None) -> AllowedHost:
    """One host or bucket; it may be inside the network as `private` says, None is as for `allowed_host`.

    Raises:
        ValueError: it is no host, or names more than one.
    """
    scheme = text.partition("://")[0] if "://" in text else ""
    if scheme in (*SCHEMES, "ray"):
        if variable is not None:
            raise ValueError(f"{scheme}:// takes no key here; its credentials come from your environment")
        if scheme == "ray":
            return AllowedHost(ray_place(text))
        address = Address(text)
        if address.path != address.bucket:
            raise ValueError(f"only a whole bucket can be allowed: {address.scheme}://{address.bucket}")
        return AllowedHost(str(address))
    if not scheme and not _BARE.fullmatch(text):
        raise ValueError(f"{text[:100]!r} is not a host; write HOST, HOST:PORT, http://HOST:PORT or s3://BUCKET")
    url = service_url(text if scheme else f"https://{text}")
    if url.path or url.query:
        raise ValueError(f"a host can only be allowed as a whole, so drop {url.path or url.query}")
    inside = url.host == "localhost"
    with suppress(ValueError):  # of a name
        inside = inside or is_private(ip_address(url.host))
    if not scheme and inside:
        url = service_url(f"http://{text}")
    return AllowedHost(url.origin, variable, (inside or url.scheme == "http") if private is None else private)


def require_variable(name: str) -> None:
    """Raises ValueError where a text is no variable's name: it may be the key itself, so it is not repeated."""
    if not _VARIABLE.fullmatch(name):
        register(name)
        raise ValueError("after = give the name of the variable that holds the key, in capitals, such as "
                         "CAPTIONS_API_KEY; never the key itself")  # fmt: skip


def ray_place(text: str) -> str:
    """`ray://host:port` of a Ray cluster's address, with or without its scheme.

    Raises:
        ValueError: it is none.
    """
    bare = text.removeprefix("ray://")
    if not _BARE.fullmatch(bare):
        raise ValueError(f"{text[:100]!r} is not an address of a Ray cluster; write ray://HOST:PORT")
    url = service_url(f"http://{bare}")
    return f"ray://{url.origin.removeprefix('http://')}"
