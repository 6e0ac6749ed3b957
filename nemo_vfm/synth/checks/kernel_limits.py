"""Limits what this process may do: namespaces of its own, files through Landlock, system calls through seccomp.

It runs in the limited child, so it imports little. Numbers of Landlock are those of linux/landlock.h, the same on every
machine; for system calls only x86-64 and aarch64 have a table here.
"""

import contextlib
import ctypes
import os
import struct

#: Name -> its number on x86-64 and on aarch64; None where there is no such call.
#: Landlock does not watch changes of mode, owner, times and attributes; so those are refused here.
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    "socket": (41, 198), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "process_madvise": (440, 440),
    "process_mrelease": (448, 448), "migrate_pages": (256, 238), "move_pages": (279, 239), "prctl": (157, 167),
    "setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setaffinity": (203, 122), "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119), "sched_setattr": (314, 274),
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "fanotify_init": (300, 262),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218), "personality": (135, 92),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266),
    "vhangup": (153, 58), "quotactl": (179, 60), "syslog": (103, 116), "iopl": (172, None), "ioperm": (173, None),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "memfd_create": (319, 279),
    "memfd_secret": (447, 447), "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180),
    "truncate": (76, 45), "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "lchown": (94, None), "fchown": (93, 55), "fchownat": (260, 54), "utime": (132, None),
    "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88), "setxattr": (188, 5),
    "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
}  # fmt: skip
#: Calls whose first argument names a process: only this one. `prlimit64` also takes 0 for it.
_OWN_PROCESS = {"kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "prlimit64": (302, 261)}
#: `fcntl`, and the second arguments that have the kernel send signals to somebody: F_SETOWN, F_SETSIG, F_SETOWN_EX.
_FCNTL, _SENDING = (72, 25), (8, 10, 15)
#: `ioctl`, and what alone may be asked of it: whether a file is a terminal and how large, how much there is to read,
#: whether it is inherited, whether it blocks. Others change attributes, which Landlock does not watch, or more.
_IOCTL, _HARMLESS = (16, 29), (0x5401, 0x802C542A, 0x5413, 0x541B, 0x5450, 0x5451, 0x5421)
_CLONE, _CLONE3, _CLONE_THREAD = (56, 220), 435, 0x00010000
#: Calls that came after this table are not there at all.
_FIRST_UNKNOWN = 463
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _NOT_PERMITTED, _NO_SUCH_CALL = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026
_NUMBER, _ARCHITECTURE, _FIRST, _SECOND = 0, 4, 16, 24
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_Step = tuple[int, int, int, int]
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_EXECUTE, _WRITE, _READ, _READ_FOLDER = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_FOLDER, _REMOVE, _MAKE_FOLDER, _MAKE_FILE, _MAKE_LINK = 1 << 4, 1 << 5, 1 << 7, 1 << 8, 1 << 12
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_READABLE = _READ | _READ_FOLDER
_WRITABLE = _READABLE | _WRITE | _REMOVE_FOLDER | _REMOVE | _MAKE_FOLDER | _MAKE_FILE | _MAKE_LINK | _REFER | _TRUNCATE
_OF_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE
#: Version -> the rights on files that it knows: each version handles those of the ones before it.
_KNOWN = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
_NEW_MOUNTS, _NEW_USER, _NEW_NETWORK = 0x00020000, 0x10000000, 0x40000000
_NO_SETUID, _NO_DEVICES, _NO_EXEC = 2, 4, 8
_CAPABILITIES_VERSION_3 = 0x20080522


class _BpfProgram(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("steps", ctypes.c_char_p)]


def refuse_calls(threads: bool) -> bool:
    """Refuse those system calls to this process and its threads, for ever.

    Args:
        threads: whether it may start threads. It starts no processes in any case.

    Returns:
        whether this is a machine with a table and a kernel with seccomp; elsewhere nothing is refused.
    """
    if (machine := _MACHINES.get(os.uname().machine)) is None:
        return False
    column, architecture = machine
    # The filter: (operation, steps to skip if true, if false, operand) each. Jumps lead forward by at most 255.
    steps = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, architecture), _return(_KILL), (_LOAD, 0, 0, _NUMBER)]
    steps += [(_AT_LEAST, 0, 1, _FIRST_UNKNOWN), _return(_NO_SUCH_CALL)]  # those of x32 are above it too
    steps += [(_EQUAL, 0, 1, _CLONE3), _return(_NO_SUCH_CALL)]  # its flags cannot be read here; libc then takes clone
    for numbers in _REFUSED.values():
        if (number := numbers[column]) is not None:
            steps += [(_EQUAL, 0, 1, number), _return(_NOT_PERMITTED)]
    for name, pair in _OWN_PROCESS.items():
        allowed = [os.getpid(), 0] if name == "prlimit64" else [os.getpid()]
        steps += _when(pair[column], _FIRST, [(_EQUAL, one) for one in allowed], _ALLOW, _NOT_PERMITTED)
    steps += _when(_FCNTL[column], _SECOND, [(_EQUAL, one) for one in _SENDING], _NOT_PERMITTED, _ALLOW)
    steps += _when(_IOCTL[column], _SECOND, [(_EQUAL, one) for one in _HARMLESS], _ALLOW, _NOT_PERMITTED)
    cloned = _ALLOW if threads else _NOT_PERMITTED
    steps += _when(_CLONE[column], _FIRST, [(_ANY_BIT, _CLONE_THREAD)], cloned, _NOT_PERMITTED)
    steps.append(_return(_ALLOW))
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    libc = ctypes.CDLL(None)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    failed: int = libc.prctl(_SET_SECCOMP, _MODE_FILTER, ctypes.byref(_BpfProgram(len(steps), code)), 0, 0)
    return failed == 0


def _when(number: int, place: int, tests: list[tuple[int, int]], then: int, otherwise: int) -> list[_Step]:
    """For one call: `then` if its argument passes any test."""
    last = len(tests) - 1
    judged = [(operation, last - i + 1, 0, operand) for i, (operation, operand) in enumerate(tests)]
    body = [(_LOAD, 0, 0, place), *judged, _return(otherwise), _return(then)]
    return [(_EQUAL, 0, len(body), number), *body]


def _return(value: int) -> _Step:
    return (_RETURN, 0, 0, value)


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64)]


class _Below(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("rights", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def landlock_version() -> int:
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
    if (here := landlock_version()) < 1:
        return False
    known = _KNOWN[min(here, max(_KNOWN))]
    attributes = _Ruleset(known, 3 if here >= 4 else 0, 3 if here >= 6 else 0)
    size = 8 if here < 4 else 16 if here < 6 else 24
    ruleset = _require_ok(libc.syscall(_CREATE, ctypes.byref(attributes), size, 0))
    for rights, paths in ((_READABLE, readable), (_WRITABLE, writable)):
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
                own = rights & known & (-1 if os.path.isdir(path) else _OF_FILES)  # noqa: PTH112 - pathlib costs 5 ms
                _require_ok(libc.syscall(_ADD, ruleset, 1, ctypes.byref(_Below(own, parent)), 0))
                os.close(parent)
    _require_ok(libc.syscall(_RESTRICT, ruleset, 0))
    os.close(ruleset)
    return True


def _require_ok(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"Landlock: {os.strerror(ctypes.get_errno())}")
    return result


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
