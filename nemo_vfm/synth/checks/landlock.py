"""Limits the files that this process may open, through Landlock (Linux 5.13 and later).

It runs in the limited child, so it imports little. Numbers are those of linux/landlock.h, the same on every machine.
"""

import contextlib
import ctypes
import os

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_EXECUTE, _WRITE, _READ, _READ_FOLDER = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_FOLDER, _REMOVE, _MAKE_FOLDER, _MAKE_FILE, _MAKE_LINK = 1 << 4, 1 << 5, 1 << 7, 1 << 8, 1 << 12
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_READABLE = _READ | _READ_FOLDER
_WRITABLE = _READABLE | _WRITE | _REMOVE_FOLDER | _REMOVE | _MAKE_FOLDER | _MAKE_FILE | _MAKE_LINK | _REFER | _TRUNCATE
_OF_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE
#: Version -> the rights on files that it knows: each version handles those of the ones before it.
_KNOWN = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64)]


class _Below(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("rights", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def version() -> int:
    """Of Landlock in this kernel; 0 or less where there is none."""
    found: int = ctypes.CDLL(None).syscall(_CREATE, None, 0, 1)
    return found


def limit_files(readable: list[str], writable: list[str]) -> bool:
    """Allow this process to open these files and what is in these folders, and nothing else, for ever.

    From version 4 on it may use no TCP, and from 6 on signal only processes that it started. Paths that are not there
    are left out.

    Returns:
        whether the kernel has Landlock; without it nothing is limited.

    Raises:
        OSError: the kernel has it and refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if (here := version()) < 1:
        return False
    known = _KNOWN[min(here, max(_KNOWN))]
    attributes = _Ruleset(known, 3 if here >= 4 else 0, 3 if here >= 6 else 0)
    size = 8 if here < 4 else 16 if here < 6 else 24
    ruleset = _checked(libc.syscall(_CREATE, ctypes.byref(attributes), size, 0))
    for rights, paths in ((_READABLE, readable), (_WRITABLE, writable)):
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                _allow(libc, ruleset, path, rights & known)
    _checked(libc.syscall(_RESTRICT, ruleset, 0))
    os.close(ruleset)
    return True


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    below = _Below(rights if os.path.isdir(path) else rights & _OF_FILES, parent)  # noqa: PTH112 - pathlib costs 5 ms
    _checked(libc.syscall(_ADD, ruleset, 1, ctypes.byref(below), 0))
    os.close(parent)


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"Landlock: {os.strerror(ctypes.get_errno())}")
    return result
