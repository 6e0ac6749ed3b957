"""Moves this process into namespaces of its own: no network, and a small disk in memory. No root is needed.

It runs in the limited child, so it imports little.
"""

import ctypes
import os

_NEW_MOUNTS, _NEW_USER, _NEW_NETWORK = 0x00020000, 0x10000000, 0x40000000
_NO_SETUID, _NO_DEVICES, _NO_EXEC = 2, 4, 8
_CAPABILITIES_VERSION_3 = 0x20080522


def leave_network() -> bool:
    """Give this process a network with nothing in it, not even a loopback that is up.

    Returns:
        whether the kernel allows it; many containers and some distributions do not.
    """
    user, group = os.geteuid(), os.getegid()
    if ctypes.CDLL(None).unshare(_NEW_USER | _NEW_NETWORK | _NEW_MOUNTS) != 0:
        return False
    try:
        # Without a map of users, files on the small disk would belong to nobody and could not be made.
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123 - pathlib costs 5 ms
                file.write(text)
    except OSError:
        pass  # the network is left all the same; mounting then fails, and says so
    return True


def mount_small_disk(folder: str, kilobytes: int) -> bool:
    """Cover a folder with a disk in memory that only this process sees, and that ends with it.

    Returns:
        whether it is there; it needs `leave_network` before.
    """
    options = f"size={kilobytes}k,nr_inodes=1024,mode=700".encode()
    flags = _NO_SETUID | _NO_DEVICES | _NO_EXEC
    failed: int = ctypes.CDLL(None).mount(b"tmpfs", folder.encode(), b"tmpfs", ctypes.c_ulong(flags), options)
    return failed == 0


def drop_capabilities() -> bool:
    """Give up what root may do beyond its own files, and what the namespaces gave."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION_3, 0)
    failed: int = ctypes.CDLL(None).capset(ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)()))
    return failed == 0
