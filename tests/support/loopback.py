"""Records each attempt of Python to connect to, or look up, anything beyond this machine.

An audit hook sees every socket of Python, whichever library opens it (not those that C++ opens by itself). It stays
for the life of the process, so there is only one; it notes and refuses.
"""

import ipaddress
import socket
import sys

#: What was tried and refused, in order.
BEYOND: list[str] = []


class BeyondThisMachine(OSError):
    """A test wanted to reach another machine."""


def is_local(host: object) -> bool:
    """Whether a host's name or address is this machine."""
    name = (host.decode("ascii", "replace") if isinstance(host, bytes) else str(host or "")).rstrip(".").lower()
    if name in ("", "localhost", socket.gethostname().lower(), "0.0.0.0", "::") or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        kind = getattr(arguments[0], "type", None)
        if kind != socket.SOCK_DGRAM and not is_local(arguments[1][0]):  # a datagram's connect sends nothing
            _refuse(f"connect to {arguments[1][0]}")
    elif event == "socket.sendto" and isinstance(arguments[1], tuple) and not is_local(arguments[1][0]):
        _refuse(f"send to {arguments[1][0]}")
    elif event in ("socket.getaddrinfo", "socket.gethostbyname") and not is_local(arguments[0]):
        _refuse(f"look up {arguments[0]}")


def _refuse(what: str) -> None:
    BEYOND.append(what)
    raise BeyondThisMachine(f"this wanted to {what}; tests reach this machine only")


def watch() -> None:
    """Begin, once in the life of a process."""
    sys.addaudithook(_hook)
