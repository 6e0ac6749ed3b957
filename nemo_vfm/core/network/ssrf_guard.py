"""Resolves a service's host to IP addresses that may be connected to; private ones only where the user allows them.

A URL in a recipe must not make this machine query its neighbours: the cloud's metadata service gives credentials to
whoever asks from inside. So a name is looked up once per connection, every address it has is checked, and the
connection goes to a checked address. A second look-up could answer otherwise (DNS rebinding).
"""

import re
import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

from nemo_vfm.core.errors import UserError

Ip = IPv4Address | IPv6Address
#: Where clouds answer with credentials. Most are link-local, which is refused as a whole; these are not.
_METADATA = frozenset(
    map(ip_address, ("100.100.100.200", "192.0.0.192", "168.63.129.16", "fd00:ec2::254", "fd20:ce::254"))
)
_SHARED = ip_network("100.64.0.0/10")  # a carrier's own addresses, which clusters use as well
_NAT64 = ip_network("64:ff9b::/96")  # an IPv4 address in an IPv6 one
_LOCAL_NAT64 = ip_network("64:ff9b:1::/48")  # another, whose place each network chooses: it may stand for anything
_COMPATIBLE = ip_network("::/96")  # another, long out of use
_CONTROL = re.compile(r"[\x00-\x20\x7f-\U0010ffff]")
_HOST = re.compile(r"[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*")


@dataclass(frozen=True, slots=True)
class ServiceUrl:
    """Where a service is."""

    scheme: str  #: http or https
    host: str  #: in its one spelling, without brackets
    port: int  #: given, or the scheme's own
    path: str  #: what stands before the paths of the service, without a slash at its end
    query: str  #: `api-version=...`, or empty

    @property
    def authority(self) -> str:
        """What the `Host` header says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = {"http": 80, "https": 443}[self.scheme]
        return host if self.port == usual else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """Scheme, host and port, always written the same way."""
        return f"{self.scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"


def service_url(text: str) -> ServiceUrl:
    """Judge the text of a URL; nothing is looked up.

    Raises:
        ValueError: another scheme, a password, or a query that might be one; the text shows none of them.
    """
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or _CONTROL.search(text) or "\\" in text:
        # As much of a wrong address as is safe to repeat: its scheme and host.
        cut = repr(text.split("?")[0].split("#")[0][:100])
        shown = "an address with a user or password in it" if "@" in text else cut
        raise ValueError(f"{shown} is not the URL of a service, expected https://host/v1 or http://host:port/v1")
    if "@" in parts.netloc or parts.fragment or not re.fullmatch(r"(api-version=[\w.-]+)?", parts.query):
        raise ValueError(
            f"the address of the service at {parts.hostname} holds a user, a password, a query or a fragment; "
            "its key is what --allow-host HOST=VARIABLE names, or your endpoints file"
        )
    port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    host = parts.hostname
    try:  # one spelling: 2130706433, 0x7f000001 and 127.1 are all 127.0.0.1, and a dot at the end means nothing
        host = str(IPv6Address(host.replace("%", " ")) if ":" in host else ip_address(socket.inet_aton(host)))
    except (OSError, ValueError):
        host = host.lower().removesuffix(".")
        if not _HOST.fullmatch(host):
            raise ValueError(
                f"{parts.hostname[:100]!r} is not a host name: letters, digits, - and _, joined by dots"
            ) from None
    return ServiceUrl(parts.scheme, host, port, parts.path.rstrip("/"), parts.query)


def addresses(url: ServiceUrl, *, allow_private: bool) -> list[Ip]:
    """The addresses of the service's host, each of which may be connected to.

    Raises:
        UserError: one of them may not. Where several are given and one is refused, all are: a name that points outward
            and inward at once is a trick.
        ConnectionError: the name has none.
    """
    try:
        ips = [ip_address(url.host)]
    except ValueError:  # a name: all its addresses, in the order in which the system would try them
        try:
            found = socket.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise ConnectionError(f"the name {url.host} could not be looked up: {error}") from error
        ips = list(dict.fromkeys(ip_address(str(entry[4][0]).partition("%")[0]) for entry in found))
    for ip in ips:
        reason = why_not(ip, allow_private=allow_private)
        if reason:
            named = "" if url.host == str(ip) else f"{url.host} is "
            raise UserError(f"{named}{ip}, {reason}" if named else f"{ip} is {reason}")
    if url.scheme == "http" and not all(is_private(ip) for ip in ips):
        raise UserError(f"{url.host} is outside this network: use https, otherwise anyone on the path can read the key")
    return ips


def why_not(ip: Ip, *, allow_private: bool) -> str:
    """Why an address may not be connected to; empty where it may."""
    bare = _unwrap_ipv4(ip)
    if bare.is_link_local or bare in _METADATA:
        return "the metadata service that hands out cloud credentials; it is never contacted"
    if isinstance(bare, IPv6Address) and bare in _LOCAL_NAT64:
        return "which hides an IPv4 address that cannot be checked"
    if bare.is_multicast or bare.is_unspecified or (bare.is_reserved and not bare.is_loopback):
        return "which is not the address of one machine"
    if allow_private or not is_private(bare):
        return ""
    return ("an address inside this network; if that is intended, add --allow-host http://HOST:PORT, or "
            "allow_private: true in your endpoints file")  # fmt: skip


def is_private(ip: Ip) -> bool:
    """Whether an address belongs to this machine or this network."""
    bare = _unwrap_ipv4(ip)
    if isinstance(bare, IPv6Address):
        return not bare.is_global or bare.is_site_local  # fec0::/10 is global to Python, since it is out of use
    return not bare.is_global or bare in _SHARED


def _unwrap_ipv4(ip: Ip) -> Ip:
    """The IPv4 address inside an IPv6 one, where there is one."""
    if isinstance(ip, IPv4Address):
        return ip
    if ip in _NAT64:
        return IPv4Address(int(ip) & 0xFFFFFFFF)
    inside = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
    if inside is None and isinstance(_COMPATIBLE, IPv6Network) and ip in _COMPATIBLE and int(ip) > 0xFFFF:
        inside = IPv4Address(int(ip))
    return inside or ip
